"""Reading and writing checkpoints in their official formats: ``config.json`` and safetensors.

Nothing here runs code that came with a checkpoint. Every complaint names the file and the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cdbench.errors import UsageError
from cdbench.models.base import ModelDims, StagedModel, WeightSlot

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
REDUNDANT = ("lm_head.weight", ".rotary_emb.inv_freq")
"""Tensors that a file may hold beside a model's own: a tied head, and what is computed here."""


class ConfigReader:
    """Typed look-ups in a model configuration, refusing what this code would compute wrongly."""

    def __init__(self, config: dict[str, Any], model_type: str) -> None:
        self.config = config
        self.model_type = model_type

    def positive_int(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._bad(key, f"is {value!r}, expected a whole number of at least 1")
        return value

    def heads(self) -> tuple[int, int, int]:
        """Query heads, key/value heads and head size, checked against one another."""
        heads = self.positive_int("num_attention_heads")
        kv_heads = self.positive_int("num_key_value_heads", heads)
        head_dim = self.positive_int("head_dim", self.positive_int("hidden_size") // heads or None)
        if heads % kv_heads:
            raise self._bad("num_key_value_heads", f"is {kv_heads}; it must divide {heads} heads")
        if head_dim % 2:
            raise self._bad("head_dim", f"is {head_dim}; rotary positions need an even size")
        return heads, kv_heads, head_dim

    def decoder_dims(self, max_loops: int, has_exit_gate: bool = False) -> ModelDims:
        """Sizes of a decoder whose layers are all core, under the key names of the Llama family."""
        heads, kv_heads, head_dim = self.heads()
        return ModelDims(
            model_type=self.model_type,
            hidden_size=self.positive_int("hidden_size"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            prelude_layers=0,
            core_layers=self.positive_int("num_hidden_layers"),
            coda_layers=0,
            max_loops=max_loops,
            vocab_size=self.positive_int("vocab_size"),
            max_positions=self.positive_int("max_position_embeddings"),
            has_exit_gate=has_exit_gate,
        )

    def positive_float(self, key: str) -> float:
        value = self._value(key, None)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self._bad(key, f"is {value!r}, expected a number above 0")
        return float(value)

    def require_choice(self, key: str, only: str) -> None:
        value = self.config.get(key, only)
        if value != only:
            raise self._bad(key, f"is {value!r}; only {only!r} is implemented")

    def rope_theta(self) -> float:
        """The rotary base, from the old flat key or the newer ``rope_parameters`` table."""
        nested = self.config.get("rope_parameters") or {}
        if "rope_theta" not in self.config and "rope_theta" in nested:
            return ConfigReader(nested, self.model_type).positive_float("rope_theta")
        return self.positive_float("rope_theta")

    def require_plain_rope(self) -> None:
        for key in ("rope_scaling", "rope_parameters"):
            table = self.config.get(key) or {}
            kind = table.get("rope_type", table.get("type", "default"))
            if kind != "default":
                raise self._bad(key, f"asks for {kind!r} scaling; only plain rotary is implemented")
        if self.config.get("use_sliding_window") or (
            self.model_type == "mistral" and self.config.get("sliding_window")
        ):
            raise self._bad("sliding_window", "is set; only full attention is implemented")

    def _value(self, key: str, default: Any) -> Any:
        value = self.config.get(key)
        if value is None:
            value = default
        if value is None:
            raise self._bad(key, "is missing")
        return value

    def _bad(self, key: str, why: str) -> UsageError:
        return UsageError(f"{CONFIG_NAME} ({self.model_type}): `{key}` {why}")


def read_config(directory: Path) -> dict[str, Any]:
    """The parsed ``config.json`` of a checkpoint directory; UsageError names what is wrong."""
    path = directory / CONFIG_NAME
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"{directory}: no {CONFIG_NAME}; give the directory of a checkpoint"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {error}; expected a JSON object") from None
    if not isinstance(config, dict):
        raise UsageError(f"{path}: holds no JSON object; expected a model configuration")
    return config


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint, sharded or whole."""
    index = directory / INDEX_NAME
    if index.exists():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            files = [directory / name for name in sorted(names)]
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise UsageError(f"{index}: {error!r}; expected a safetensors index") from None
    else:
        files = [directory / WEIGHTS_NAME]
    for file in files:
        if not file.is_file():
            raise UsageError(f"{file}: no such file; the checkpoint is incomplete")
    return files


def load_weights(model: StagedModel, directory: Path) -> None:
    """Copy a checkpoint into ``model`` in place, casting to its dtype and device.

    One tensor of the file is held at a time. Raises UsageError for an unreadable file, a tensor
    that is missing, has no place in the model or the wrong shape, and for NaN, each named.
    """
    slots = model.weight_map()
    parameters = dict(model.named_parameters())
    seen: set[str] = set()
    for file in weight_files(directory):
        for name, tensor in _tensors(file, set(slots)):
            _copy_in(parameters, slots[name], tensor, f"{file}: `{name}`")
            seen.add(name)
    missing = sorted(set(slots) - seen)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UsageError(f"{directory}: tensor `{missing[0]}` is missing{more}; fetch it again")


def _tensors(file: Path, wanted: set[str]) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(file, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118 (not a dict)
                if name in wanted:
                    yield name, handle.get_tensor(name)
                elif not name.endswith(REDUNDANT):
                    # A bias dropped in silence would make another model of it.
                    raise UsageError(
                        f"{file}: `{name}` has no place in this model; "
                        f"it does not belong to this {CONFIG_NAME}"
                    )
    except (SafetensorError, OSError) as error:
        raise UsageError(
            f"{file}: {error}; the file is truncated or no safetensors file, fetch it again"
        ) from None


def _copy_in(
    parameters: dict[str, torch.nn.Parameter], slot: WeightSlot, tensor: Tensor, what: str
) -> None:
    target = parameters[slot.parameter].data
    if slot.start_row is not None and slot.rows is not None:
        target = target[slot.start_row : slot.start_row + slot.rows]
    if target.shape != tensor.shape:
        raise UsageError(
            f"{what} has shape {list(tensor.shape)}, expected {list(target.shape)}; "
            f"it does not belong to this {CONFIG_NAME}"
        )
    if not tensor.is_floating_point():
        raise UsageError(f"{what} is {tensor.dtype}; quantised weights are not supported")
    target.copy_(tensor)
    if torch.isfinite(target).all():
        return
    if torch.isfinite(tensor.float()).all():
        raise UsageError(f"{what} does not fit {target.dtype}; use --dtype bfloat16 or float32")
    raise UsageError(f"{what} holds NaN or infinity; the checkpoint is damaged")


def save_checkpoint(
    model: StagedModel, config: dict[str, Any], directory: Path, dtype: torch.dtype
) -> None:
    """Write ``model`` as an official-format checkpoint (the inverse of ``load_weights``)."""
    directory.mkdir(parents=True, exist_ok=True)
    parameters = dict(model.named_parameters())
    tensors: dict[str, Tensor] = {}
    for name, slot in model.weight_map().items():
        value = parameters[slot.parameter].detach()
        if slot.start_row is not None and slot.rows is not None:
            value = value[slot.start_row : slot.start_row + slot.rows]
        tensors[name] = value.to(dtype).cpu().contiguous().clone()
    save_file(tensors, directory / WEIGHTS_NAME, metadata={"format": "pt"})
    (directory / CONFIG_NAME).write_text(json.dumps(config, indent=1) + "\n")

"""Reading and writing checkpoints in their official formats: ``config.json`` and safetensors.

Nothing here runs code that came with a checkpoint. Every complaint names the file and the tensor.
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
from cdbench.models.base import StagedModel, WeightSlot
from cdbench.models.config_reader import CONFIG_NAME
from cdbench.models.translation import Translation

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
REDUNDANT = ("lm_head.weight", ".rotary_emb.inv_freq", "freqs_cis")
"""Tensors that a file may hold beside a model's own: a tied head, and what is computed here."""


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


def load_weights(
    model: StagedModel, directory: Path, translation: Translation | None = None
) -> None:
    """Copy a checkpoint into ``model`` in place, casting to its dtype and device.

    One tensor of the file is held at a time. Raises UsageError for an unreadable file, a tensor
    that is missing, twice there, has no place in the model or the wrong shape, and for NaN, each
    named.
    """
    slots = model.weight_map()
    parameters = dict(model.named_parameters())
    seen: set[str] = set()
    for file in weight_files(directory):
        for name, what, tensor in _tensors(file, set(slots), translation):
            if name in seen:
                raise UsageError(f"{what} comes a second time; keep the one that is right")
            _copy_in(parameters, slots[name], tensor, what)
            seen.add(name)
    missing = sorted(set(slots) - seen)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        remedy = "fetch it again" if translation is None else f"see {translation.path}"
        raise UsageError(f"{directory}: tensor `{missing[0]}` is missing{more}; {remedy}")


def _tensors(
    file: Path, wanted: set[str], translation: Translation | None
) -> Iterator[tuple[str, str, Tensor]]:
    """Each wanted tensor of a file: our name for it, what to call it in an error, its values."""
    try:
        with safe_open(file, framework="pt") as handle:
            for theirs in handle.keys():  # noqa: SIM118 (not a dict)
                name = theirs if translation is None else translation.tensor(theirs)
                if name is None:
                    continue
                what = f"{file}: `{theirs}`" + ("" if name == theirs else f" (our `{name}`)")
                if name in wanted:
                    yield name, what, handle.get_tensor(theirs)
                elif not name.endswith(REDUNDANT):
                    # A bias dropped in silence would make another model of it.
                    raise UsageError(
                        f"{what} has no place in this model; "
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

"""From a name to a model ready to serve: demo name, local directory, or hub id.

Weights are copied straight into the wanted dtype and device. No code from a checkpoint ever runs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from cdbench import resources
from cdbench.errors import UsageError
from cdbench.models.base import StagedModel
from cdbench.models.checkpoint import load_weights, read_config, weight_files
from cdbench.models.registry import build_model

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
RANDOM_WEIGHT_STD = 0.02


@dataclass(frozen=True)
class ModelCard:
    """What a model recommends for itself (``card.json``); neutral where there is none."""

    exit: str = "none"
    kv: str = "per-loop"
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoadedModel:
    """A network with what belongs to it. ``weight_seed`` is set where its weights are random."""

    name: str
    network: StagedModel
    card: ModelCard
    tokenizer: Tokenizer | None = None
    stop_ids: frozenset[int] = frozenset()
    files: tuple[Path, ...] = field(default=(), repr=False)
    weight_seed: int | None = None

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. UsageError without a tokenizer."""
        if self.tokenizer is None:
            raise UsageError(f"model {self.name!r}: has no tokenizer.json; give token ids instead")
        return list(self.tokenizer.encode(text).ids)

    def decode(self, ids: list[int]) -> str:
        """Text of token ids, special tokens left out. UsageError without a tokenizer."""
        if self.tokenizer is None:
            raise UsageError(f"model {self.name!r}: has no tokenizer.json; its output has no text")
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def load_model(
    source: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    weight_seed: int | None = None,
) -> LoadedModel:
    """Load a model by demo name, directory or hub id.

    ``dtype`` auto is float32 on a CPU and the checkpoint's own on a GPU; ``device`` auto takes CUDA
    where there is one. With ``weight_seed`` the weights are random and only ``config.json`` is read.
    Raises UsageError, naming the file or id and what to do.
    """
    directory = locate(source)
    config = read_config(directory)
    target = resolve_device(device)
    network = build_network(config, resolve_dtype(dtype, target, config), target)
    files = [directory / "config.json"]
    if weight_seed is None:
        load_weights(network, directory)
        files += weight_files(directory)
    else:
        randomise(network, weight_seed)
    return LoadedModel(
        name=resources.canonical_model(source),
        network=network,
        card=read_card(directory),
        tokenizer=_tokenizer(directory),
        stop_ids=_stop_ids(directory),
        files=tuple(files),
        weight_seed=weight_seed,
    )


def build_network(config: dict[str, Any], dtype: torch.dtype, device: torch.device) -> StagedModel:
    """A model with unset weights, allocated once, in its final dtype and place."""
    with torch.device("meta"):
        network = build_model(config)
    return network.to(dtype).to_empty(device=device).requires_grad_(False).eval()


def randomise(network: StagedModel, seed: int) -> None:
    """Fill a network with reproducible random weights: for timing, never for text."""
    generator = torch.Generator(device=network.device).manual_seed(seed)
    for name, parameter in network.named_parameters():
        if "norm" in name:
            parameter.data.fill_(1.0)
        else:
            parameter.data.normal_(0.0, RANDOM_WEIGHT_STD, generator=generator)


def resolve_device(device: str) -> torch.device:
    """``auto``, ``cpu`` or ``cuda``; UsageError where CUDA is asked for and absent."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device 'cuda': no CUDA device is available; use --device cpu")
    return torch.device(device)


def resolve_dtype(dtype: str, device: torch.device, config: dict[str, Any]) -> torch.dtype:
    """The torch dtype of a name; ``auto`` is float32 on a CPU, the checkpoint's on a GPU."""
    if dtype == "auto":
        own = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
        dtype = "float32" if device.type == "cpu" else str(own)
    resolved = getattr(torch, dtype, None)
    if not isinstance(resolved, torch.dtype) or not resolved.is_floating_point:
        raise UsageError(f"dtype {dtype!r}: unknown; use float32, bfloat16, float16 or float64")
    return resolved


def locate(source: str) -> Path:
    """The checkpoint directory of a demo name, a path or a hub id (fetched where online)."""
    name = resources.canonical_model(source)
    if name in resources.demo_names():
        return resources.demo_path(name)
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise UsageError(f"model {source!r}: is a file; point at the checkpoint's directory")
    if HUB_ID.fullmatch(source):
        return _from_hub(source)
    raise UsageError(
        f"model {source!r}: no such demo or directory; "
        f"{resources.nearest_hint(source, resources.demo_names())}"
    )


def _from_hub(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors"]
    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns, local_files_only=True))
    except (LocalEntryNotFoundError, FileNotFoundError):
        pass
    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except (HfHubHTTPError, OSError, LocalEntryNotFoundError) as error:
        raise UsageError(
            f"model {hub_id!r}: not in the local cache and cannot be fetched "
            f"({type(error).__name__}); download it where there is a network and pass its directory"
        ) from None


def read_card(directory: Path) -> ModelCard:
    """The model's own recommendations; the neutral card where it has none."""
    raw = _optional_json(directory / "card.json")
    return ModelCard(
        exit=str(raw.get("exit", "none")),
        kv=str(raw.get("kv", "per-loop")),
        tasks=tuple(str(task) for task in raw.get("tasks", ())),
    )


def _tokenizer(directory: Path) -> Tokenizer | None:
    path = directory / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for any damaged file
        raise UsageError(f"{path}: {error}; expected a tokenizers file") from None


def _stop_ids(directory: Path) -> frozenset[int]:
    """End-of-text ids of the generation config. A bare checkpoint has none."""
    found = _optional_json(directory / "generation_config.json").get("eos_token_id")
    if found is None:
        return frozenset()
    return frozenset(int(i) for i in (found if isinstance(found, list) else [found]))


def _optional_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}; expected a JSON object") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}: holds no JSON object; expected one")
    return value

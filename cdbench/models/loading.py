"""From a name to a model ready to serve: demo name, local directory, or hub id.

Weights are copied straight into the wanted dtype and device. No code from a checkpoint ever runs.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from cdbench import resources
from cdbench.errors import UsageError
from cdbench.models.base import StagedModel
from cdbench.models.checkpoint import load_weights, weight_files
from cdbench.models.config_reader import CONFIG_NAME, read_config, read_json
from cdbench.models.registry import build_model, config_keys, with_layers
from cdbench.models.translation import Translation, read_translation

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_ANSWER_S = 5.0
"""Seconds the hub has to answer at all, before anything is fetched."""
RANDOM_WEIGHT_STD = 0.02


@dataclass(frozen=True)
class ModelCard:
    """What a model recommends for itself (``card.json``); neutral where there is none.

    ``exit`` is a text of ``--exit``; without a card it is the ``cdf`` rule at the configuration's
    own threshold, where that is set and below 1.
    """

    exit: str = "none"
    kv: str = "per-loop"
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoadedModel:
    """A network with what belongs to it.

    ``weight_seed`` is set where its weights are random, ``layers`` where its layers are not those
    of its configuration.
    """

    name: str
    network: StagedModel
    card: ModelCard
    tokenizer: Tokenizer | None = None
    stop_ids: frozenset[int] = frozenset()
    files: tuple[Path, ...] = field(default=(), repr=False)
    weight_seed: int | None = None
    layers: str | None = None

    @property
    def weights(self) -> str:
        """Its weights as the configuration says it: ``checkpoint`` or ``random:SEED``."""
        return "checkpoint" if self.weight_seed is None else f"random:{self.weight_seed}"

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. UsageError without a tokenizer."""
        if self.tokenizer is None:
            raise UsageError(f"model {self.name!r}: has no tokenizer.json; give token ids instead")
        return list(self.tokenizer.encode(text).ids)

    def decode(self, ids: list[int]) -> str:
        """Text of token ids, special tokens left out. UsageError without a tokenizer."""
        if self.tokenizer is None:
            raise UsageError(f"model {self.name!r}: has no tokenizer.json; its output has no text")
        return _text(self.tokenizer, ids)


def load_model(
    source: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    weight_seed: int | None = None,
    layers: str | None = None,
) -> LoadedModel:
    """Load a model by demo name, directory or hub id.

    ``dtype`` auto is float32 on a CPU and the checkpoint's own on a GPU; ``device`` auto takes CUDA
    where there is one. With ``weight_seed`` weights are random and only ``config.json`` is read;
    then ``layers`` may change how many each stage has, as ``PRELUDE-CORE-CODA``.
    Raises UsageError, naming the file or id and what to do.
    """
    if layers is not None and weight_seed is None:
        raise UsageError(
            "layers: changes the model, so the checkpoint's weights do not fit; "
            "use weights random:SEED"
        )
    target = resolve_device(device)
    directory = locate(source, with_weights=weight_seed is None)
    translation = read_translation(directory)
    config = _our_config(directory, translation)
    precision = resolve_dtype(dtype, target, config)
    try:
        if layers is not None:
            config = with_layers(config, layers)
        network = build_network(config, precision, target)
    except UsageError as error:
        if not str(error).startswith(CONFIG_NAME):
            raise
        raise UsageError(f"{directory}/{error}") from None
    files = [directory / CONFIG_NAME]
    if translation is not None:
        files.append(translation.path)
    if weight_seed is None:
        load_weights(network, directory, translation)
        files += weight_files(directory)
    else:
        randomise(network, weight_seed)
    return LoadedModel(
        name=resources.canonical_model(source),
        network=network,
        card=read_card(directory, config),
        tokenizer=_tokenizer(directory),
        stop_ids=_stop_ids(directory),
        files=tuple(files),
        weight_seed=weight_seed,
        layers=layers,
    )


def _our_config(directory: Path, translation: Translation | None) -> dict[str, Any]:
    """The configuration of a checkpoint under our names."""
    config = read_config(directory)
    if translation is None:
        return config
    try:
        known = config_keys(translation.family)
    except UsageError as error:
        raise UsageError(f"{translation.path}: `family`: {error}") from None
    return translation.config(config, known)


def build_network(config: dict[str, Any], dtype: torch.dtype, device: torch.device) -> StagedModel:
    """A model with unset weights, allocated once, in its final dtype and place."""
    with torch.device("meta"):
        network = build_model(config).to(dtype)
    ties = _tied_parameters(network)
    try:
        network = network.to_empty(device=device)
    except RuntimeError as error:  # an allocator's; CUDA's own is a subclass
        size = network.parameter_count() * dtype.itemsize
        raise UsageError(
            f"config.json: {size:,} bytes of weights cannot be allocated on {device} "
            f"({str(error).splitlines()[0]}); use a smaller dtype or another device"
        ) from None
    for alias, owner in ties.items():
        module, _, attribute = alias.rpartition(".")
        setattr(network.get_submodule(module), attribute, network.get_parameter(owner))
    return network.requires_grad_(False).eval()


def _tied_parameters(network: StagedModel) -> dict[str, str]:
    """Second name → first name of parameters that are one: ``to_empty`` would part them."""
    first: dict[int, str] = {}
    ties: dict[str, str] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        owner = first.setdefault(id(parameter), name)
        if owner != name:
            ties[name] = owner
    return ties


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
    if device not in ("cpu", "cuda"):
        raise UsageError(f"device {device!r}: unknown; use auto, cpu or cuda")
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


def locate(source: str, with_weights: bool = True) -> Path:
    """The checkpoint directory of a demo name, a path or a hub id.

    A hub id is fetched where there is a network, without its weights where they are not wanted.
    """
    name = resources.canonical_model(source)
    if name in resources.demo_names():
        return resources.demo_path(name)
    # os.path: a name that no file can have is no error there, and a home of nobody no home.
    path = Path(os.path.expanduser(source))
    if os.path.isdir(path):
        return path
    if os.path.exists(path):
        raise UsageError(f"model {source!r}: is a file; point at the checkpoint's directory")
    if HUB_ID.fullmatch(source):
        return _from_hub(source, with_weights)
    raise UsageError(
        f"model {source!r}: no such demo or directory; "
        f"{resources.nearest_hint(source, resources.demo_names())}"
    )


def _from_hub(hub_id: str, with_weights: bool) -> Path:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = ["*.json", *(["*.safetensors"] if with_weights else [])]
    try:
        cached = Path(snapshot_download(hub_id, allow_patterns=patterns, local_files_only=True))
        if not with_weights or any(cached.glob("*.safetensors")):
            return cached
    except (LocalEntryNotFoundError, FileNotFoundError, ValueError):
        pass
    try:
        # The client's own patience has no end; whether the hub is there shows at once.
        within(HUB_ANSWER_S, lambda: HfApi().model_info(hub_id, timeout=HUB_ANSWER_S))
        return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except Exception as error:  # the client's versions differ in the errors they raise
        raise UsageError(
            f"model {hub_id!r}: not in the local cache and cannot be fetched "
            f"({type(error).__name__}); download it where there is a network and give its directory"
        ) from None


def within(limit_s: float, ask: Callable[[], object]) -> None:
    """Run ``ask``; TimeoutError past the limit, which name resolution would not keep by itself."""
    failed: list[Exception] = []

    def attempt() -> None:
        try:
            ask()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(limit_s)
    if failed:
        raise failed[0]
    if thread.is_alive():
        raise TimeoutError


def read_card(directory: Path, config: dict[str, Any] | None = None) -> ModelCard:
    """The model's own recommendations; without a card, what its configuration implies."""
    path = directory / "card.json"
    raw = read_json(path) or {}
    tasks = raw.get("tasks") or []
    if not isinstance(tasks, list):
        raise UsageError(f"{path}: `tasks` is {tasks!r}; expected a list of task names")
    return ModelCard(
        exit=str(raw.get("exit") or _configured_exit(config or {})),
        kv=str(raw.get("kv") or "per-loop"),
        tasks=tuple(str(task) for task in tasks),
    )


def _configured_exit(config: dict[str, Any]) -> str:
    """``cdf`` at the threshold in an Ouro configuration; 1.0 there means that none is set."""
    threshold = config.get("early_exit_threshold")
    if isinstance(threshold, bool) or not isinstance(threshold, int | float):
        return "none"
    return f"cdf@{float(threshold)!r}" if 0 <= threshold < 1 else "none"


def read_decoder(source: str) -> Callable[[list[int]], str] | None:
    """``LoadedModel.decode`` of a model by name, directory or hub id, without the model.

    None without a tokenizer. UsageError as ``load_model``.
    """
    tokenizer = _tokenizer(locate(source, with_weights=False))
    return None if tokenizer is None else functools.partial(_text, tokenizer)


def _text(tokenizer: Tokenizer, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True))


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
    path = directory / "generation_config.json"
    found = (read_json(path) or {}).get("eos_token_id")
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise UsageError(f"{path}: `eos_token_id` is {found!r}; expected token ids")
    return frozenset(ids)

"""A recording on disk: one safetensors file, written whole, read back only where it agrees."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from cdbench.errors import UsageError
from cdbench.predictor.recording import Recorded
from cdbench.schema import to_json
from cdbench.schema.files import write_whole
from cdbench.schema.lookahead import StateRecording

AGAIN = "record it again with `cdbench predictor record`"
KEY = "document"
PRELUDES = "preludes"

Array = npt.NDArray[Any]


def write_states(path: Path, recorded: Recorded) -> StateRecording:
    """Write a recording whole or not at all; answers its document with the hash of its arrays."""
    arrays = _arrays(recorded)
    document = recorded.document.model_copy(update={"arrays_sha256": _sha256(arrays)})
    write_whole(path, save(arrays, {KEY: to_json(document, indent=None)}))
    return document


def read_states(path: Path) -> Recorded:
    """Read a recording. UsageError where it is missing, damaged or does not agree with itself."""
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(KEY)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UsageError(f"{path}: {why}; {AGAIN}") from None
    if text is None:
        raise UsageError(f"{path}: has no document in its header; {AGAIN}")
    try:
        document = StateRecording.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "document"
        raise UsageError(f"{path}: {key}: {first['msg']}; {AGAIN}") from None
    if (wrong := _what_is_wrong(document, arrays)) is not None:
        raise UsageError(f"{path}: {wrong}; {AGAIN}")
    return Recorded(
        document,
        arrays["states"],
        arrays["signals"].astype(np.float64),
        arrays["offsets"],
        arrays.get(PRELUDES),
    )


def _arrays(recorded: Recorded) -> dict[str, Array]:
    # Rules compute their signals in float32, but for a float64 model: nothing is rounded.
    precise = np.float64 if recorded.document.setting.dtype == "float64" else np.float32
    arrays: dict[str, Array] = {
        "offsets": recorded.offsets,
        "signals": recorded.signals.astype(precise),
        "states": np.ascontiguousarray(recorded.states, np.float32),
    }
    if recorded.preludes is not None:
        arrays[PRELUDES] = np.ascontiguousarray(recorded.preludes, np.float32)
    return arrays


def _sha256(arrays: dict[str, Array]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _what_is_wrong(document: StateRecording, arrays: dict[str, Array]) -> str | None:
    setting, tokens = document.setting, document.tokens
    shapes: dict[str, tuple[int, ...]] = {
        "offsets": (len(document.requests) + 1,),
        "signals": (tokens, setting.max_loops),
        "states": (tokens, setting.max_loops - 1, setting.state_size),
    }
    if document.pre_loop:
        shapes[PRELUDES] = (tokens, setting.state_size)
    if set(arrays) != set(shapes):
        return f"its tensors are {', '.join(sorted(arrays))}, not {', '.join(sorted(shapes))}"
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            return f"{name} have shape {list(arrays[name].shape)}, expected {list(shape)}"
    later = np.cumsum([0, *(len(request.tokens) - 1 for request in document.requests)])
    if not np.array_equal(arrays["offsets"], later):
        return "its lines are not those of its requests"
    if _sha256(arrays) != document.arrays_sha256:
        return "its tensors are not those that its document was written with (arrays_sha256)"
    return None

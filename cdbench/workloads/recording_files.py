"""A recording on disk: written whole, and read back only where all of it fits together."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from cdbench.errors import UsageError
from cdbench.runtime.core import FloatArray
from cdbench.runtime.exits import RULES, Needs
from cdbench.schema.files import read_document, to_json
from cdbench.schema.recording import RECORD_FILE, SIGNALS_FILE, Recording, SignalsFile
from cdbench.workloads.recording import Recorded

AGAIN = "record it again with `cdbench record`"


def pack_signals(
    signals: Sequence[FloatArray], max_loops: int, dtype: Literal["float32", "float64"]
) -> tuple[SignalsFile, bytes]:
    """``signals.npz`` and what the document says of it.

    A rule computes its signal in float32, or in float64 for a float64 model: nothing is rounded.
    """
    lengths = [len(s) for s in signals]
    lines = np.concatenate([np.empty((0, max_loops)), *signals]).astype(dtype)
    file = io.BytesIO()
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    np.savez_compressed(file, signals=lines, offsets=offsets)
    content = file.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    return SignalsFile(sha256=digest, dtype=dtype, tokens=len(lines), loops=max_loops), content


def write_recording(directory: Path, document: Recording, signals_npz: bytes) -> Path:
    """Write both files, the document last; what it says of the signals is then there."""
    _write_whole(directory / SIGNALS_FILE, signals_npz)
    path = directory / RECORD_FILE
    _write_whole(path, _document_text(document).encode())
    return path


def read_recording(path: Path) -> Recorded:
    """Read a recording, given its ``record.json`` or the directory of it.

    Raises UsageError where it is missing, damaged, incomplete, or does not agree with itself.
    """
    file = path / RECORD_FILE if path.is_dir() else path
    document = read_document(Recording, file)
    _check_document(document, str(file))
    signals = _read_signals(document, file.parent / document.signals.file)
    recorded = Recorded(document, signals)
    _check_depths(recorded, str(file))
    return recorded


def _document_text(document: Recording) -> str:
    """Indented, but for the requests: one line each."""
    lines = ",\n    ".join(to_json(request, indent=None) for request in document.requests)
    head = to_json(document.model_copy(update={"requests": []}))
    empty = '"requests": []\n}'
    assert head.endswith(empty), "requests is the last field of the document"
    return head.removesuffix(empty) + f'"requests": [\n    {lines}\n  ]\n}}\n'


def _write_whole(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def _check_document(document: Recording, where: str) -> None:
    rule = RULES.get(document.exit.rule)
    if rule is None or rule.needs is Needs.NOTHING or document.exit.threshold is None:
        raise UsageError(
            f"{where}: exit: {document.exit.rule!r} is no rule with a threshold; {AGAIN}"
        )
    for request in document.requests:
        lengths = {
            len(request.tokens),
            len(request.executed_depths),
            len(request.requested_depths),
        }
        if len(lengths) > 1 or not request.tokens or not request.prompt:
            raise UsageError(
                f"{where}: request {request.id!r}: tokens and depths are not of one length, or "
                f"there are none; {AGAIN}"
            )


def _read_signals(document: Recording, path: Path) -> tuple[FloatArray, ...]:
    told = document.signals
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; {AGAIN}") from None
    if hashlib.sha256(content).hexdigest() != told.sha256:
        raise UsageError(f"{path}: is not the file that {RECORD_FILE} was written with; {AGAIN}")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            lines, offsets = arrays["signals"], arrays["offsets"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise UsageError(f"{path}: is no file of recorded signals; {AGAIN}") from None
    later = np.cumsum([0, *(len(r.tokens) - 1 for r in document.requests)])
    if (
        lines.shape != (told.tokens, told.loops)
        or told.loops != document.max_loops
        or lines.dtype != told.dtype
        or not np.array_equal(offsets, later)
        or later[-1] != told.tokens
    ):
        raise UsageError(
            f"{path}: has not one line of {document.max_loops} loops for every later token of "
            f"{RECORD_FILE}; {AGAIN}"
        )
    return tuple(lines[a:b] for a, b in pairwise(later))


def _check_depths(recorded: Recorded, where: str) -> None:
    """The signals must say what was executed: else one of the two is another run's."""
    for request, depths in zip(recorded.document.requests, recorded.depths(), strict=True):
        told = request.executed_depths[1:], request.requested_depths[1:]
        if told != (depths.executed.tolist(), depths.requested.tolist()):
            raise UsageError(
                f"{where}: request {request.id!r}: its depths are not those that its signals give; "
                f"{AGAIN}"
            )


def is_recording(text: str) -> bool:
    """Whether a document's text is a recording's, and not that of ``cdbench generate``."""
    try:
        document = json.loads(text)
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("kind") == "recording"

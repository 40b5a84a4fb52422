"""A recording on disk: written whole, and read back only where all of it fits together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdbench.errors import UsageError
from cdbench.runtime.core import FloatArray
from cdbench.runtime.exit_rule import Needs
from cdbench.runtime.exits import RULES
from cdbench.schema.files import read_document, to_json, write_whole
from cdbench.schema.recording import RECORD_FILE, SIGNALS_FILE, Recording
from cdbench.schema.workload import WorkloadRecord
from cdbench.workloads.arrival_times import ArrivalSchedule
from cdbench.workloads.identity import workload_hash
from cdbench.workloads.recording import Recorded
from cdbench.workloads.signals_file import most_bytes, unpack_signals

AGAIN = "record it again with `cdbench record`"


def sealed(document: Recording) -> Recording:
    """The document with the hash of its content, by which a later change is found."""
    return document.model_copy(
        update={"content_sha256": _content_sha256(json.loads(to_json(document)))}
    )


def write_recording(directory: Path, document: Recording, signals_npz: bytes) -> Path:
    """Write both files or none, the document last; what it says of the signals is then there."""
    signals, path = directory / SIGNALS_FILE, directory / RECORD_FILE
    try:
        write_whole(signals, signals_npz)
        write_whole(path, _document_text(document))
    except BaseException:
        for file in (path, signals):
            file.unlink(missing_ok=True)
        raise
    return path


def read_recording(path: Path) -> Recorded:
    """Read a recording, given its ``record.json`` or the directory of it.

    Raises UsageError where it is missing, damaged, changed, incomplete, or does not agree with
    itself.
    """
    file = path / RECORD_FILE if path.is_dir() else path
    document = read_document(Recording, file)
    _check_document(document, str(file))
    _check_hashes(document, file)
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


def _content_sha256(document: Mapping[str, Any]) -> str:
    content = {key: value for key, value in document.items() if key != "content_sha256"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _check_document(document: Recording, where: str) -> None:
    rule = RULES.get(document.exit.rule)
    if rule is None or rule.needs is Needs.NOTHING or document.exit.threshold is None:
        raise UsageError(
            f"{where}: exit: {document.exit.rule!r} is no rule with a threshold; {AGAIN}"
        )
    if not 1 <= document.exit.min_loops <= document.max_loops or document.exit.lag not in (0, 1):
        raise UsageError(f"{where}: exit: its floor or lag fits no {document.max_loops}-loop run")
    seen: set[str] = set()
    for request in document.requests:
        if wrong := _what_is_wrong(request, document.max_loops):
            raise UsageError(f"{where}: request {request.id!r}: {wrong}; {AGAIN}")
        if request.id in seen:
            raise UsageError(f"{where}: two requests have the id {request.id!r}; {AGAIN}")
        seen.add(request.id)


def _what_is_wrong(request: WorkloadRecord, max_loops: int) -> str | None:
    executed, requested = request.executed_depths, request.requested_depths
    if not len(request.tokens) == len(executed) == len(requested):
        return "tokens and depths are not of one length"
    if not request.tokens or not request.prompt:
        return "it has no prompt or no tokens"
    if min(request.prompt) < 0 or min(request.tokens) < 0:
        return "a token id is below 0"
    if min(*executed, *requested) < 1 or max(*executed, *requested) > max_loops:
        return f"a depth is not 1 to {max_loops}"
    return None


def _check_hashes(document: Recording, file: Path) -> None:
    """Nothing may have changed since it was written."""
    # The workload's own hash goes first: it tells more, and is in every recording.
    if workload_hash(document.requests, ArrivalSchedule()) != document.workload_hash:
        raise UsageError(
            f"{file}: requests: a prompt, token or depth is not the one recorded (workload_hash); "
            f"{AGAIN}"
        )
    if document.content_sha256 is None:
        return
    if _content_sha256(json.loads(file.read_text(encoding="utf-8"))) != document.content_sha256:
        raise UsageError(
            f"{file}: was changed after it was recorded (content_sha256); restore it, or {AGAIN}"
        )


def _read_signals(document: Recording, path: Path) -> tuple[FloatArray, ...]:
    told = document.signals
    later = [len(request.tokens) - 1 for request in document.requests]
    if (told.tokens, told.loops) != (sum(later), document.max_loops):
        raise _other_signals(document, path)
    try:
        fits = path.stat().st_size <= most_bytes(told, len(later))
        content = path.read_bytes() if fits else b""
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; {AGAIN}") from None
    if hashlib.sha256(content).hexdigest() != told.sha256:
        raise UsageError(f"{path}: is not the file that {RECORD_FILE} was written with; {AGAIN}")
    try:
        return unpack_signals(content, told, later)
    except ValueError:
        raise _other_signals(document, path) from None


def _other_signals(document: Recording, path: Path) -> UsageError:
    return UsageError(
        f"{path}: has not one line of {document.max_loops} loops for every later token of "
        f"{RECORD_FILE}; {AGAIN}"
    )


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

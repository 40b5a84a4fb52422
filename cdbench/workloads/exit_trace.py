"""Replaying recorded exits: the tokens and depths of an earlier run.

The recorded tokens are forced and the recorded depths executed, while the rule that decided them
runs live and is paid for: what differs between two replays is the schedule alone. Two kinds of file
hold them. A recording of ``cdbench record`` has signals at every loop, so that depths at other
thresholds can be derived (``trace:DIR@X``), and its prompts. A ``cdbench generate --json`` document
has depths at one threshold and no prompts.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cdbench.errors import UsageError
from cdbench.grammar import ExitSpec, check_exit, parse_exit
from cdbench.runtime.exits import RULES
from cdbench.schema import GenerateDocument, GeneratedRequest, WorkloadRecord
from cdbench.schema.recording import RECORD_FILE
from cdbench.workloads.recording import Depths
from cdbench.workloads.recording_files import is_recording, read_recording
from cdbench.workloads.traced import (
    ExitTrace,
    TracedRequest,
    own_requests,
    replayed,
    traced,
    which_weights,
)

__all__ = [
    "ExitTrace",
    "TracedRequest",
    "load_exit_trace",
    "own_requests",
    "replayed",
    "traced",
]

_RECORD = "record one with `cdbench record` or `cdbench generate --json`"


class _Settings(BaseModel):
    """What a replay needs to know of a document's ``config``."""

    model_config = ConfigDict(extra="ignore", strict=True)

    exit: str
    R: int = Field(ge=1)
    min_loops: int = Field(1, ge=1)
    exit_lag: int = Field(0, ge=0, le=1)
    first_token: str = "full"
    weights: str = "checkpoint"
    layers: str | None = None


def load_exit_trace(spec: ExitSpec) -> ExitTrace:
    """Read the file of a ``trace:FILE[@X]`` rule: a recording, its directory, or a document.

    Raises UsageError where it is none, is not whole, or is asked for at a threshold that it cannot
    have depths for.
    """
    assert spec.trace_file is not None, "only called for the rule trace"
    path = Path(spec.trace_file)
    if path.is_dir():
        return _from_recording(path / RECORD_FILE, spec)
    where = f"trace {spec.trace_file}"
    text = _read(spec.trace_file, where)
    if is_recording(text):
        return _from_recording(path, spec)
    if spec.threshold is not None:
        raise UsageError(
            f"exit rule {str(spec)!r}: the file stores depths but no signals at other thresholds; "
            "drop the threshold, or record signals with `cdbench record`"
        )
    return _from_document(text, spec.trace_file, where)


def _from_recording(path: Path, asked: ExitSpec) -> ExitTrace:
    recorded = read_recording(path)
    document, ran = recorded.document, recorded.document.exit
    threshold = ran.threshold if asked.threshold is None else asked.threshold
    check_exit(ran.rule, threshold, RULES)
    derived = threshold != ran.threshold
    pairs = zip(document.requests, recorded.depths(threshold), strict=True)
    return ExitTrace(
        file=str(asked.trace_file),
        model=document.model.name,
        spec=ExitSpec(ran.rule, threshold),
        min_loops=ran.min_loops,
        lag=ran.lag,
        max_loops=document.max_loops,
        requests=tuple(_recorded(r, depths if derived else None) for r, depths in pairs),
        derived_from=ran.threshold if derived else None,
        first_token=str(document.config.get("first_token", "full")),
        weights=which_weights(str(document.config.get("weights", "checkpoint")), document.layers),
        hashes=document.model.files,
        marks=tuple(document.marks),
    )


def _recorded(request: WorkloadRecord, derived: Depths | None) -> TracedRequest:
    executed, requested = request.executed_depths, request.requested_depths
    if derived is not None:
        # The first token's loops are the prompt's, whatever the threshold.
        executed = [executed[0], *derived.executed.tolist()]
        requested = [requested[0], *derived.requested.tolist()]
    return TracedRequest(
        id=request.id,
        prompt=tuple(request.prompt),
        prompt_tokens=len(request.prompt),
        tokens=tuple(request.tokens),
        executed_depths=tuple(executed),
        requested_depths=tuple(requested),
        task=request.task,
        doc_id=request.doc_id,
    )


def _from_document(text: str, file: str, where: str) -> ExitTrace:
    try:
        document = GenerateDocument.model_validate_json(text)
    except ValidationError as error:
        raise _complaint(where, "", error) from None
    try:
        settings = _Settings.model_validate(document.config)
    except ValidationError as error:
        raise _complaint(where, "config.", error) from None
    live = parse_exit(settings.exit)
    if live.rule == "trace":
        raise UsageError(f"{where}: `config.exit` is itself a trace; {_RECORD}")
    for place, request in enumerate(document.requests):
        if wrong := _what_is_wrong(request, place, settings.R):
            raise UsageError(f"{where}: request {place}: {wrong}; {_RECORD}")
    return ExitTrace(
        file=file,
        model=document.model,
        spec=live,
        min_loops=settings.min_loops,
        lag=settings.exit_lag,
        max_loops=settings.R,
        first_token=settings.first_token,
        weights=which_weights(settings.weights, settings.layers),
        requests=tuple(
            TracedRequest(
                id=str(request.index),
                prompt=None,
                prompt_tokens=request.prompt_tokens,
                tokens=tuple(request.tokens),
                executed_depths=tuple(request.depths),
                requested_depths=tuple(request.depths),
            )
            for request in document.requests
        ),
    )


def _what_is_wrong(request: GeneratedRequest, place: int, max_loops: int) -> str | None:
    if request.index != place:
        return f"its index is {request.index}"
    if len(request.depths) != len(request.tokens):
        return f"it has {len(request.tokens)} tokens and {len(request.depths)} depths"
    if request.prompt_tokens < 1 or any(token < 0 for token in request.tokens):
        return "it has no prompt, or a token id below 0"
    if any(not 1 <= depth <= max_loops for depth in request.depths):
        return f"a depth is not 1 to {max_loops}"
    return None


def _read(file: str, where: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror or error}; {_RECORD}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{where}: no UTF-8 text; {_RECORD}") from None


def _complaint(where: str, prefix: str, error: ValidationError) -> UsageError:
    first = error.errors(include_url=False)[0]
    key = prefix + ".".join(str(part) for part in first["loc"])
    what = f"`{key}`: {first['msg']}" if key else first["msg"]
    return UsageError(f"{where}: {what}; {_RECORD}")

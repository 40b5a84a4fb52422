"""Replaying recorded exits: the tokens and depths of an earlier ``cdbench generate --json``.

The recorded tokens are forced and the recorded depths executed, while the rule that the document's
``config`` names runs live and is paid for: what differs between two replays is the schedule alone.
No signals at other thresholds are stored, so a trace can only be replayed at its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cdbench.errors import UsageError
from cdbench.grammar import ExitSpec, parse_exit
from cdbench.runtime.core import Request
from cdbench.schema import GenerateDocument, GeneratedRequest

_RECORD = "record one with `cdbench generate --json`"


@dataclass(frozen=True)
class ExitTrace:
    """A recorded run: the rule that decided its depths, its full depth, and its requests."""

    file: str
    model: str
    spec: ExitSpec
    min_loops: int
    lag: int
    max_loops: int
    requests: tuple[GeneratedRequest, ...]


class _Settings(BaseModel):
    """What a replay needs to know of a document's ``config``."""

    model_config = ConfigDict(extra="ignore", strict=True)

    exit: str
    R: int = Field(ge=1)
    min_loops: int = Field(1, ge=1)
    exit_lag: int = Field(0, ge=0)


def load_exit_trace(spec: ExitSpec) -> ExitTrace:
    """Read the file of a ``trace:FILE`` rule, a ``generate --json`` document.

    Raises UsageError where it is none, is not whole, or is asked for at a threshold.
    """
    assert spec.trace_file is not None, "only called for the rule trace"
    if spec.threshold is not None:
        raise UsageError(
            f"exit rule {str(spec)!r}: a trace stores depths but no signals at other thresholds; "
            f"drop the threshold, or run the rule itself"
        )
    where = f"trace {spec.trace_file}"
    try:
        document = GenerateDocument.model_validate_json(_read(spec.trace_file, where))
    except ValidationError as error:
        raise _complaint(where, "", error) from None
    try:
        settings = _Settings.model_validate(document.config)
    except ValidationError as error:
        raise _complaint(where, "config.", error) from None
    live = parse_exit(settings.exit)
    if live.rule == "trace":
        raise UsageError(f"{where}: `config.exit` is itself a trace; {_RECORD}")
    for request in document.requests:
        if len(request.depths) != len(request.tokens):
            raise UsageError(
                f"{where}: request {request.index} has {len(request.tokens)} tokens and "
                f"{len(request.depths)} depths; {_RECORD}"
            )
    return ExitTrace(
        file=spec.trace_file,
        model=document.model,
        spec=live,
        min_loops=settings.min_loops,
        lag=settings.exit_lag,
        max_loops=settings.R,
        requests=tuple(document.requests),
    )


def replayed(trace: ExitTrace, requests: Sequence[Request], where: Sequence[str]) -> list[Request]:
    """The requests with recorded tokens forced and recorded depths set.

    ``where`` names each request in errors. Raises UsageError where they are not the recorded ones.
    """
    if len(requests) != len(trace.requests):
        raise UsageError(
            f"trace {trace.file}: holds {len(trace.requests)} requests, but {len(requests)} were "
            "given; give those it was recorded with, in their order"
        )
    pairs = zip(requests, trace.requests, where, strict=True)
    return [_replay(trace.file, request, recorded, name) for request, recorded, name in pairs]


def _replay(file: str, request: Request, recorded: GeneratedRequest, where: str) -> Request:
    if len(request.prompt) != recorded.prompt_tokens:
        raise UsageError(
            f"{where}: has {len(request.prompt)} tokens, but the prompt recorded in {file} has "
            f"{recorded.prompt_tokens}; give the prompts it was recorded with, in their order"
        )
    if not recorded.tokens:
        raise UsageError(
            f"{where}: {file} has no tokens for it, so there is nothing to replay; "
            "record a trace without it"
        )
    if request.force is not None and list(request.force) != recorded.tokens:
        raise UsageError(
            f"{where}: forces other tokens than {file} recorded; drop `force` or the trace"
        )
    return replace(request, force=tuple(recorded.tokens), replay_depths=tuple(recorded.depths))


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

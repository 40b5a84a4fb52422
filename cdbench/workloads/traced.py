"""A recorded run as a replay sees it, and which of its requests is which of those given."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cdbench.errors import UsageError
from cdbench.grammar import ExitSpec
from cdbench.runtime.core import ExitPolicy, Request


@dataclass(frozen=True)
class TracedRequest:
    """One recorded request. Depth lists align with ``tokens``; entry 0 is the first token's.

    ``prompt`` is None where only the number of its tokens was kept.
    """

    id: str
    prompt: tuple[int, ...] | None
    prompt_tokens: int
    tokens: tuple[int, ...]
    executed_depths: tuple[int, ...]
    requested_depths: tuple[int, ...]
    task: str | None = None
    doc_id: int | None = None


@dataclass(frozen=True)
class ExitTrace:
    """A recorded run: the rule of its depths, its full depth, and its requests.

    ``spec`` has the threshold that the depths belong to, ``derived_from`` the one of the recorded
    run where that is another. ``hashes`` are of the model's files, where they are known;
    ``weights`` is as ``which_weights`` says it. ``marks`` say what in the recording is not the
    model's own doing.
    """

    file: str
    model: str
    spec: ExitSpec
    min_loops: int
    lag: int
    max_loops: int
    requests: tuple[TracedRequest, ...]
    derived_from: float | None = None
    first_token: str = "full"
    weights: str = "checkpoint"
    hashes: dict[str, str] = field(default_factory=dict)
    marks: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """Where the depths come from, in words."""
        if self.derived_from is None:
            return f"those recorded in {self.file}"
        return (
            f"derived for {self.spec} from the signals in {self.file}, recorded at "
            f"{self.derived_from:g}: approximate"
        )


def which_weights(weights: str, layers: str | None) -> str:
    """The values of ``weights`` and ``layers`` in words."""
    return weights if layers is None else f"{weights} and layers {layers}"


def own_requests(trace: ExitTrace, policy: ExitPolicy) -> list[Request]:
    """The requests of the trace itself, to be replayed: its prompts, forced tokens and depths.

    ``policy`` is the rule that runs beside. Raises UsageError where it kept no prompts.
    """
    found = []
    for recorded in trace.requests:
        if recorded.prompt is None:
            raise UsageError(
                f"trace {trace.file}: holds no prompts; give those it was recorded with, or use a "
                "recording of `cdbench record`"
            )
        request = Request(
            id=recorded.id,
            prompt=recorded.prompt,
            exit=policy,
            task=recorded.task,
            doc_id=recorded.doc_id,
        )
        found.append(_scripted(request, recorded))
    return found


def traced(
    trace: ExitTrace, requests: Sequence[Request], where: Sequence[str]
) -> list[TracedRequest]:
    """What was recorded for each of these requests, matched by prompt.

    Of several recordings of one prompt a request takes the one of its own id, else the first left.
    Without recorded prompts the requests must be those recorded, in their order. ``where`` names
    each request in errors. Raises UsageError where one was not recorded.
    """
    if any(recorded.prompt is None for recorded in trace.requests):
        found = _in_order(trace, requests, where)
    else:
        found = _by_prompt(trace, requests, where)
    for request, recorded, name in zip(requests, found, where, strict=True):
        if not recorded.tokens:
            raise UsageError(
                f"{name}: {trace.file} has no tokens for it, so there is nothing to replay; "
                "record a trace without it"
            )
        if request.force is not None and tuple(request.force) != recorded.tokens:
            raise UsageError(
                f"{name}: forces other tokens than {trace.file} recorded; drop `force` or the trace"
            )
    return found


def replayed(trace: ExitTrace, requests: Sequence[Request], where: Sequence[str]) -> list[Request]:
    """The requests with recorded tokens forced and recorded depths set.

    ``where`` names each request in errors. Raises UsageError where they are not the recorded ones.
    """
    pairs = zip(requests, traced(trace, requests, where), strict=True)
    return [_scripted(request, recorded) for request, recorded in pairs]


def _scripted(request: Request, recorded: TracedRequest) -> Request:
    return replace(request, force=recorded.tokens, replay_depths=recorded.executed_depths)


def _in_order(
    trace: ExitTrace, requests: Sequence[Request], where: Sequence[str]
) -> list[TracedRequest]:
    if len(requests) != len(trace.requests):
        raise UsageError(
            f"trace {trace.file}: holds {len(trace.requests)} requests, but {len(requests)} were "
            "given; give those it was recorded with, in their order"
        )
    for request, recorded, name in zip(requests, trace.requests, where, strict=True):
        if len(request.prompt) != recorded.prompt_tokens:
            raise UsageError(
                f"{name}: has {len(request.prompt)} tokens, but the prompt recorded in "
                f"{trace.file} has {recorded.prompt_tokens}; give the prompts it was recorded "
                "with, in their order"
            )
    return list(trace.requests)


def _by_prompt(
    trace: ExitTrace, requests: Sequence[Request], where: Sequence[str]
) -> list[TracedRequest]:
    left: dict[tuple[int, ...], dict[str, TracedRequest]] = defaultdict(dict)
    for recorded in trace.requests:
        assert recorded.prompt is not None
        left[recorded.prompt][recorded.id] = recorded
    found = []
    for request, name in zip(requests, where, strict=True):
        same = left[tuple(request.prompt)]
        if not same:
            raise UsageError(
                f"{name}: its prompt is not among the {len(trace.requests)} recorded in "
                f"{trace.file}; give the prompts it was recorded with, or take them from the trace "
                "itself (workload.source: trace)"
            )
        found.append(same.pop(request.id if request.id in same else next(iter(same))))
    return found

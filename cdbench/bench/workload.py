"""The requests that are timed, and when they arrive: all of it found before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cdbench.bench import live
from cdbench.bench.equal import RecordedRequest, record
from cdbench.bench.plan import Plan
from cdbench.bench.selection import (
    check,
    choose,
    endless,
    output_notes,
    prompt_lengths,
    request_of,
    shortfall,
    size_notes,
    tail_notes,
)
from cdbench.errors import UsageError
from cdbench.grammar import Mode
from cdbench.runtime.core import Request, RequestResult
from cdbench.workloads import candidates
from cdbench.workloads.arrival_times import ArrivalProcess
from cdbench.workloads.arrivals import parse_arrivals
from cdbench.workloads.exit_trace import ExitTrace, own_requests, traced
from cdbench.workloads.lengths import cut_or_repeat


@dataclass(frozen=True)
class TimedWork:
    """What is to be timed, found and checked before anything runs.

    ``recorded`` is there from the start where a trace file has it. ``as_asked`` says that these are
    the live pass's own requests, so that its answers can be forced. ``random_prompts``: the prompts
    are no text. ``notes`` say what a person may not expect of the selection.
    """

    requests: tuple[Request, ...]
    recorded: tuple[RecordedRequest, ...] | None
    arrivals: ArrivalProcess
    as_asked: bool = False
    random_prompts: bool = False
    notes: tuple[str, ...] = ()


def prepare(plan: Plan) -> TimedWork | None:
    """The requests to time; None without equal work. UsageError for what is wrong with them."""
    if "equal" not in plan.config.work:
        return None
    settings = plan.config.workload
    _refuse_contradictions(plan)
    arrivals = ArrivalProcess.read(parse_arrivals(settings.arrivals), settings.seed)
    if settings.source == "demo":
        work = _from_demo(plan, arrivals)
    elif settings.source == "random":
        work = _from_random(plan, arrivals)
    elif settings.source == "trace":
        work = _from_trace(plan, arrivals)
    else:
        with candidates.opened(settings, plan.model) as source:
            chosen = choose(plan, source)
        work = TimedWork(chosen.requests, None, arrivals, notes=chosen.notes)
    arrivals.schedule(len(work.requests))
    work = replace(work, notes=(*work.notes, *shortfall(plan, len(work.requests))))
    if plan.trace is None:
        return work
    return replace(work, recorded=tuple(_traced(plan.trace, work)), as_asked=False)


def _refuse_contradictions(plan: Plan) -> None:
    settings = plan.config.workload
    if plan.trace is not None and settings.output != "recorded":
        raise UsageError(
            f"workload.output: {settings.output} beside a trace, whose tokens are replayed; use "
            "recorded, or drop the trace"
        )
    if settings.source != "trace":
        return
    if plan.trace is None:
        raise UsageError(
            "workload.source: trace takes its requests from a recorded run; add --exit trace:FILE"
        )
    if settings.prompt_tokens is not None:
        raise UsageError(
            "workload.prompt_tokens: means nothing for source trace, whose prompts are those "
            "recorded; drop it"
        )


def _from_demo(plan: Plan, arrivals: ArrivalProcess) -> TimedWork:
    """A sample of the tasks' questions, as the live pass asks them unless keys change them."""
    settings = plan.config.workload
    asked = live.requests_for(plan, plan.subject(Mode("cdb")), live.questions(plan))
    if not asked:
        raise UsageError(
            "tasks: none of them generates text, so there is nothing to time; give a "
            "workload.source of your own, or run work: [live]"
        )
    asked = asked[: settings.requests]
    requests, notes = list(asked), [*output_notes(plan)]
    lengths = prompt_lengths(plan, len(asked))
    if lengths is not None:
        requests = [
            replace(request, prompt=cut_or_repeat(request.prompt, length))
            for request, length in zip(asked, lengths, strict=True)
        ]
        notes += size_notes(plan, [len(request.prompt) for request in asked], lengths)
    if settings.max_new_tokens is not None:
        requests = [replace(r, max_new_tokens=settings.max_new_tokens) for r in requests]
    if isinstance(settings.output, int):
        requests = [endless(request, settings.output) for request in requests]
    for request in requests:
        check(plan, request, f"workload request {request.id}")
    return TimedWork(tuple(requests), None, arrivals, requests == asked, notes=tuple(notes))


def _from_random(plan: Plan, arrivals: ArrivalProcess) -> TimedWork:
    """Random ids, of the lengths asked for or of those recorded in a trace."""
    settings = plan.config.workload
    notes = ["the prompts are random token ids: no text"]
    lengths = prompt_lengths(plan, settings.requests)
    if lengths is not None:
        notes += tail_notes(plan, lengths)
    elif plan.trace is not None:
        recorded = plan.trace.requests[: settings.requests]
        lengths = [request.prompt_tokens for request in recorded]
    else:
        raise UsageError(
            "workload.prompt_tokens: source random has no lengths of its own; give one"
        )
    cap = settings.max_new_tokens or candidates.default_max_new_tokens(plan.model)
    vocabulary = plan.model.network.dims.vocab_size
    found = candidates.random_ids(lengths, vocabulary, settings.seed, cap)
    requests = tuple(request_of(plan, candidate) for candidate in found)
    for request, candidate in zip(requests, found, strict=True):
        check(plan, request, candidate.where)
    notes += output_notes(plan)
    return TimedWork(requests, None, arrivals, random_prompts=True, notes=tuple(notes))


def _from_trace(plan: Plan, arrivals: ArrivalProcess) -> TimedWork:
    """The requests that a trace was recorded with, in its order."""
    assert plan.trace is not None, "checked before"
    requests = own_requests(plan.trace, plan.policy)[: plan.config.workload.requests]
    for request in requests:
        check(plan, request, f"request {request.id} of {plan.trace.file}")
    return TimedWork(tuple(requests), None, arrivals)


def _traced(trace: ExitTrace, work: TimedWork) -> list[RecordedRequest]:
    """The recorded run of a trace file, on the prompts of this workload."""
    where = [f"workload request {request.id}" for request in work.requests]
    if work.random_prompts:
        # Depths recorded on text, replayed on none: only the lengths have to agree.
        used = trace.requests[: len(work.requests)]
        trace = replace(trace, requests=tuple(replace(r, prompt=None) for r in used))
    return [
        RecordedRequest(
            id=request.id,
            task=request.task,
            doc_id=request.doc_id,
            prompt=tuple(request.prompt),
            tokens=recorded.tokens,
            executed_depths=recorded.executed_depths,
            requested_depths=recorded.requested_depths,
        )
        for request, recorded in zip(
            work.requests, traced(trace, work.requests, where), strict=True
        )
    ]


def recorded_workload(
    requests: Sequence[Request], results: Mapping[str, RequestResult]
) -> list[RecordedRequest]:
    """What the recorded run leaves to be forced. UsageError where nothing is left to time."""
    found = [record(request, results[request.id]) for request in requests]
    kept = [r for r in found if r is not None]
    if not kept:
        raise UsageError("workload: no request produced a token; there is nothing to time")
    return kept

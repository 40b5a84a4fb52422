"""The requests that are timed: a sample of the tasks' questions, or a file of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdbench import resources
from cdbench.bench import live
from cdbench.bench.equal import RecordedRequest, record
from cdbench.bench.plan import Plan
from cdbench.errors import UsageError
from cdbench.grammar import Mode
from cdbench.runtime.admission import check_request
from cdbench.runtime.core import Request, RequestResult
from cdbench.workloads.exit_trace import ExitTrace, replayed
from cdbench.workloads.prompts import Prompt, read_ids_file
from cdbench.workloads.resolve import sampling

FILE_MAX_NEW_TOKENS = 64
"""Output length of a workload file's line that names none."""


@dataclass(frozen=True)
class TimedWork:
    """What is to be timed, found and checked before anything runs.

    ``recorded`` is there from the start where a trace file has it.
    """

    requests: tuple[Request, ...]
    recorded: tuple[RecordedRequest, ...] | None


def prepare(plan: Plan) -> TimedWork | None:
    """The requests to time; None without equal work. UsageError for what is wrong with them."""
    if "equal" not in plan.config.work:
        return None
    requests = _requests(plan)
    if plan.trace is None:
        return TimedWork(tuple(requests), None)
    return TimedWork(tuple(requests), tuple(_traced(plan, plan.trace, requests)))


def _requests(plan: Plan) -> list[Request]:
    settings = plan.config.workload
    if settings.source == "demo":
        documents = live.questions(plan)[: settings.requests]
        return live.requests_for(plan, plan.subject(Mode("cdb")), documents)
    path = str(resources.find_file(settings.source))
    return [
        _file_request(plan, str(index), prompt)
        for index, prompt in enumerate(read_ids_file(path)[: settings.requests])
    ]


def _file_request(plan: Plan, name: str, prompt: Prompt) -> Request:
    request = Request(
        id=name,
        prompt=prompt.ids if prompt.text is None else plan.model.encode(prompt.text),
        max_new_tokens=prompt.max_new_tokens or FILE_MAX_NEW_TOKENS,
        exit=plan.policy,
        sampling=sampling(plan.config),
        stop_ids=plan.model.stop_ids,
        force=prompt.force,
    )
    try:
        check_request(request, plan.model.network.dims, plan.max_loops)
    except UsageError as error:
        # A person knows the line, not the number that the engine would see.
        raise UsageError(str(error).replace(f"request {name!r}", prompt.where, 1)) from None
    return request


def _traced(plan: Plan, trace: ExitTrace, requests: Sequence[Request]) -> list[RecordedRequest]:
    """The recorded run of a trace file, on the prompts of this workload."""
    where = [f"workload request {request.id}" for request in requests]
    return [
        RecordedRequest(
            id=request.id,
            task=request.task,
            doc_id=request.doc_id,
            prompt=tuple(request.prompt),
            tokens=tuple(request.force or ()),
            executed_depths=tuple(request.replay_depths or ()),
            requested_depths=tuple(request.replay_depths or ()),
        )
        for request in replayed(trace, requests, where)
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

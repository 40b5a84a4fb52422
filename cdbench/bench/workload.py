"""The requests that are timed: a sample of the tasks' questions, or a file of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdbench import resources
from cdbench.bench import live
from cdbench.bench.equal import RecordedRequest, record
from cdbench.bench.plan import Plan
from cdbench.errors import UsageError
from cdbench.grammar import Mode
from cdbench.runtime.core import Request, RequestResult
from cdbench.workloads.exit_trace import replayed
from cdbench.workloads.prompts import Prompt, read_ids_file

FILE_MAX_NEW_TOKENS = 64
"""Output length of a workload file's line that names none."""


def workload_requests(plan: Plan) -> list[Request]:
    """The prompts to time, in order, as live requests under the run's exit policy."""
    settings = plan.config.workload
    if settings.source == "demo":
        documents = live.questions(plan)[: settings.requests]
        return live.requests_for(plan, plan.subject(Mode("cdb")), documents)
    return [
        _file_request(plan, str(index), prompt)
        for index, prompt in enumerate(
            read_ids_file(str(resources.find_file(settings.source)))[: settings.requests]
        )
    ]


def _file_request(plan: Plan, name: str, prompt: Prompt) -> Request:
    return Request(
        id=name,
        prompt=prompt.ids if prompt.text is None else plan.model.encode(prompt.text),
        max_new_tokens=prompt.max_new_tokens or FILE_MAX_NEW_TOKENS,
        exit=plan.policy,
        stop_ids=plan.model.stop_ids,
        force=prompt.force,
    )


def traced_workload(plan: Plan, requests: Sequence[Request]) -> list[RecordedRequest]:
    """The recorded run of a trace file, on the prompts of this workload."""
    assert plan.trace is not None, "only called with a trace"
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
        for request in replayed(plan.trace, requests, where)
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

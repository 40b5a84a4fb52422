"""The recorded run: whose tokens and depths every timed mode is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdbench.bench.directory import RunDirectory
from cdbench.bench.equal import RecordedRequest
from cdbench.bench.findings import findings
from cdbench.bench.measurements import Measurements, Progress
from cdbench.bench.plan import Plan
from cdbench.bench.workload import TimedWork, recorded_workload
from cdbench.grammar import Mode, parse_depths
from cdbench.runtime.core import Request, RequestResult
from cdbench.schema import RequestRecord
from cdbench.workloads.synthetic_depths import with_depths

Results = dict[str, RequestResult]


def fix_work(
    plan: Plan,
    work: TimedWork,
    measured: Measurements,
    directory: RunDirectory,
    progress: Progress,
) -> None:
    """Fix what every timed run is given, tokens, depths and arrivals, and keep it on disk."""
    measured.workload = _record_work(plan, work, measured, directory, progress)
    everyone = work.arrivals.schedule(len(work.requests))
    # Who dropped out leaves a gap: the others still arrive when they were to.
    kept = {recorded.id for recorded in measured.workload}
    measured.arrivals = everyone.keeping([request.id in kept for request in work.requests])
    directory.keep_workload(measured.workload, measured.arrivals.offsets_s)


def _record_work(
    plan: Plan,
    work: TimedWork,
    measured: Measurements,
    directory: RunDirectory,
    progress: Progress,
) -> list[RecordedRequest]:
    """A trace file's recorded run, the live pass's, or one made now under ``cdb``.

    Where synthetic depths are asked for, they take the place of the recorded ones.
    """
    known = None
    if work.recorded is not None:
        recorded = list(work.recorded)
    else:
        known = _answered(measured, work.requests) if work.as_asked else None
        known = known or _run_live(plan, measured, work.requests, directory, progress)
        measured.refused = [r for q in work.requests if (r := known[q.id]).error is not None]
        recorded = recorded_workload(work.requests, known)
    measured.findings = findings(plan, work, recorded, known)
    depths = parse_depths(plan.config.workload.depths)
    if not depths.synthetic:
        return recorded
    # A gate called exits for the depths that are replaced.
    recorded = [replace(request, predicted_depths=None) for request in recorded]
    seed, floor = plan.config.workload.seed, plan.policy.min_loops
    return with_depths(recorded, depths, plan.max_loops, seed, floor)


def _answered(measured: Measurements, requests: Sequence[Request]) -> Results | None:
    """The live pass of the most adaptive mode, where it asked all of these."""
    for label in ("cdb", "lockstep", "static"):
        if label in measured.live:
            known = {r.id: r for r in measured.live[label].results}
            return known if all(r.id in known for r in requests) else None
    return None


def _run_live(
    plan: Plan,
    measured: Measurements,
    requests: Sequence[Request],
    directory: RunDirectory,
    progress: Progress,
) -> Results:
    progress.phase("recording tokens and depths", len(requests))
    known = {}
    for result in plan.engine(plan.subject(Mode("cdb"))).run(requests):
        known[result.id] = result
        progress.advance(1)
    if "cdb" not in measured.live:
        # Beside a live pass of that mode, lines of the same questions would be counted twice.
        directory.append_requests(
            RequestRecord.of(r, doc_id=r.doc_id, mode="cdb", work="live") for r in known.values()
        )
    return known

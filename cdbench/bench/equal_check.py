"""Whether timed runs, live or read back, did the recorded work."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from cdbench.bench.repeats import Repeat
from cdbench.metrics.trace import RunTrace
from cdbench.schema.workload import RecordedWork


def unequal_work(
    runs: Sequence[Repeat],
    workload: Sequence[RecordedWork],
    adaptive: Collection[str],
    own_vocabulary: Collection[str] = (),
) -> list[str]:
    """Why the timed runs did not do the recorded work; empty where they all did.

    Every token must be the workload's and, in the modes of ``adaptive``, every executed depth.
    Modes in ``own_vocabulary`` have the same text in other tokens: there only counts must agree.
    """
    wanted = {r.id: r for r in workload}
    reasons: dict[str, int] = {}
    for run in runs:
        mode = run.trace.mode
        for reason in _unequal_run(run.trace, wanted, mode in adaptive, mode in own_vocabulary):
            reasons[reason] = reasons.get(reason, 0) + 1
    return [f"{why} (in {n} repeats)" if n > 1 else why for why, n in reasons.items()]


def _unequal_run(
    trace: RunTrace, wanted: Mapping[str, RecordedWork], adaptive: bool, own_vocabulary: bool
) -> Iterator[str]:
    where = f"mode {trace.mode}"
    failed = [r for r in trace.requests if r.error is not None]
    if failed:
        yield f"{where}: {len(failed)} requests failed ({failed[0].error})"
    done = {r.id: r for r in trace.requests if r.error is None}
    if not done.keys() <= wanted.keys():
        yield f"{where}: served requests that are not in the workload"
        return
    counts = sum(len(r.tokens) for r in done.values())
    expected = sum(len(wanted[name].tokens) for name in done)
    if counts != expected or len(done) + len(failed) != len(wanted):
        yield f"{where}: {counts} output tokens instead of {expected}"
    elif not own_vocabulary and any(
        list(r.tokens) != list(wanted[name].tokens) for name, r in done.items()
    ):
        yield f"{where}: output tokens differ from the recorded ones"
    if adaptive and any(
        list(r.executed_depths) != list(wanted[name].executed_depths) for name, r in done.items()
    ):
        yield f"{where}: executed depths differ from the recorded ones"

"""Speed-ups between modes, block by block, and the FLOP bounds they are held against."""

from __future__ import annotations

from collections.abc import Sequence

from cdbench.bench.equal import RecordedRequest, TimedRun
from cdbench.bench.plan import Subject
from cdbench.metrics.bounds import (
    Bound,
    Scope,
    Speedup,
    flop_bound,
    flop_bound_paper,
    realised_flop,
)
from cdbench.metrics.rates import decode_wall_s
from cdbench.runtime.exits import RULES, Needs
from cdbench.schema import BoundRecord, Comparison, IntervalRecord
from cdbench.stats.blocks import BlockRun, geometric_mean, log_ratios

SCOPES: tuple[Scope, ...] = (Scope.E2E, Scope.DECODE)


def compare(runs: Sequence[TimedRun]) -> list[Comparison]:
    """Every mode over every other, in both scopes, block by block."""
    labels = list(dict.fromkeys(run.subject.label for run in runs))
    found = []
    for scope in SCOPES:
        walls = [
            BlockRun(run.block, run.subject.label, wall)
            for run in runs
            if (wall := _wall(run, scope)) is not None
        ]
        for mode in labels:
            for over in labels:
                logs = log_ratios(walls, mode, over) if mode != over else []
                interval = geometric_mean(logs)
                if interval is not None:
                    found.append(
                        Comparison(
                            mode=mode,
                            over=over,
                            scope=scope.value,
                            speedup=IntervalRecord.of(interval),
                            log_ratios=logs,
                        )
                    )
    return found


def _wall(run: TimedRun, scope: Scope) -> float | None:
    return run.trace.wall_s if scope is Scope.E2E else decode_wall_s(run.trace)


def flop_bounds(
    runs: Sequence[TimedRun],
    workload: Sequence[RecordedRequest],
    comparisons: Sequence[Comparison],
) -> dict[str, dict[str, BoundRecord]]:
    """The FLOP bounds of each timed adaptive mode, and the share realised in the same scope."""
    over_static = {
        c.mode: c.speedup
        for c in comparisons
        if c.over == "static" and c.scope == Scope.DECODE.value
    }
    adaptive = {run.subject.label: run.subject for run in runs if run.subject.adaptive}
    return {
        label: {
            bound.name: _bound_record(bound, label, over_static.get(label))
            for bound in _bounds(workload, subject)
        }
        for label, subject in adaptive.items()
    }


def _bounds(workload: Sequence[RecordedRequest], subject: Subject) -> list[Bound]:
    costs = subject.model.network.flops_per_token()
    reads_out = RULES[subject.policy.rule].needs is Needs.LOGITS
    later = [d for r in workload for d in r.requested_depths[1:]]
    if not later:
        return []
    every = [d for r in workload for d in r.requested_depths]
    loops = subject.max_loops
    return [
        flop_bound(costs, loops, sum(later) / len(later), readout_every_loop=reads_out),
        flop_bound_paper(costs, loops, sum(every) / len(every), readout_every_loop=reads_out),
    ]


def _bound_record(bound: Bound, label: str, speedup: IntervalRecord | None) -> BoundRecord:
    realised = None
    if speedup is not None and bound.name == "flop_bound" and speedup.estimate is not None:
        measured = Speedup(speedup.to_interval(), label, "static", Scope.DECODE)
        realised = IntervalRecord.of(realised_flop(measured, bound))
    return BoundRecord(
        value=bound.value, scope=bound.scope.value, realised=realised, note=bound.note
    )

"""Speed-ups between modes, block by block."""

from __future__ import annotations

from collections.abc import Sequence

from cdbench.bench.repeats import Repeat
from cdbench.metrics.bounds import Scope
from cdbench.metrics.rates import decode_wall_s
from cdbench.metrics.trace import Arrivals
from cdbench.schema import Comparison, IntervalRecord
from cdbench.stats.blocks import LEVEL, BlockRun, geometric_mean, log_ratios

PACED_BY_THE_ENGINE = frozenset({Arrivals.ALL_AT_ONCE, Arrivals.CLOSED_LOOP})
"""Elsewhere the wall is mostly the schedule's, and a ratio of walls says nothing."""

SCOPES: tuple[Scope, ...] = (Scope.E2E, Scope.DECODE)


def compare(runs: Sequence[Repeat], level: float = LEVEL) -> list[Comparison]:
    """Every mode over every other, in both scopes, block by block.

    None where requests arrive at times of their own: only latency, goodput and rates compare there.
    """
    if any(run.trace.arrivals not in PACED_BY_THE_ENGINE for run in runs):
        return []
    labels = list(dict.fromkeys(run.trace.mode for run in runs))
    found = []
    for scope in SCOPES:
        walls = [
            BlockRun(run.block, run.trace.mode, wall)
            for run in runs
            if (wall := _wall(run, scope)) is not None
        ]
        for mode in labels:
            for over in labels:
                logs = log_ratios(walls, mode, over) if mode != over else []
                interval = geometric_mean(logs, level)
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


def e2e_log_ratios(runs: Sequence[Repeat], mode: str, over: str) -> list[float]:
    """log(wall of ``over`` / wall of ``mode``) of each whole block so far, end to end."""
    return log_ratios(
        (BlockRun(run.block, run.trace.mode, run.trace.wall_s) for run in runs), mode, over
    )


def _wall(run: Repeat, scope: Scope) -> float | None:
    return run.trace.wall_s if scope is Scope.E2E else decode_wall_s(run.trace)

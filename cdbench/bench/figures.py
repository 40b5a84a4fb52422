"""The numbers of one mode: timed figures, histograms of depths, and those of its live pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdbench.bench.accuracy import right_or_wrong
from cdbench.bench.repeats import Answers, StoredRepeat, complete_blocks
from cdbench.metrics.depth import mean_depth_by_position
from cdbench.metrics.rates import decode_wall_s
from cdbench.metrics.registry import METRICS, Metric, sample_percentiles
from cdbench.metrics.trace import RequestTrace
from cdbench.schema import BlockRecord, IntervalRecord
from cdbench.stats.blocks import LEVEL, mean

PERCENTILES = (50, 90, 95, 99)

Measures = dict[str, float | None]


@dataclass(frozen=True)
class TimedFigures:
    """Means over the timed runs; intervals over blocks where a metric varies; percentiles."""

    metrics: Measures
    intervals: dict[str, IntervalRecord]
    percentiles: dict[str, Measures]


@dataclass(frozen=True)
class ModeFigures(TimedFigures):
    """Every number of a ``ModeResult``, by the names it has there."""

    live: Measures
    depth_histogram: list[int] | None
    depth_histogram_by_task: dict[str, list[int]]
    mean_depth_by_position: list[float]


def mode_figures(
    label: str,
    runs: Sequence[StoredRepeat],
    passes: Mapping[str, Answers],
    max_loops: int,
    level: float = LEVEL,
) -> ModeFigures:
    """The numbers of mode ``label``. Timed figures come from complete blocks only."""
    own = [run for run in complete_blocks(runs) if run.trace.mode == label]
    timed, passed = timed_figures(own, level), passes.get(label)
    if passed is not None:
        requests: Sequence[RequestTrace] | None = passed.results
    else:
        requests = own[0].trace.requests if own else None
    whole, by_task = histograms(requests, max_loops)
    return ModeFigures(
        metrics=timed.metrics,
        intervals=timed.intervals,
        percentiles=timed.percentiles,
        live=live_figures(passed, passes.get("static")) if passed is not None else {},
        depth_histogram=whole,
        depth_histogram_by_task=by_task,
        mean_depth_by_position=list(mean_depth_by_position(requests or (), max_loops)),
    )


def timed_figures(runs: Sequence[StoredRepeat], level: float = LEVEL) -> TimedFigures:
    """The figures of one mode's timed runs; empty without one."""
    if not runs:
        return TimedFigures({}, {}, {})
    each = [run.figures for run in runs]
    metrics = {name: _mean([figures[name] for figures in each]) for name in METRICS}
    intervals = {}
    for name in METRICS:
        by_block = _by_block(runs, [figures[name] for figures in each])
        if len(set(by_block)) > 1 and (interval := mean(by_block, level)) is not None:
            intervals[name] = IntervalRecord.of(interval)
    percentiles = {
        name: _percentiles(metric, runs)
        for name, metric in METRICS.items()
        if metric.samples is not None
    }
    return TimedFigures(metrics, intervals, percentiles)


def _percentiles(metric: Metric, runs: Sequence[StoredRepeat]) -> Measures:
    """Mean over the runs of each percentile of a latency."""
    each = [sample_percentiles(metric, run.trace, PERCENTILES) for run in runs]
    return {
        f"p{q}": _mean(of_runs)
        for q, of_runs in zip(PERCENTILES, zip(*each, strict=True), strict=True)
    }


def block_record(run: StoredRepeat) -> BlockRecord:
    """One timed run as ``result.json`` lists it."""
    return BlockRecord(
        index=run.block,
        order=run.order,
        mode=run.trace.mode,
        wall_s=run.trace.wall_s,
        decode_wall_s=decode_wall_s(run.trace),
        metrics=run.figures,
    )


def histograms(
    requests: Sequence[RequestTrace] | None, max_loops: int
) -> tuple[list[int] | None, dict[str, list[int]]]:
    """Executed depths of later tokens, whole and by task; of the live pass where there is one."""
    if requests is None:
        return None, {}
    whole = [0] * max_loops
    by_task: dict[str, list[int]] = {}
    for request in requests:
        task = by_task.setdefault(request.task or "", [0] * max_loops)
        for depth in request.executed_depths[1:]:
            whole[depth - 1] += 1
            task[depth - 1] += 1
    return whole, {name: counts for name, counts in by_task.items() if name}


def live_figures(passed: Answers, static: Answers | None) -> Measures:
    """Figures of a live pass. None of them is a time: live wall times never form a ratio."""
    results, right = passed.results, right_or_wrong(passed.samples)
    scored = [depth for s in passed.samples for depth in s.later_depths("scored")]
    scored_tokens = sum(sample.scored_tokens for sample in passed.samples)
    later = [d for r in results for d in r.executed_depths[1:]]
    requested = [d for r in results for d in r.requested_depths[1:]]
    return {
        "questions": len(passed.samples),
        "accuracy": sum(right) / len(right) if right else None,
        "mean_depth": sum(later) / len(later) if later else None,
        "requested_depth": sum(requested) / len(requested) if requested else None,
        "mean_output_tokens": sum(len(r.tokens) for r in results) / len(results)
        if results
        else None,
        "length_ratio": length_ratio(passed, static),
        # Outputs that ran into the length limit: their answers may be cut off.
        "capped_outputs": sum(r.finish_reason == "length" for r in results),
        # Given texts that were scored: apart from generated ones, and in no rate.
        "scored_tokens": scored_tokens,
        "scored_mean_depth": sum(scored) / len(scored) if scored else None,
        "prefix_hit_rate": passed.prefix_hit_rate,
        "preemptions": passed.preemptions,
    }


def length_ratio(passed: Answers, static: Answers | None) -> float | None:
    """Mean output length over static's, on the questions both answered."""
    if static is None:
        return None
    lengths = {r.id: len(r.tokens) for r in static.results}
    shared = [r for r in passed.results if r.id in lengths]
    base = sum(lengths[r.id] for r in shared)
    return sum(len(r.tokens) for r in shared) / base if base else None


def _by_block(runs: Sequence[StoredRepeat], values: Sequence[float | None]) -> list[float]:
    blocks: dict[int, list[float]] = {}
    for run, value in zip(runs, values, strict=True):
        if value is not None:
            blocks.setdefault(run.block, []).append(value)
    return [sum(found) / len(found) for found in blocks.values()]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None

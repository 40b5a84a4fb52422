"""Metrics and speed-ups of two runs, mode by mode, with intervals and verdicts.

Two stored runs were not interleaved, so their blocks are two groups (Welch), and whatever the
machine did between them is in no interval. A change of a time is therefore called one only where it
lies beyond a margin as well. A ratio between modes of one run carries from run to run, and needs no
margin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from cdbench.compare.sides import Side
from cdbench.metrics.registry import METRICS, Metric
from cdbench.schema import Comparison, IntervalRecord, ModeResult
from cdbench.schema.comparing import BoundChange, Change, MetricChange, SpeedupChange
from cdbench.stats.blocks import LEVEL
from cdbench.stats.gains import Gain, unpaired_gain

OTHER_WORK = "other work"
OTHER_MACHINE = "another machine"
INVALID_RUN = "an INVALID run"
REASONS = frozenset({OTHER_WORK, OTHER_MACHINE, INVALID_RUN})
"""Why no time of a whole comparison is judged."""


def metric_changes(
    base: Side, run: Side, labels: Sequence[str], margin: float, reason: str | None
) -> Iterator[MetricChange]:
    """Every metric that both sides timed. ``reason``: why no verdict may be given, if so."""
    for label in labels:
        why = reason or unlike(base.result.modes[label], run.result.modes[label])
        for metric in METRICS.values():
            found = _metric_change(base, run, label, metric, margin, why)
            if found is not None:
                yield found


def speedup_changes(
    base: Side, run: Side, labels: Sequence[str], reason: str | None
) -> Iterator[SpeedupChange]:
    """Every speed-up that both sides have."""
    theirs = {(c.mode, c.over, c.scope): c for c in base.result.comparisons}
    for own in run.result.comparisons:
        other = theirs.get((own.mode, own.over, own.scope))
        if other is None or not {own.mode, own.over} <= set(labels):
            continue
        why = reason or next(
            (
                found
                for label in (own.mode, own.over)
                if (found := unlike(base.result.modes[label], run.result.modes[label]))
            ),
            None,
        )
        yield _speedup_change(other, own, why)


def bound_changes(base: Side, run: Side, labels: Sequence[str]) -> Iterator[BoundChange]:
    """Every bound that both sides have, with what each realised of it."""
    for label in labels:
        theirs, ours = base.result.bounds.get(label, {}), run.result.bounds.get(label, {})
        for name in theirs:
            if name in ours:
                yield BoundChange(
                    mode=label,
                    bound=name,
                    base=theirs[name].value,
                    run=ours[name].value,
                    base_realised=theirs[name].realised,
                    run_realised=ours[name].realised,
                )


def unlike(base: ModeResult, run: ModeResult) -> str | None:
    """Why a mode of two runs is not one thing; None where it is."""
    if base.max_loops != run.max_loops:
        return f"R {base.max_loops} against {run.max_loops}"
    if base.model != run.model:
        return f"{base.model} against {run.model}"
    if base.schedule != run.schedule:
        return f"{base.schedule} against {run.schedule}"
    return None


def change_of(gain: Gain, margin: float = 0.0) -> Change:
    """What a gain amounts to: its 95 % interval excludes none, and it lies beyond the margin.

    A gain and its opposite get opposite answers.
    """
    interval = gain.interval(LEVEL)
    if not interval.defined or 1.0 in interval or abs(gain.log_mean) <= math.log1p(margin):
        return "~"
    return "better" if gain.log_mean > 0 else "worse"


def metric_gain(base: Sequence[float], run: Sequence[float], direction: str) -> Gain | None:
    """How much better ``run`` is, from values a block each; None where one is not above 0."""
    if direction == "none" or not base or not run or min(*base, *run) <= 0:
        return None
    logs = [[math.log(value) for value in values] for values in (base, run)]
    gain = unpaired_gain(*logs)
    return gain if gain is None or direction == "up" else gain.turned


def is_exact(base: Sequence[float], run: Sequence[float]) -> bool:
    """Whether a metric did not vary between blocks on either side, so that it has no noise."""
    return bool(base and run) and len(set(base)) == 1 and len(set(run)) == 1


def _metric_change(
    base: Side, run: Side, label: str, metric: Metric, margin: float, reason: str | None
) -> MetricChange | None:
    theirs = base.result.modes[label].metrics.get(metric.name)
    ours = run.result.modes[label].metrics.get(metric.name)
    if theirs is None and ours is None:
        return None
    values = [side.block_values.get(label, {}).get(metric.name, []) for side in (base, run)]
    exact = is_exact(values[0], values[1])
    change = MetricChange(
        mode=label,
        metric=metric.name,
        unit=metric.unit,
        direction=metric.direction,
        base=theirs,
        run=ours,
        exact=exact,
    )
    if theirs is None or ours is None:
        return change.model_copy(update={"note": "undefined on one side"})
    if reason == OTHER_WORK:
        return change.model_copy(update={"note": reason})
    gain = metric_gain(
        values[0], values[1], "up" if metric.direction == "none" else metric.direction
    )
    if exact:
        return _exact_change(change, theirs, ours, reason)
    if gain is None:
        return change.model_copy(update={"note": "not above 0: no ratio"})
    shown = gain if metric.direction != "down" else gain.turned
    verdict = None if reason or metric.direction == "none" else change_of(gain, margin)
    return change.model_copy(
        update={
            "ratio": IntervalRecord.of(shown.interval(LEVEL)),
            "verdict": verdict,
            "note": reason,
        }
    )


def _exact_change(
    change: MetricChange, base: float, run: float, reason: str | None
) -> MetricChange:
    verdict: Change | None = None
    if reason is None and change.direction != "none":
        better = run > base if change.direction == "up" else run < base
        verdict = "~" if run == base else ("better" if better else "worse")
    ratio = IntervalRecord(estimate=run / base, n=1) if base > 0 else None
    return change.model_copy(update={"ratio": ratio, "verdict": verdict, "note": reason})


def _speedup_change(base: Comparison, run: Comparison, reason: str | None) -> SpeedupChange:
    change = SpeedupChange(
        mode=run.mode,
        over=run.over,
        scope=run.scope,
        base=base.speedup,
        run=run.speedup,
        note=reason,
    )
    gain = unpaired_gain(base.log_ratios, run.log_ratios)
    if gain is None or reason == OTHER_WORK:
        return change
    return change.model_copy(
        update={
            "ratio": IntervalRecord.of(gain.interval(LEVEL)),
            "verdict": None if reason else change_of(gain),
        }
    )

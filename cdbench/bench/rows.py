"""One mode's part of the result: how it ran, its figures, and what must be said beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cdbench.bench.equal import TimedRun
from cdbench.bench.live import LivePass
from cdbench.bench.plan import UNROLLED, Plan, Subject
from cdbench.bench.session import Measurements
from cdbench.metrics.registry import METRICS, evaluate, sample_percentile
from cdbench.runtime.core import ExitPolicy
from cdbench.schema import ExitSettings, IntervalRecord, ModeResult
from cdbench.stats.blocks import mean

PERCENTILES = (50, 90, 95, 99)
LENGTH_DRIFT = 0.10
"""A live mean output length this far from static's is flagged: less text is not speed."""


def exit_settings(policy: ExitPolicy) -> ExitSettings:
    """The exit policy as the result records it."""
    return ExitSettings(
        rule=policy.rule,
        threshold=policy.threshold,
        min_loops=policy.min_loops,
        lag=policy.lag,
        depth=policy.depth,
    )


def complete_blocks(runs: Sequence[TimedRun]) -> list[TimedRun]:
    """The runs of blocks in which every mode ran twice: a torn block favours whoever is in it."""
    places = max((run.order for run in runs if run.block == 0), default=-1) + 1
    sizes = Counter(run.block for run in runs)
    return [run for run in runs if sizes[run.block] == places]


def mode_result(plan: Plan, measured: Measurements, label: str) -> ModeResult:
    subject = measured.subjects[label]
    runs = [run for run in complete_blocks(measured.timed) if run.subject.label == label]
    passed = measured.live.get(label)
    metrics, intervals, percentiles = _timed_figures(runs)
    histogram, by_task = _histograms(runs, passed, subject)
    return ModeResult(
        schedule=subject.mode.kind,
        model=subject.model.name,
        exit=exit_settings(subject.policy),
        max_loops=subject.max_loops,
        note=_note(plan, measured, subject),
        metrics=metrics,
        intervals=intervals,
        percentiles=percentiles,
        live=_live_figures(measured, passed),
        depth_histogram=histogram,
        depth_histogram_by_task=by_task,
    )


def _timed_figures(
    runs: Sequence[TimedRun],
) -> tuple[dict[str, float | None], dict[str, IntervalRecord], dict[str, dict[str, float | None]]]:
    """Means over the timed runs; intervals over blocks where a metric varies; percentiles."""
    if not runs:
        return {}, {}, {}
    each = [evaluate(run.trace) for run in runs]
    metrics = {name: _mean([figures[name] for figures in each]) for name in METRICS}
    intervals = {}
    for name in METRICS:
        by_block = _by_block(runs, [figures[name] for figures in each])
        if len(set(by_block)) > 1 and (interval := mean(by_block)) is not None:
            intervals[name] = IntervalRecord.of(interval)
    percentiles = {
        name: {
            f"p{q}": _mean([sample_percentile(metric, run.trace, q) for run in runs])
            for q in PERCENTILES
        }
        for name, metric in METRICS.items()
        if metric.samples is not None
    }
    return metrics, intervals, percentiles


def _by_block(runs: Sequence[TimedRun], values: Sequence[float | None]) -> list[float]:
    blocks: dict[int, list[float]] = {}
    for run, value in zip(runs, values, strict=True):
        if value is not None:
            blocks.setdefault(run.block, []).append(value)
    return [sum(found) / len(found) for found in blocks.values()]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _histograms(
    runs: Sequence[TimedRun], passed: LivePass | None, subject: Subject
) -> tuple[list[int] | None, dict[str, list[int]]]:
    """Executed depths of later tokens: of the live pass where there is one, else of the replay."""
    if passed is not None:
        results = passed.results
    elif runs:
        results = runs[0].results
    else:
        return None, {}
    whole = [0] * subject.max_loops
    by_task: dict[str, list[int]] = {}
    for result in results:
        task = by_task.setdefault(result.task or "", [0] * subject.max_loops)
        for depth in result.executed_depths[1:]:
            whole[depth - 1] += 1
            task[depth - 1] += 1
    return whole, {name: counts for name, counts in by_task.items() if name}


def _live_figures(measured: Measurements, passed: LivePass | None) -> dict[str, float | None]:
    if passed is None:
        return {}
    later = [d for r in passed.results for d in r.executed_depths[1:]]
    requested = [d for r in passed.results for d in r.requested_depths[1:]]
    static = measured.live.get("static")
    return {
        "questions": len(passed.documents),
        "accuracy": passed.accuracy,
        "mean_depth": sum(later) / len(later) if later else None,
        "requested_depth": sum(requested) / len(requested) if requested else None,
        "mean_output_tokens": passed.mean_output_tokens,
        "length_ratio": _length_ratio(passed, static),
        "capped_outputs": passed.capped,
        "prefix_hit_rate": passed.prefix_hit_rate,
        "preemptions": passed.preemptions,
    }


def _length_ratio(passed: LivePass, static: LivePass | None) -> float | None:
    """Mean output length over static's, on the questions both answered."""
    if static is None:
        return None
    lengths = {r.id: len(r.tokens) for r in static.results}
    shared = [r for r in passed.results if r.id in lengths]
    base = sum(lengths[r.id] for r in shared)
    return sum(len(r.tokens) for r in shared) / base if base else None


def _note(plan: Plan, measured: Measurements, subject: Subject) -> str | None:
    notes = []
    auto = measured.auto
    if subject.label == "static@auto" and auto is not None:
        tried = ", ".join(f"{d} loops {share:.1%}" for d, share in auto.tried.items())
        if auto.depth == plan.max_loops:
            notes.append(
                f"on {auto.chosen_on} questions no smaller fixed depth is within 1 point of full "
                f"depth ({auto.full_accuracy:.1%}; smaller: {tried or 'none'}): static@auto is "
                "static, judged on the other questions and not timed twice"
            )
        else:
            notes.append(
                f"static@{auto.depth}, chosen on {auto.chosen_on} questions ({tried}; full depth "
                f"{auto.full_accuracy:.1%}) and judged on the others"
            )
    if subject.label in measured.characters_per_token:
        notes.append(
            f"another vocabulary: the same text cut or repeated to the same token counts, "
            f"{measured.characters_per_token[subject.label]:.2f} characters per token"
        )
    if subject.mode.dense == UNROLLED:
        notes.append(
            f"the same model with {plan.max_loops} copies of its core: what it would cost if its "
            "loops did not share weights"
        )
    if subject.model.weight_seed is not None:
        notes.append(f"random weights (seed {subject.model.weight_seed})")
    passed = measured.live.get(subject.label)
    drift = _length_ratio(passed, measured.live.get("static")) if passed else None
    if drift is not None and abs(drift - 1) > LENGTH_DRIFT:
        notes.append(f"its own outputs are {drift:.2f} times as long as static's")
    return "; ".join(notes) or None

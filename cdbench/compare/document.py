"""Two sides put together: everything that compares them, and the plain words that end it."""

from __future__ import annotations

from cdbench.compare.answers import accuracy_changes, histogram_changes, live_changes, unjudged
from cdbench.compare.fairness import differences_of
from cdbench.compare.sentences import sentences
from cdbench.compare.sides import Side
from cdbench.compare.timed import (
    INVALID_RUN,
    OTHER_MACHINE,
    OTHER_WORK,
    bound_changes,
    metric_changes,
    speedup_changes,
)
from cdbench.errors import UsageError
from cdbench.schema import ModelFacts, Result, Workload
from cdbench.schema.comparing import ComparisonDocument, DifferenceRecord, SideRecord
from cdbench.stats.gate import DEFAULT_MARGIN


def compare_sides(base: Side, run: Side, margin: float = DEFAULT_MARGIN) -> ComparisonDocument:
    """A run against a base, number by number.

    Raises:
        UsageError: they have no mode in common.
    """
    labels = [label for label in run.result.modes if label in base.result.modes]
    if not labels:
        raise UsageError(
            f"{run.name}: has no mode of {base.name} ({', '.join(run.result.modes) or 'none'} "
            f"against {', '.join(base.result.modes) or 'none'}); run the same modes"
        )
    found = differences_of(base.result, run.result)
    invalid = [side for side in (base, run) if side.result.validity.verdict == "INVALID"]
    reason = _reason(found) or (INVALID_RUN if invalid else None)
    answers = list(accuracy_changes(base, run, labels))
    if any(side.result.validity.beyond_times for side in invalid):
        answers = [unjudged(change) for change in answers]
    document = ComparisonDocument(
        base=side_record(base),
        run=side_record(run),
        verdict="INVALID" if invalid else _verdict(reason),
        margin=margin,
        differences=found,
        metrics=list(metric_changes(base, run, labels, margin, reason)),
        speedups=list(speedup_changes(base, run, labels, reason)),
        bounds=list(bound_changes(base, run, labels)),
        accuracy=answers,
        live=list(live_changes(base, run, labels)),
        histograms=list(histogram_changes(base, run, labels)),
        missing=_missing(base, run),
    )
    return document.model_copy(update={"sentences": sentences(document)})


def side_record(side: Side) -> SideRecord:
    """What must be known of a side before its numbers are read."""
    result = side.result
    return SideRecord(
        name=side.name,
        started_utc=result.manifest.started_utc,
        verdict=result.validity.verdict,
        reasons=result.validity.reasons,
        status=result.status,
        model=result.model.name if result.model is not None else None,
        workload=result.workload.hash if result.blocks else "",
        blocks=len({run.index for run in result.blocks}),
        marks=[*marks(result.model, result.workload), *_looked(result)],
        rechecked=side.rechecked,
    )


def marks(model: ModelFacts | None, workload: Workload) -> list[str]:
    """What of a run is not a model's own doing on its own text."""
    found = []
    if model is not None and model.random_weights_seed is not None:
        found.append("RANDOM WEIGHTS")
    if workload.synthetic:
        found.append(f"SYNTHETIC depths: {workload.synthetic}")
    if workload.replayed:
        found.append(f"replayed {', '.join(workload.replayed)}")
    return found


def _looked(result: Result) -> list[str]:
    if result.looks is None:
        return []
    return ["stopped at one of several looks: its intervals are wider than the plain ones here"]


def _reason(found: list[DifferenceRecord]) -> str | None:
    """Why the times of two VALID runs may not be judged; None where they may."""
    effects = {difference.effect for difference in found}
    if "work" in effects:
        return OTHER_WORK
    return OTHER_MACHINE if "machine" in effects else None


def _verdict(reason: str | None) -> str:
    return {None: "comparable", OTHER_WORK: "other work"}.get(reason, "unfair")


def _missing(base: Side, run: Side) -> list[str]:
    return [
        f"{label}: only in {side.name}"
        for side, other in ((base, run), (run, base))
        for label in side.result.modes
        if label not in other.result.modes
    ]

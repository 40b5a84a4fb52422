"""Accuracy and exit depths of two runs, question by question where both kept their samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from cdbench.compare.sides import Side
from cdbench.schema import AgreementRecord, IntervalRecord, PairedRecord, SampleRecord
from cdbench.schema.comparing import AccuracyChange, AccuracyVerdict, HistogramChange, LiveChange
from cdbench.stats.agreement import compare_texts
from cdbench.stats.blocks import mean
from cdbench.stats.distributions import distance_test
from cdbench.stats.paired import DEFAULT_DELTA, compare_paired, paired_difference

BASE = "the base"
Key = tuple[str, int]
Pairs = Sequence[tuple[SampleRecord, SampleRecord]]

LIVE_FIGURES = (
    "questions",
    "mean_depth",
    "requested_depth",
    "scored_mean_depth",
    "mean_output_tokens",
    "length_ratio",
    "capped_outputs",
)


def accuracy_changes(
    base: Side, run: Side, labels: Sequence[str], delta: float = DEFAULT_DELTA
) -> Iterator[AccuracyChange]:
    """Every mode that both sides asked: all tasks together, then each of them."""
    if base.result.accuracy is None or run.result.accuracy is None:
        return
    for label in labels:
        theirs = base.result.accuracy.modes.get(label)
        ours = run.result.accuracy.modes.get(label)
        if theirs is None or ours is None:
            continue
        pairs = shared_pairs(base, run, label)
        binary = [task for task in ours.by_task if task in theirs.by_task]
        pooled = [pair for pair in pairs if pair[0].task in binary]
        yield _change(label, None, (theirs.rate, ours.rate), pooled, True, delta)
        for task in ours.tasks:
            if task in theirs.tasks:
                own = [pair for pair in pairs if pair[0].task == task]
                rates = (theirs.tasks[task].rate, ours.tasks[task].rate)
                yield _change(label, task, rates, own, task in binary, delta)


def unjudged(change: AccuracyChange) -> AccuracyChange:
    """The same without what may not be said of an INVALID run's answers."""
    nothing = {"paired": None, "difference": None, "verdict": None}
    return change.model_copy(update={**nothing, "note": "an INVALID run"})


def shared_pairs(base: Side, run: Side, label: str) -> list[tuple[SampleRecord, SampleRecord]]:
    """(base, run) samples of the questions that a mode was asked on both sides, word for word."""
    theirs, ours = base.samples.get(label, {}), run.samples.get(label, {})
    return [
        (theirs[key], sample)
        for key, sample in sorted(ours.items())
        if key in theirs and theirs[key].prompt_hash == sample.prompt_hash
    ]


def histogram_changes(base: Side, run: Side, labels: Sequence[str]) -> Iterator[HistogramChange]:
    """Executed depths of the modes that both sides have, whole and by task."""
    for label in labels:
        theirs, ours = base.result.modes[label], run.result.modes[label]
        whole = (theirs.depth_histogram, ours.depth_histogram)
        if not whole[0] or not whole[1] or theirs.max_loops == ours.max_loops == 1:
            continue
        depths = tuple(_depths(side.samples.get(label, {})) for side in (base, run))
        yield _histogram(label, None, whole[0], whole[1], depths)
        for task, counts in ours.depth_histogram_by_task.items():
            other = theirs.depth_histogram_by_task.get(task)
            if other is not None:
                of_task = tuple(
                    _depths({k: s for k, s in side.samples.get(label, {}).items() if k[0] == task})
                    for side in (base, run)
                )
                yield _histogram(label, task, other, counts, of_task)


def live_changes(base: Side, run: Side, labels: Sequence[str]) -> Iterator[LiveChange]:
    """Lengths and depths of the live passes: the model's own text, so no times."""
    for label in labels:
        theirs, ours = base.result.modes[label].live, run.result.modes[label].live
        for name in LIVE_FIGURES:
            if theirs.get(name) is not None and ours.get(name) is not None:
                yield LiveChange(mode=label, figure=name, base=theirs[name], run=ours[name])


def _change(
    label: str,
    task: str | None,
    rates: tuple[IntervalRecord | None, IntervalRecord | None],
    pairs: Pairs,
    binary: bool,
    delta: float,
) -> AccuracyChange:
    values = [
        (one.value, other.value)
        for one, other in pairs
        if one.value is not None and other.value is not None
    ]
    change = AccuracyChange(
        mode=label,
        task=task,
        base=rates[0],
        run=rates[1],
        shared=len(values),
        agreement=_agreement(pairs),
    )
    if not values:
        why = "no question that both sides kept a sample of: rates alone are never compared"
        return change.model_copy(update={"note": why})
    if not binary:
        found = mean([b - a for a, b in values])
        difference = None if found is None else IntervalRecord.of(found)
        return change.model_copy(update={"difference": difference})
    paired = compare_paired([a == 1 for a, _ in values], [b == 1 for _, b in values], delta)
    if paired is None:
        return change
    verdict = two_sided(paired.lost, paired.gained, paired.n, delta)
    record = PairedRecord.of(paired, BASE)
    return change.model_copy(update={"paired": record, "verdict": verdict})


def two_sided(lost: int, gained: int, n: int, delta: float) -> AccuracyVerdict:
    """Whether two sides are within δ of one another, or which is better beyond it.

    ``within`` by the 90 % interval (two one-sided tests at 5 %), better and worse by the 95 % one.
    Swapped sides get the mirrored answer.
    """
    narrow = paired_difference(lost, gained, n, level=0.90)
    wide = paired_difference(lost, gained, n, level=0.95)
    assert narrow.low is not None
    assert narrow.high is not None
    assert wide.low is not None
    assert wide.high is not None
    if wide.low > delta:
        return "better"
    if wide.high < -delta:
        return "worse"
    return "within" if -delta < narrow.low and narrow.high < delta else "cannot tell"


def _agreement(pairs: Pairs) -> AgreementRecord | None:
    texts = [
        (one, other)
        for theirs, ours in pairs
        for one, other in zip(theirs.texts, ours.texts, strict=False)
    ]
    found = compare_texts(texts)
    return None if found is None else AgreementRecord(over=BASE, **vars(found))


def _depths(samples: Mapping[Key, SampleRecord]) -> list[list[int]]:
    """Executed depths of the generated later tokens, one list a question."""
    return [found for s in samples.values() if (found := s.later_depths("generated"))]


def _histogram(
    label: str,
    task: str | None,
    base: list[int],
    run: list[int],
    depths: tuple[list[list[int]], ...],
) -> HistogramChange:
    by_chance = p_value = None
    distance = _distance(base, run)
    if all(depths):
        _, by_chance, p_value = distance_test(*depths)
    return HistogramChange(
        mode=label,
        task=task,
        base=base,
        run=run,
        distance=distance,
        by_chance=by_chance,
        p_value=p_value,
    )


def _distance(base: Sequence[int], run: Sequence[int]) -> float | None:
    """Half the sum over depths of |share - share|; None where a side has no token."""
    if not sum(base) or not sum(run):
        return None
    deepest = max(len(base), len(run))
    shares = [
        [count / sum(counts) for count in (*counts, *[0] * (deepest - len(counts)))]
        for counts in (base, run)
    ]
    return math.fsum(abs(a - b) for a, b in zip(*shares, strict=True)) / 2

"""Accuracy of every mode against full depth, question by question, from the samples alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from cdbench.bench.repeats import Answers
from cdbench.schema import (
    Accuracy,
    AgreementRecord,
    IntervalRecord,
    ModeAccuracy,
    PairedRecord,
    SampleRecord,
    TaskAccuracy,
    samples_file,
)
from cdbench.stats.agreement import compare_texts
from cdbench.stats.blocks import mean
from cdbench.stats.paired import compare_paired, wilson

BASELINE = "static"

Samples = Sequence[SampleRecord]
Key = tuple[str, int]


def accuracy_of(
    passes: Mapping[str, Answers], questions_hash: str | None = None
) -> Accuracy | None:
    """Rates and paired differences over ``static``; None without a live pass."""
    if not passes:
        return None
    binary = _binary_tasks([s for passed in passes.values() for s in passed.samples])
    static = passes.get(BASELINE)
    base = {s.key: s for s in static.samples} if static is not None else {}
    return Accuracy(
        baseline=BASELINE if static is not None else None,
        questions=questions_hash,
        modes={
            label: _mode_accuracy(label, passed.samples, base, binary)
            for label, passed in passes.items()
        },
    )


def sample_files(passes: Mapping[str, Answers]) -> dict[str, str]:
    """Task → the file with its samples, of every task that a mode was asked."""
    tasks = {sample.task for passed in passes.values() for sample in passed.samples}
    return {task: samples_file(task) for task in sorted(tasks)}


def right_or_wrong(samples: Samples) -> list[bool]:
    """The answers among these that are either, of tasks whose metric is nothing else."""
    binary = _binary_tasks(samples)
    return [s.value == 1 for s in samples if s.task in binary and s.value is not None]


def _binary_tasks(samples: Samples) -> set[str]:
    """Tasks whose primary metric is 0 or 1, and 1 is right, for every question of every mode."""
    values: dict[str, list[float | None]] = defaultdict(list)
    for sample in samples:
        worse = sample.higher_is_better is False
        values[sample.task].append(math.nan if worse else sample.value)
    return {
        task
        for task, found in values.items()
        if any(v is not None for v in found) and all(v in (None, 0, 1) for v in found)
    }


def _mode_accuracy(
    label: str, samples: Samples, base: Mapping[Key, SampleRecord], binary: set[str]
) -> ModeAccuracy:
    by_task: dict[str, list[SampleRecord]] = defaultdict(list)
    for sample in samples:
        by_task[sample.task].append(sample)
    pooled = [s for s in samples if s.task in binary]
    rates = {task: _rate(found) for task, found in sorted(by_task.items()) if task in binary}
    return ModeAccuracy(
        rate=_rate(pooled),
        by_task={task: rate for task, rate in rates.items() if rate is not None},
        paired=_paired(label, pooled, base),
        adaptive=any(sample.eligible_depths for sample in samples),
        early_first_tokens=sum(_read_early(samples)),
        tasks={
            task: _task_accuracy(label, found, base, task in binary)
            for task, found in sorted(by_task.items())
        },
    )


def _task_accuracy(
    label: str, samples: Samples, base: Mapping[Key, SampleRecord], binary: bool
) -> TaskAccuracy:
    metric, _, chain = samples[0].primary.partition(",")
    eligible = [depth for sample in samples for depth in sample.eligible_depths]
    answers = [answer for sample in samples for answer in sample.answers]
    values = [s.value for s in samples if s.value is not None]
    read, early = [loop for s in samples for loop, _ in s.first_loops], _read_early(samples)
    return TaskAccuracy(
        metric=metric,
        filter=chain,
        rate=_rate(samples) if binary else _interval(values),
        paired=_paired(label, samples, base) if binary else None,
        difference=None if binary else _difference(label, samples, base),
        adaptive=bool(eligible),
        eligible_tokens=len(eligible),
        mean_depth=sum(eligible) / len(eligible) if eligible else None,
        early_first_tokens=sum(early),
        first_token_loop=sum(read) / len(read) if any(early) else None,
        scored_tokens=sum(sample.scored_tokens for sample in samples),
        capped=sum(answer.capped for answer in answers),
        unparseable=sum(sample.unparseable for sample in samples),
        cut=sum(any(a.cut_tokens for a in sample.answers) for sample in samples),
        failed=sum(sample.failed for sample in samples),
        agreement=_agreement(label, samples, base),
    )


def _read_early(samples: Samples) -> list[bool]:
    """Of every first token, whether a rule picked a loop before the last that ran."""
    return [read < ran for sample in samples for read, ran in sample.first_loops]


def _rate(samples: Samples) -> IntervalRecord | None:
    values = [s.value for s in samples if s.value is not None]
    found = wilson(sum(v == 1 for v in values), len(values))
    return None if found is None else IntervalRecord.of(found)


def _interval(values: Sequence[float]) -> IntervalRecord | None:
    found = mean(values)
    return None if found is None else IntervalRecord.of(found)


def _pairs(
    label: str, samples: Samples, base: Mapping[Key, SampleRecord]
) -> list[tuple[float, float]]:
    """(baseline, mode) values of the questions that have one in both."""
    if label == BASELINE:
        return []
    shared = [(base[s.key].value, s.value) for s in samples if s.key in base]
    return [(b, v) for b, v in shared if b is not None and v is not None]


def _paired(label: str, samples: Samples, base: Mapping[Key, SampleRecord]) -> PairedRecord | None:
    pairs = _pairs(label, samples, base)
    found = compare_paired([b == 1 for b, _ in pairs], [v == 1 for _, v in pairs])
    return PairedRecord.of(found, BASELINE) if found is not None else None


def _difference(
    label: str, samples: Samples, base: Mapping[Key, SampleRecord]
) -> IntervalRecord | None:
    return _interval([v - b for b, v in _pairs(label, samples, base)])


def _agreement(
    label: str, samples: Samples, base: Mapping[Key, SampleRecord]
) -> AgreementRecord | None:
    """Against the baseline's texts; None where the tokens are another vocabulary's or none."""
    if label == BASELINE or label.startswith("dense:"):
        return None
    pairs = [
        (theirs, ours)
        for s in samples
        if s.key in base
        for theirs, ours in zip(base[s.key].texts, s.texts, strict=False)
    ]
    found = compare_texts(pairs)
    return None if found is None else AgreementRecord(over=BASELINE, **vars(found))

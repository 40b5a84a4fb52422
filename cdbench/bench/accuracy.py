"""Accuracy of every mode against full depth, question by question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdbench.bench.repeats import Answers
from cdbench.schema import Accuracy, IntervalRecord, ModeAccuracy, PairedRecord
from cdbench.stats.paired import compare_paired, wilson


def accuracy_of(passes: Mapping[str, Answers]) -> Accuracy | None:
    """Rates and paired differences over ``static``; None without a live pass."""
    if not passes:
        return None
    static = passes.get("static")
    base = {}
    if static is not None:
        base = {r.id: right for r, right in zip(static.results, static.right, strict=True)}
    return Accuracy(
        baseline="static" if static is not None else None,
        modes={label: _mode_accuracy(label, passed, base) for label, passed in passes.items()},
    )


def _mode_accuracy(label: str, passed: Answers, base: dict[str, bool]) -> ModeAccuracy:
    by_task: dict[str, list[bool]] = {}
    for result, right in zip(passed.results, passed.right, strict=True):
        by_task.setdefault(result.task or "", []).append(right)
    pairs = [
        (base[r.id], right)
        for r, right in zip(passed.results, passed.right, strict=True)
        if r.id in base
    ]
    paired = None
    if label != "static" and pairs:
        paired = compare_paired([b for b, _ in pairs], [r for _, r in pairs])
    return ModeAccuracy(
        rate=_rate(passed.right),
        by_task={task: _rate(right) for task, right in sorted(by_task.items())},
        paired=PairedRecord.of(paired, "static") if paired is not None else None,
        adaptive=any(len(r.tokens) > 1 for r in passed.results),
    )


def _rate(right: Sequence[bool]) -> IntervalRecord:
    interval = wilson(sum(right), len(right))
    assert interval is not None, "a live pass has at least one question"
    return IntervalRecord.of(interval)

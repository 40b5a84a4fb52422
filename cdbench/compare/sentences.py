"""What a comparison means, in a few plain sentences that follow from its intervals alone."""

from __future__ import annotations

from collections.abc import Iterator

from cdbench.render.formats import ratio
from cdbench.schema import IntervalRecord
from cdbench.schema.comparing import AccuracyChange, ComparisonDocument, MetricChange

HEADLINE = "output_throughput"
ACCURACY_WORDS = {
    "within": "not worse by more than 1 point",
    "worse": "worse by more than 1 point",
    "cannot tell": "too few questions to tell a difference of 1 point",
}


def sentences(document: ComparisonDocument) -> list[str]:
    """The last lines of a comparison."""
    return [*_standing(document), *_speed(document), *_accuracy(document)]


def _standing(document: ComparisonDocument) -> Iterator[str]:
    """What the comparison is worth, before anything it says."""
    invalid = [s.name for s in (document.base, document.run) if s.verdict == "INVALID"]
    if invalid:
        yield f"INVALID: {' and '.join(invalid)} must not be quoted, so nothing is judged."
    elif document.verdict == "other work":
        yield (
            f"OTHER WORK: {_named(document, 'work')} differ, so no ratio of times is formed; "
            "accuracy and depths stand side by side."
        )
    elif document.verdict == "unfair":
        yield (
            f"UNFAIR: {_named(document, 'machine')} differ, so times are shown without a verdict; "
            "speed-ups within each run carry further."
        )
    both = {d.effect for d in document.differences} & {"setting", "code"}
    if len(both) == 2:
        yield (
            f"Settings ({_named(document, 'setting')}) and code ({_named(document, 'code')}) both "
            "differ: no change can be put down to one of them."
        )


def _named(document: ComparisonDocument, effect: str) -> str:
    names = [d.what for d in document.differences if d.effect == effect]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _speed(document: ComparisonDocument) -> Iterator[str]:
    if document.verdict != "comparable":
        return
    judged = [change for change in document.metrics if change.verdict is not None]
    headline = [change for change in judged if change.metric == HEADLINE]
    for verdict, words in (("better", "faster"), ("worse", "slower")):
        found = [change for change in headline if change.verdict == verdict]
        if found:
            yield f"{words.capitalize()}: {', '.join(map(_amount, found))} (output tokens/s)."
    if headline and all(change.verdict == "~" for change in headline):
        yield (
            f"No mode's output rate is shown to have changed by more than {document.margin:.3g}; "
            f"the widest interval is that of {_widest(headline)}."
        )
    counts = [change for change in judged if change.exact and change.verdict != "~"]
    if counts:
        names = dict.fromkeys(f"{change.metric} of {change.mode}" for change in counts)
        yield (
            f"Of the figures without noise {len(names)} changed: {', '.join(list(names)[:4])}"
            f"{', ...' if len(names) > 4 else ''}."
        )
    moved = [change for change in document.speedups if change.verdict in ("better", "worse")]
    for change in moved[:3]:
        yield (
            f"The {change.scope} speed-up of {change.mode} over {change.over} went from "
            f"{_ratio(change.base)} to {_ratio(change.run)} ({change.verdict})."
        )


def _widest(changes: list[MetricChange]) -> str:
    """The mode about which least is known."""

    def width(change: MetricChange) -> float:
        ends = change.ratio
        return 0.0 if ends is None or ends.low is None else (ends.high or 0.0) / ends.low

    return _amount(max(changes, key=width))


def _amount(change: MetricChange) -> str:
    assert change.ratio is not None, "a verdict has a ratio"
    return f"{change.mode} {_ratio(change.ratio)}"


def _ratio(record: IntervalRecord) -> str:
    return ratio(record.estimate, record.low, record.high)


def _accuracy(document: ComparisonDocument) -> Iterator[str]:
    for change in document.accuracy:
        if change.task is None and change.paired is not None and document.verdict != "INVALID":
            yield _answers(change)


def _answers(change: AccuracyChange) -> str:
    paired = change.paired
    assert paired is not None, "only paired changes are told"
    moved = f"{paired.lost} lost and {paired.gained} gained of {paired.n:,} questions"
    return f"Accuracy of {change.mode}: {moved}, {ACCURACY_WORDS[paired.verdict]}."

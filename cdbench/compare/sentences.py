"""What a comparison means, in a few plain sentences that follow from its intervals alone."""

from __future__ import annotations

from collections.abc import Iterator

from cdbench.render.formats import ratio
from cdbench.schema import IntervalRecord
from cdbench.schema.comparing import AccuracyChange, ComparisonDocument, MetricChange

HEADLINE = "output_throughput"
ACCURACY_WORDS = {
    "better": "better by more than 1 point",
    "within": "within 1 point of one another",
    "worse": "worse by more than 1 point",
    "cannot tell": "too few questions to tell a difference of 1 point",
}
ADAPTIVE = ("cdb", "lockstep")
MOST_SPEEDUPS = 4


def sentences(document: ComparisonDocument) -> list[str]:
    """The last lines of a comparison."""
    return [*_standing(document), *_speed(document), *_accuracy(document)]


def _standing(document: ComparisonDocument) -> Iterator[str]:
    """What the comparison is worth, before anything it says."""
    invalid = [s.name for s in (document.base, document.run) if s.verdict == "INVALID"]
    effects = {difference.effect for difference in document.differences}
    if invalid:
        yield f"INVALID: {' and '.join(invalid)} must not be quoted, so no time is judged."
    if "work" in effects:
        yield (
            f"OTHER WORK: {_named(document, 'work')} differ, so no ratio of times is formed; "
            "accuracy and depths stand side by side."
        )
    elif "machine" in effects:
        yield (
            f"UNFAIR: {_named(document, 'machine')} differ, so times are shown without a verdict; "
            "speed-ups within each run carry further."
        )
    for side in (document.base, document.run):
        if not side.blocks:
            yield f"Nothing was timed in {side.name}."
    if {"setting", "code"} <= effects:
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
            "No mode's output rate is shown to have changed by more than "
            f"{_percent(document.margin)}; "
            f"the widest interval is that of {_widest(headline)}."
        )
    counts = [change for change in judged if change.exact and change.verdict != "~"]
    if counts:
        names = dict.fromkeys(f"{change.metric} of {change.mode}" for change in counts)
        yield (
            f"Of the figures without noise {len(names)} changed: {', '.join(list(names)[:4])}"
            f"{', ...' if len(names) > 4 else ''}."
        )
    moved = [
        change
        for change in document.speedups
        if change.verdict in ("better", "worse") and change.mode in ADAPTIVE
    ]
    # What got worse is said first, and over full depth before anything else.
    moved.sort(key=lambda change: (change.verdict != "worse", change.over != "static"))
    for change in moved[:MOST_SPEEDUPS]:
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


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _accuracy(document: ComparisonDocument) -> Iterator[str]:
    for change in document.accuracy:
        if change.task is None and change.verdict is not None:
            yield _answers(change)


def _answers(change: AccuracyChange) -> str:
    paired = change.paired
    assert paired is not None, "a verdict is of pairs"
    assert change.verdict is not None, "only verdicts are told"
    moved = f"{paired.lost} lost and {paired.gained} gained of {paired.n:,} questions"
    return f"Accuracy of {change.mode}: {moved}, {ACCURACY_WORDS[change.verdict]}."

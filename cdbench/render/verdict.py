"""What a result means, in two or three sentences that cannot be misread.

Every sentence follows from intervals, not from point estimates: a difference that the blocks cannot
tell from none is said to be none that can be told.
"""

from __future__ import annotations

from cdbench.render.formats import percent, points, ratio
from cdbench.render.run_report import comparison, is_random
from cdbench.render.waterfall import where_the_rest_went
from cdbench.schema import Comparison, IntervalRecord, ModeAccuracy, Result

NOTHING_TO_SAVE = 1.02
"""A bound below this is no bound: a share of it would only be noise."""


def sentences(result: Result) -> list[str]:
    """The plain words that end a run's output."""
    label = next((m for m in ("cdb", "lockstep") if m in result.modes), None)
    if label is None:
        return ["No adaptive mode ran, so there is nothing to say about adaptive depth."]
    parts = (_speed_words, _accuracy_words, _against_strongest, _realised, _waterfall_words)
    said = [part(result, label) for part in parts]
    return [f"{sentence[0].upper()}{sentence[1:]}." for sentence in said if sentence]


def looks_line(result: Result) -> str:
    """How a run that waited for a narrow interval came to its end; empty for fixed blocks."""
    found = result.looks
    if found is None:
        return ""
    planned = ", ".join(map(str, found.after_blocks))
    reached = "reached" if found.narrow else "not reached"
    return (
        f"looks planned after {planned} blocks for a half-width of {found.target:.1%}: {reached} "
        f"after {found.ended_after}, so intervals here have the level {100 * found.level:.6g} %, "
        "which keeps 95 % over all looks"
    )


def validity_lines(result: Result) -> list[str]:
    """VALID or INVALID, every reason, and what to mind."""
    found = result.validity
    return [
        found.verdict + (":" if found.reasons else ""),
        *(f"- {reason}" for reason in found.reasons),
        *(f"mind: {flag}" for flag in found.flags),
    ]


def _speed_words(result: Result, label: str) -> str:
    found = comparison(result, label, "static", "e2e")
    if found is None:
        return ""
    return f"end to end, {_name(label)} did the same work {_speed(found, 'full-depth static')}"


def _accuracy_words(result: Result, label: str) -> str:
    if is_random(result):
        return "the weights are random: nothing can be said about accuracy"
    found = result.accuracy.modes.get(label) if result.accuracy is not None else None
    if found is None or found.rate is None or result.accuracy is None:
        return ""
    share = percent(found.rate.estimate)
    answered = f"in the live pass {label} answered {share} of {found.rate.n:,} questions"
    if found.paired is None:
        return f"{answered}; without static there is nothing to hold that against"
    base = result.accuracy.modes[found.paired.over].rate
    theirs = percent(base.estimate) if base is not None else "n/a"
    return f"{answered}, {found.paired.over} {theirs} ({_difference(found)})"


def _against_strongest(result: Result, label: str) -> str:
    """The headline baseline: the fastest of static and what matches its accuracy."""
    if is_random(result):
        return ""
    rivals = [over for over in result.modes if over != label and _is_rival(result, over)]
    found = [c for over in rivals if (c := comparison(result, label, over, "e2e")) is not None]
    found = [c for c in found if c.speedup.estimate is not None]
    if not found:
        return ""
    strongest = min(found, key=lambda c: c.speedup.estimate or 0.0)
    if strongest.over == "static":
        return "no other baseline that was run is as accurate and faster" if rivals[1:] else ""
    return (
        f"the strongest baseline of like accuracy is {_describe(result, strongest.over)}: "
        f"{label} did its work {_speed(strongest, 'that baseline')}{_consequence(strongest)}"
    )


def _consequence(strongest: Comparison) -> str:
    """What follows where a rival is faster beyond the interval; nothing where none can tell."""
    if _side(strongest.speedup) >= 0:
        return ""
    if strongest.over.startswith("static@"):
        return ", so here adaptive depth does not pay"
    return ", so here this looped model does not beat an ordinary one"


def _realised(result: Result, label: str) -> str:
    bound = result.bounds.get(label, {}).get("flop_bound")
    if bound is None or bound.realised is None or bound.value is None:
        return ""
    if bound.value < NOTHING_TO_SAVE:
        return "the recorded depths leave no loops to save, so there is no bound to reach"
    share = bound.realised
    words = (
        f"in decoding alone, the FLOPs of the loops saved are worth {ratio(bound.value)} over "
        f"static; {label} realised {percent(share.estimate, share.low, share.high)} of that"
    )
    if share.estimate is not None and share.estimate > 1:
        words += " (more than all, since attention and static's own losses lie outside the bound)"
    return words


def _waterfall_words(result: Result, label: str) -> str:
    found = (result.waterfall or {}).get(label)
    return where_the_rest_went(found, label) if found is not None else ""


def _is_rival(result: Result, over: str) -> bool:
    """Static, and any fixed-depth or dense row within δ of it and not shown to be worse."""
    mode = result.modes[over]
    if over == "static":
        return True
    if mode.schedule not in ("static", "dense") or result.accuracy is None:
        return False
    found = result.accuracy.modes.get(over)
    if found is None or found.paired is None or found.paired.verdict == "worse":
        return False
    difference = found.paired.difference.estimate
    return difference is not None and difference >= -found.paired.delta


def _describe(result: Result, over: str) -> str:
    words = over
    if over == "static@auto":
        words += f" ({result.modes[over].max_loops} loops for every token)"
    found = result.accuracy.modes.get(over) if result.accuracy is not None else None
    if found is not None and found.paired is not None and found.paired.verdict == "cannot tell":
        words += " (whose accuracy the questions cannot tell from static's)"
    return words


def _difference(found: ModeAccuracy) -> str:
    assert found.paired is not None, "only called for a paired mode"
    delta = found.paired.difference
    words = {
        "within": "not worse by more than 1 point",
        "worse": "worse by more than 1 point",
        "cannot tell": "too few questions to tell a difference of 1 point",
    }[found.paired.verdict]
    return f"{points(delta.estimate, delta.low, delta.high)}: {words}"


def _speed(found: Comparison, other: str) -> str:
    """How fast a mode did the work that another did, in words that follow from the interval."""
    interval = found.speedup
    figure = ratio(interval.estimate, interval.low, interval.high)
    if interval.low is None or interval.high is None:
        return f"{figure} as fast as {other} (too few blocks for an interval)"
    side = _side(interval)
    if side == 0:
        return f"at a speed that the blocks cannot tell from {other}'s ({figure})"
    return f"{figure} as fast as {other}" + (", which is slower" if side < 0 else "")


def _side(interval: IntervalRecord) -> int:
    """1 where faster beyond the interval, -1 where slower, 0 where it cannot be told."""
    if interval.low is not None and interval.low > 1:
        return 1
    if interval.high is not None and interval.high < 1:
        return -1
    return 0


def _name(label: str) -> str:
    return "continuous depth batching" if label == "cdb" else "lockstep adaptive depth"

"""What a result means, in two or three sentences that cannot be misread.

Every sentence follows from intervals, not from point estimates: a difference that the blocks cannot
tell from none is said to be none that can be told.
"""

from __future__ import annotations

from cdbench.render.formats import percent, points, ratio
from cdbench.render.run_report import comparison
from cdbench.schema import Comparison, IntervalRecord, ModeAccuracy, Result

DELTA = 0.01


def sentences(result: Result) -> list[str]:
    """The plain words that end a run's output."""
    label = next((m for m in ("cdb", "lockstep") if m in result.modes), None)
    if label is None:
        return ["No adaptive mode ran, so there is nothing to say about adaptive depth."]
    said = [_against_static(result, label), _against_strongest(result, label)]
    said.append(_realised(result, label))
    return [sentence for sentence in said if sentence]


def _against_static(result: Result, label: str) -> str:
    found = comparison(result, label, "static", "e2e")
    speed = ""
    if found is not None:
        speed = f"{_name(label)} did the same work {_speed(found, 'full-depth static')}"
    accuracy = _accuracy_words(result, label)
    if speed and accuracy:
        return f"{speed}; {accuracy}."
    return f"{speed or accuracy}." if speed or accuracy else ""


def _against_strongest(result: Result, label: str) -> str:
    """The headline baseline: the fastest of static, static@auto and accuracy-matched dense."""
    rivals = [over for over in result.modes if over != label and _is_rival(result, over)]
    found = [c for over in rivals if (c := comparison(result, label, over, "e2e")) is not None]
    found = [c for c in found if c.speedup.estimate is not None]
    if not found:
        return ""
    strongest = min(found, key=lambda c: c.speedup.estimate or 0.0)
    if strongest.over == "static":
        return (
            "No cheaper baseline holds the accuracy: neither a smaller fixed depth nor a dense "
            "model that was run beats full-depth static within 1 point."
            if len(found) > 1
            else ""
        )
    sentence = (
        f"The strongest baseline of like accuracy is {_describe(result, strongest.over)}: "
        f"{label} did its work {_speed(strongest, 'it')}"
    )
    if _side(strongest.speedup) <= 0:
        sentence += (
            ", so on this machine adaptive depth does not pay"
            if strongest.over.startswith("static@")
            else ", so this looped model does not beat an ordinary one here"
        )
    return f"{sentence}."


def _realised(result: Result, label: str) -> str:
    bound = result.bounds.get(label, {}).get("flop_bound")
    if bound is None or bound.realised is None or bound.value is None:
        return ""
    share = bound.realised
    return (
        f"In decoding alone, the loops saved allow at most {bound.value:.2f}x over static; "
        f"{label} realised {percent(share.estimate, share.low, share.high)} of that bound."
    )


def _is_rival(result: Result, over: str) -> bool:
    if over in ("static", "static@auto"):
        return True
    if not over.startswith("dense:") or result.accuracy is None:
        return False
    found = result.accuracy.modes.get(over)
    difference = found.paired.difference.estimate if found and found.paired else None
    return difference is not None and difference >= -DELTA


def _describe(result: Result, over: str) -> str:
    mode = result.modes[over]
    return f"static@auto ({mode.max_loops} loops for every token)" if "auto" in over else over


def _accuracy_words(result: Result, label: str) -> str:
    found = result.accuracy.modes.get(label) if result.accuracy is not None else None
    if found is None or found.paired is None or result.accuracy is None:
        return ""
    base = result.accuracy.modes[found.paired.over].rate.estimate
    return (
        f"it answered {percent(found.rate.estimate)} of {found.rate.n:,} questions, "
        f"{found.paired.over} {percent(base)} ({_difference(found)})"
    )


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
        return f"at a speed that the blocks cannot tell from that of {other} ({figure})"
    return f"{figure} as fast as {other}" + (", which is slower" if side < 0 else "")


def _side(interval: IntervalRecord) -> int:
    """1 where faster beyond the interval, -1 where slower, 0 where it cannot be told."""
    if interval.low is not None and interval.low > 1:
        return 1
    if interval.high is not None and interval.high < 1:
        return -1
    return 0


def _name(label: str) -> str:
    return "Continuous depth batching" if label == "cdb" else "Lockstep adaptive depth"

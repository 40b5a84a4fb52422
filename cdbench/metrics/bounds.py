"""How fast adaptive depth could be, and which share of that was realised.

A speed-up is divided only by a bound of its own scope, and only over ``static`` on equal work:
anything else has given "shares" above 100 % elsewhere. So both carry what they are, and the one
division there is refuses a mismatch.

Bounds in FLOPs are here and in ``work.py``, the bound in measured time here on top of ``ideal.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cdbench.metrics.trace import StageCosts
from cdbench.stats.interval import Interval

REALISED = {
    "flop_bound": "realised_flop",
    "work_bound": "realised_work",
    "time_bound": "realised_time",
}
"""The bounds that a speed-up may be divided by, and what the share is called.

``flop_bound_paper`` averages over tokens of two scopes, so that no speed-up is of its scope.
"""

MEASURING_ERROR = (
    "FLAGGED: realised above 1 beyond its interval, a measuring error unless the waterfall shows "
    "what static lost more of"
)
OUTSIDE = {
    "flop_bound": "attention and static's own losses lie outside the bound",
    "work_bound": (
        "static's own losses lie outside the bound, and a prompt's FLOPs take less time than a "
        "later token's"
    ),
}
"""What a realised share above 1 may come from."""


class Scope(StrEnum):
    """What a time covers: later tokens only, or prompts and first tokens as well."""

    DECODE = "decode"
    E2E = "e2e"


class Work(StrEnum):
    """Same forced work in every mode, or the model's own text and exits."""

    EQUAL = "equal"
    LIVE = "live"


@dataclass(frozen=True)
class Bound:
    """A theoretical speed-up over ``static``. ``note`` says what a reader could misread."""

    name: str
    value: float
    scope: Scope
    note: str | None = None


@dataclass(frozen=True)
class Residents:
    """Requests that the baseline and the mode held at once, where memory was equal and these not.

    The mode's launches are wider then, so part of its speed-up has nothing to do with depth.
    """

    over: int
    mode: int


@dataclass(frozen=True)
class Speedup:
    """A measured ratio wall(over) / wall(mode), with the scope and the work it was measured in.

    ``residents`` None: both sides held equally many requests.
    """

    interval: Interval
    mode: str
    over: str
    scope: Scope
    work: Work = Work.EQUAL
    residents: Residents | None = None


class MismatchError(ValueError):
    """A speed-up and a bound that must not be divided."""


def cost_ratio(costs: StageCosts) -> float:
    """(F_p + F_k) / F_c: boundary stages against one loop."""
    return (costs.prelude + costs.coda) / costs.core


def flop_bound(
    costs: StageCosts,
    max_loops: int,
    requested_depth: float,
    *,
    readout_every_loop: bool = False,
) -> Bound:
    """(F_p + R·F_c + F_k) / (F_p + q̄·F_c + F_k), decode scope (the CDB paper's maximum).

    ``max_loops`` is R of the static mode compared with, ``requested_depth`` the mean over later
    tokens at lag 0. With a rule that reads out at every loop the denominator is F_p + q̄·(F_c +
    F_k).

    Raises:
        ValueError: the mean depth lies outside 1…R.
    """
    value = _flop_ratio(costs, max_loops, requested_depth, readout_every_loop)
    return Bound("flop_bound", value, Scope.DECODE, below_one(value))


def flop_bound_paper(
    costs: StageCosts,
    max_loops: int,
    mean_output_depth: float,
    *,
    readout_every_loop: bool = False,
) -> Bound:
    """``flop_bound`` averaged as the paper does: over all output tokens, first tokens at R.

    Raises:
        ValueError: the mean depth lies outside 1…R.
    """
    value = _flop_ratio(costs, max_loops, mean_output_depth, readout_every_loop)
    return Bound("flop_bound_paper", value, Scope.DECODE, below_one(value))


def time_bound(static_s: float, adaptive_s: float, prefill_s: float | None = None) -> Bound:
    """T*_static / T*_adaptive: later tokens at ideal packing on both sides (``ideal.Packing``).

    Decode scope; with ``prefill_s``, the same time of prompts on both sides, e2e scope.

    Raises:
        ValueError: a time is not positive.
    """
    if not (static_s > 0 and adaptive_s > 0):
        raise ValueError(f"ideal times {static_s} s and {adaptive_s} s: both must be above 0")
    scope = Scope.DECODE if prefill_s is None else Scope.E2E
    value = (static_s + (prefill_s or 0.0)) / (adaptive_s + (prefill_s or 0.0))
    return Bound("time_bound", value, scope, below_one(value))


def realised(speedup: Speedup, bound: Bound) -> Interval:
    """Measured speed-up over static ÷ the bound of the same scope, as a fraction.

    The bound is exact for the recorded depths (and given the curves), so the interval is the
    speed-up's, scaled.

    Raises:
        MismatchError: ``no_share`` says why there is none.
    """
    why = no_share(speedup, bound)
    if why is not None:
        raise MismatchError(why)
    return speedup.interval.scaled(1 / bound.value)


def no_share(speedup: Speedup, bound: Bound) -> str | None:
    """Why a speed-up must not be divided by a bound; None where it may.

    Scope, work or baseline do not match, the bound is one for no speed-up, or it does not see that
    the mode held more requests than the baseline. ``time_bound`` does: it costs the launches of
    each side up to that side's own width.
    """
    if bound.name not in REALISED:
        return f"no speed-up has the scope of {bound.name}; use flop_bound"
    if speedup.scope != bound.scope:
        return (
            f"speed-up of {speedup.mode}: scope {speedup.scope}, but {bound.name} has scope "
            f"{bound.scope}; only equal scopes may be divided"
        )
    if speedup.work != Work.EQUAL:
        return f"speed-up of {speedup.mode}: live wall times never form a ratio"
    if speedup.over != "static":
        return (
            f"speed-up of {speedup.mode}: measured over {speedup.over}, but {bound.name} is over "
            "static"
        )
    if speedup.residents is not None and bound.name != "time_bound":
        return f"no share of {bound.name}: {unequal_words(speedup)}, which FLOPs do not see"
    return None


def unequal_words(speedup: Speedup) -> str:
    """What is to be known of a speed-up whose sides held unequally many requests."""
    held = speedup.residents
    assert held is not None, "only said of unequal residents"
    return (
        f"in the same memory {speedup.mode} held {held.mode} requests at once and {speedup.over} "
        f"{held.over}, so the speed-up is that of the width of launches as well"
    )


def realised_flop(speedup: Speedup, bound: Bound) -> Interval:
    """``realised`` of ``flop_bound`` alone. Raises MismatchError for another bound."""
    if bound.name != "flop_bound":
        raise MismatchError(f"realised_flop divides by flop_bound, not by {bound.name}")
    return realised(speedup, bound)


def above_one(bound: Bound, share: Interval) -> str | None:
    """What to say of a realised share above 1; None where there is nothing to say.

    Time at ideal packing leaves nothing out that adaptive depth saves, so passing it beyond the
    interval is flagged as a measuring error: curves or a clock are wrong. One honest cause remains,
    which the waterfall shows as a factor above 1: static losing more to what both bounds leave out
    (it has more loops, so more host time between them). FLOPs leave more out, and say so.
    """
    if bound.name == "time_bound":
        return MEASURING_ERROR if share.low is not None and share.low > 1 else None
    if share.estimate <= 1:
        return None
    return "above 1 is possible: " + OUTSIDE[bound.name]


def _flop_ratio(costs: StageCosts, max_loops: int, depth: float, readout_every_loop: bool) -> float:
    if not 1 <= depth <= max_loops:
        raise ValueError(f"mean depth {depth}: it must lie between 1 and {max_loops}")
    boundary = costs.prelude + costs.coda
    full = boundary + max_loops * costs.core
    if readout_every_loop:
        return full / (costs.prelude + depth * (costs.core + costs.coda))
    return full / (boundary + depth * costs.core)


def below_one(value: float) -> str | None:
    """What to say of a bound below 1; None for any other."""
    if value >= 1:
        return None
    return "below 1: reading out at every loop costs more than the loops saved"

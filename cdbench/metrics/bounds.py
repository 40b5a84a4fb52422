"""How fast adaptive depth could be, and which share of that was realised.

A speed-up is divided only by a bound of its own scope, and only over ``static`` on equal work:
anything else has given "shares" above 100 % elsewhere. So both carry what they are, and the
division refuses a mismatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cdbench.metrics.trace import StageCosts
from cdbench.stats.interval import Interval


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
class Speedup:
    """A measured ratio wall(over) / wall(mode), with the scope and the work it was measured in."""

    interval: Interval
    mode: str
    over: str
    scope: Scope
    work: Work = Work.EQUAL


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
    return Bound("flop_bound", value, Scope.DECODE, _below_one(value))


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
    return Bound("flop_bound_paper", value, Scope.DECODE, _below_one(value))


def realised_flop(speedup: Speedup, bound: Bound) -> Interval:
    """Measured decode-scope speed-up over static ÷ ``flop_bound``, as a fraction.

    The bound is exact for the recorded depths, so the interval is the speed-up's, scaled. It can
    pass 1: attention and static's own losses lie outside the bound.

    Raises:
        MismatchError: another bound, or scope, work or baseline do not match.
    """
    if bound.name != "flop_bound":
        raise MismatchError(f"realised_flop divides by flop_bound, not by {bound.name}")
    if speedup.scope != bound.scope:
        raise MismatchError(
            f"speed-up of {speedup.mode}: scope {speedup.scope}, but {bound.name} has scope "
            f"{bound.scope}; only equal scopes may be divided"
        )
    if speedup.work != Work.EQUAL:
        raise MismatchError(f"speed-up of {speedup.mode}: live wall times never form a ratio")
    if speedup.over != "static":
        raise MismatchError(
            f"speed-up of {speedup.mode}: measured over {speedup.over}, but {bound.name} is over "
            "static"
        )
    return speedup.interval.scaled(1 / bound.value)


def _flop_ratio(costs: StageCosts, max_loops: int, depth: float, readout_every_loop: bool) -> float:
    if not 1 <= depth <= max_loops:
        raise ValueError(f"mean depth {depth}: it must lie between 1 and {max_loops}")
    boundary = costs.prelude + costs.coda
    full = boundary + max_loops * costs.core
    if readout_every_loop:
        return full / (costs.prelude + depth * (costs.core + costs.coda))
    return full / (boundary + depth * costs.core)


def _below_one(value: float) -> str | None:
    if value >= 1:
        return None
    return "below 1: reading out at every loop costs more than the loops saved"

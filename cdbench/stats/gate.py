"""The three-way verdict on a timed metric: PASS, FAIL, or not enough seen to tell.

A gate on a stored number and a threshold cries wolf, because it has no third answer. Here, with a
margin m that is symmetric in logs and the gain of the new side over the old:

- FAIL: the gain is shown to lie below 0 (one-sided, 2.5 %) *and* its estimate lies beyond the
  margin. A slowdown that is certain but small does not fail, nor does a large one that is noise.
- PASS: a loss of more than the margin is excluded (one-sided, 5 %). An improvement passes.
- INCONCLUSIVE otherwise: measure on, at looks fixed in advance.

Several looks share each test's error (``looks.look_levels``, O'Brien–Fleming type spending), so
that looking often does not fail more often. Several metrics share the error of FAIL (Holm); each
has to PASS by itself, which needs no correction: all must pass, and that is harder than one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cdbench.stats.gains import Gain
from cdbench.stats.holm import holm
from cdbench.stats.looks import look_levels

DEFAULT_MARGIN = 0.05
FAIL_ERROR = 0.025
"""Chance, over all looks, that unchanged code is shown to be slower."""
PASS_ERROR = 0.05
"""Chance, over all looks, that a loss of exactly the margin passes."""
LOOKS = (6, 12, 24)
"""Pairs at each look of a paired gate."""


class Decision(StrEnum):
    """What a gate says."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class ErrorShares:
    """The one-sided errors of one look: ``fail`` of its FAIL test, ``passes`` of its PASS test."""

    fail: float
    passes: float


@dataclass(frozen=True)
class Judged:
    """A decision and what it rests on. ``adjusted_p`` is that of FAIL, after Holm's correction.

    ``fail_bound`` and ``pass_bound`` are the ends of the ratio that the two tests looked at; None
    where there were too few observations.
    """

    decision: Decision
    gain: Gain
    margin: float
    adjusted_p: float | None
    fail_bound: float | None
    pass_bound: float | None


SINGLE_LOOK = ErrorShares(FAIL_ERROR, PASS_ERROR)
"""Of a comparison with stored runs, which nothing can be added to."""


def look_errors(looks: Sequence[int] = LOOKS) -> tuple[ErrorShares, ...]:
    """Each look's share of the two errors, for looks after so many pairs.

    Raises:
        ValueError: the looks do not rise.
    """
    shares = tuple(n / looks[-1] for n in looks)
    fail, passes = (
        [(1 - level) / 2 for level in look_levels(shares, error=2 * error)]
        for error in (FAIL_ERROR, PASS_ERROR)
    )
    return tuple(ErrorShares(f, p) for f, p in zip(fail, passes, strict=True))


def judge(
    gains: Sequence[Gain], margins: Sequence[float], errors: ErrorShares = SINGLE_LOOK
) -> list[Judged]:
    """A decision for each timed metric of one gate at one look; a margin of 0.05 is 5 %.

    Raises:
        ValueError: the lists differ in length, or a margin is not above 0.
    """
    if any(not margin > 0 for margin in margins):
        raise ValueError(f"margins {margins}: each must be above 0")
    # Too few observations are no evidence: such a metric takes its place among the tests.
    p_values = [1.0 if gain.p_worse is None else gain.p_worse for gain in gains]
    return [
        _judge(gain, margin, p, errors)
        for gain, margin, p in zip(gains, margins, holm(p_values), strict=True)
    ]


def overall(decisions: Sequence[Decision]) -> Decision:
    """FAIL where any failed, else INCONCLUSIVE where any is, else PASS."""
    for decision in (Decision.FAIL, Decision.INCONCLUSIVE):
        if decision in decisions:
            return decision
    return Decision.PASS


def _judge(gain: Gain, margin: float, adjusted_p: float, errors: ErrorShares) -> Judged:
    reach = math.log1p(margin)
    high, low = gain.high(errors.fail), gain.low(errors.passes)
    if high is None or low is None:
        return Judged(Decision.INCONCLUSIVE, gain, margin, None, None, None)
    if adjusted_p <= errors.fail and gain.log_mean < -reach:
        decision = Decision.FAIL
    elif low > -reach:
        decision = Decision.PASS
    else:
        decision = Decision.INCONCLUSIVE
    return Judged(decision, gain, margin, adjusted_p, math.exp(high), math.exp(low))

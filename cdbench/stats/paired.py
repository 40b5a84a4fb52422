"""Accuracy of two modes on the same questions, compared question by question.

Two rates with independent standard errors are never compared: the same questions make them move
together, and only those answered differently carry information.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from scipy import optimize, stats

from cdbench.stats.interval import Interval

DEFAULT_DELTA = 0.01
"""Non-inferiority margin: 1 point of accuracy."""


class Verdict(StrEnum):
    """Whether a mode is not worse than its baseline by more than δ."""

    WITHIN = "within"
    WORSE = "worse"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class PairedAccuracy:
    """A mode against its baseline on ``n`` questions. Rates, difference, ``delta``: fractions.

    ``difference`` is mode − baseline with a 95 % interval (Tango's score interval). ``lost``: right
    under the baseline only; ``gained``: right under the mode only. ``p_value``: exact McNemar test.
    """

    n: int
    baseline_rate: Interval
    rate: Interval
    difference: Interval
    lost: int
    gained: int
    p_value: float
    delta: float
    verdict: Verdict

    @property
    def discordance(self) -> float:
        """Share of questions answered right under one of the two only."""
        return (self.lost + self.gained) / self.n


def compare_paired(
    baseline: Sequence[bool], mode: Sequence[bool], delta: float = DEFAULT_DELTA
) -> PairedAccuracy | None:
    """Compare answers to the same questions, listed in the same order. None without a question.

    Raises:
        ValueError: the lists differ in length.
    """
    if len(baseline) != len(mode):
        raise ValueError(f"{len(baseline)} baseline answers against {len(mode)} of the mode")
    n = len(mode)
    lost = sum(bool(b) and not m for b, m in zip(baseline, mode, strict=True))
    gained = sum(bool(m) and not b for b, m in zip(baseline, mode, strict=True))
    baseline_rate, rate = wilson(sum(map(bool, baseline)), n), wilson(sum(map(bool, mode)), n)
    if baseline_rate is None or rate is None:
        return None
    return PairedAccuracy(
        n=n,
        baseline_rate=baseline_rate,
        rate=rate,
        difference=paired_difference(lost, gained, n),
        lost=lost,
        gained=gained,
        p_value=mcnemar(lost, gained),
        delta=delta,
        verdict=non_inferiority(lost, gained, n, delta),
    )


def wilson(successes: int, n: int, level: float = 0.95) -> Interval | None:
    """Wilson score interval of a single rate (Wilson 1927); None for n = 0."""
    if n == 0:
        return None
    bounds = stats.binomtest(successes, n).proportion_ci(level, method="wilson")
    return Interval(successes / n, float(bounds.low), float(bounds.high), n)


def mcnemar(lost: int, gained: int) -> float:
    """Exact two-sided McNemar p: lost ~ binomial(lost + gained, 1/2). 1 where nothing changed."""
    if lost + gained == 0:
        return 1.0
    return float(stats.binomtest(lost, lost + gained, 0.5).pvalue)


def paired_difference(lost: int, gained: int, n: int, level: float = 0.95) -> Interval:
    """Difference of paired proportions, mode − baseline, with Tango's score interval.

    Tango, Statistics in Medicine 17 (1998) 891–908: the differences Δ that a score test with
    restricted maximum likelihood does not reject. It keeps its level with few changed answers,
    where the Wald interval collapses (no changed answer would give ± 0).

    Raises:
        ValueError: n is 0, or fewer than the changed answers.
    """
    if n <= 0 or lost + gained > n:
        raise ValueError(f"{lost} lost and {gained} gained of {n} questions")
    estimate = (gained - lost) / n
    z = float(stats.norm.ppf((1 + level) / 2))
    low = _score_limit(gained, lost, n, z, estimate)
    high = -_score_limit(lost, gained, n, z, -estimate)
    return Interval(estimate, low, high, n)


def non_inferiority(lost: int, gained: int, n: int, delta: float = DEFAULT_DELTA) -> Verdict:
    """Whether the mode is within ``delta`` of its baseline.

    ``within``: the lower end of the 90 % interval (a one-sided test at 5 %) lies above −δ.
    ``worse``: the upper end of the 95 % interval lies below −δ. Otherwise the questions are too few
    to tell.
    """
    margin = paired_difference(lost, gained, n, level=0.90).low
    best = paired_difference(lost, gained, n, level=0.95).high
    if margin is not None and margin > -delta:
        return Verdict.WITHIN
    if best is not None and best < -delta:
        return Verdict.WORSE
    return Verdict.CANNOT_TELL


def _score_limit(gained: int, lost: int, n: int, z: float, estimate: float) -> float:
    """Lower limit of the difference: where the score statistic, falling in Δ, equals z."""
    if estimate <= -1:
        return -1.0
    edge = -1 + 1e-12
    if _score(gained, lost, n, edge) < z:
        return -1.0
    return float(optimize.brentq(lambda d: _score(gained, lost, n, d) - z, edge, estimate))


def _score(gained: int, lost: int, n: int, difference: float) -> float:
    """Tango's statistic (b − c − nΔ) / sqrt(n·(2·q + Δ·(1 − Δ))), q the restricted estimate."""
    numerator = gained - lost - n * difference
    a = 2 * n
    b = -gained - lost + (2 * n - gained + lost) * difference
    c = -lost * difference * (1 - difference)
    q = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
    variance = n * (2 * q + difference * (1 - difference))
    if variance <= 0:
        return 0.0 if numerator == 0 else math.copysign(math.inf, numerator)
    return numerator / math.sqrt(variance)

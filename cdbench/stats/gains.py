"""How much better one side is than another: a mean of logs with its error.

A gain is the log of a ratio, turned so that above 0 is better whichever way the metric points: two
sides that are swapped have the same gain with the other sign. It comes from pairs (interleaved
blocks, each with one observation of the ratio) or from two groups measured apart, which are never
paired up after the fact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from cdbench.stats.blocks import MIN_BLOCKS
from cdbench.stats.interval import Interval


@dataclass(frozen=True)
class Gain:
    """A mean log ratio, its standard error, and the degrees of freedom of that error.

    ``error`` is None where there are too few observations (``MIN_BLOCKS`` on each side). ``n`` is
    the number of pairs, or of the smaller group.
    """

    log_mean: float
    error: float | None
    degrees: float
    n: int

    @property
    def turned(self) -> Gain:
        """The gain of the other side over this one."""
        return replace(self, log_mean=-self.log_mean)

    def low(self, alpha: float) -> float | None:
        """One-sided lower bound of the log ratio, missed with chance ``alpha``."""
        reach = self._reach(alpha)
        return None if reach is None else self.log_mean - reach

    def high(self, alpha: float) -> float | None:
        """One-sided upper bound of the log ratio, missed with chance ``alpha``."""
        reach = self._reach(alpha)
        return None if reach is None else self.log_mean + reach

    def interval(self, level: float) -> Interval:
        """The ratio itself, with its two-sided interval where there is one."""
        low, high = self.low((1 - level) / 2), self.high((1 - level) / 2)
        return Interval(
            math.exp(self.log_mean),
            None if low is None else math.exp(low),
            None if high is None else math.exp(high),
            self.n,
        )

    @property
    def p_worse(self) -> float | None:
        """Chance of a mean this low or lower if the two sides were alike (one-sided t test)."""
        if self.error is None:
            return None
        if self.error == 0:
            return 0.0 if self.log_mean < 0 else 1.0
        return float(special.stdtr(self.degrees, self.log_mean / self.error))

    def _reach(self, alpha: float) -> float | None:
        if self.error is None:
            return None
        # Not scipy.stats: its distributions check and broadcast for a hundred times as long.
        return -float(special.stdtrit(self.degrees, alpha)) * self.error if self.error else 0.0


def paired_gain(log_ratios: Sequence[float]) -> Gain | None:
    """The gain of pairs, one log ratio each. None without one."""
    n = len(log_ratios)
    if not n:
        return None
    centre = float(np.mean(log_ratios))
    if n < MIN_BLOCKS:
        return Gain(centre, None, n - 1, n)
    return Gain(centre, float(np.std(log_ratios, ddof=1)) / math.sqrt(n), n - 1, n)


def unpaired_gain(base_logs: Sequence[float], own_logs: Sequence[float]) -> Gain | None:
    """mean(own) − mean(base) of logs measured apart. None where either has none.

    Welch's error and degrees of freedom (Biometrika 1947): the two sides need not be as noisy.
    """
    n = min(len(base_logs), len(own_logs))
    if not n:
        return None
    centre = float(np.mean(own_logs) - np.mean(base_logs))
    if n < MIN_BLOCKS:
        return Gain(centre, None, n - 1, n)
    parts = [float(np.var(logs, ddof=1)) / len(logs) for logs in (base_logs, own_logs)]
    variance = sum(parts)
    if variance == 0:
        return Gain(centre, 0.0, n - 1, n)
    degrees = variance**2 / sum(
        part**2 / (len(logs) - 1) for part, logs in zip(parts, (base_logs, own_logs), strict=True)
    )
    return Gain(centre, math.sqrt(variance), degrees, n)

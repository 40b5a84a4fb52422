"""When to stop measuring: an interval that may be looked at several times.

Looking after 6 blocks, again after 12, and stopping as soon as the answer pleases makes a plain
95 % interval wrong more often than one time in twenty. So the looks are fixed in advance, and each
spends a share of the 5 % error: O'Brien–Fleming type spending (Lan and DeMets, Biometrika 1983),
half of the error on either side,

    α(t) = 4 · (1 − Φ(z / √t)),   z = Φ⁻¹(1 − 0.05 / 4),

at the share t of the blocks that the last look would have. Early looks get wide intervals, the last
one is hardly wider than a plain one. All looks' intervals hold the true value together in 95 % of
runs, so whichever look a run ends at, for whatever reason, its interval keeps its coverage.

The boundaries c_k solve P(|Z_j| < c_j for j < k, |Z_k| ≥ c_k) = α(t_k) − α(t_{k−1}) for a Brownian
motion Z_k = B(t_k)/√t_k, by the recursive integration of Armitage, McPherson and Rowe (JRSS A
1969). They are turned into levels, 2·Φ(c_k) − 1, of t intervals on the blocks at hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from cdbench.stats.blocks import MIN_BLOCKS, geometric_mean
from cdbench.stats.interval import Interval

ERROR = 0.05
"""Chance that some look's interval misses the true value."""

MOST_TIMES = 4
"""The last look comes after this many times as many blocks as the first."""

_GRID_POINTS = 801
_FARTHEST = 12.0
"""A boundary beyond this many standard deviations is never crossed."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Look:
    """What one look says: whether to stop, the level of its interval, the interval of the ratio.

    ``stop`` is true where the interval is narrow enough, and at the last look, narrow or not.
    ``narrow`` tells these apart.
    """

    stop: bool
    narrow: bool
    level: float
    interval: Interval


@dataclass(frozen=True)
class Looks:
    """Looks after ``first``, 2·``first``, 4·``first``, … and ``max_blocks`` blocks.

    ``target`` is the half-width at which an interval is narrow enough, as a share of the ratio:
    0.02 asks for an upper end at most 2 % above the geometric mean.

    Raises:
        ValueError: ``first`` is too small for an interval, ``max_blocks`` lies below it, or
        ``target`` is not positive.
    """

    max_blocks: int
    target: float
    first: int = MIN_BLOCKS

    def __post_init__(self) -> None:
        if self.first < MIN_BLOCKS:
            raise ValueError(f"first look after {self.first} blocks; it needs {MIN_BLOCKS}")
        if self.max_blocks < self.first:
            raise ValueError(f"max_blocks {self.max_blocks}: below the first look, {self.first}")
        if not self.target > 0:
            raise ValueError(f"target {self.target}: must be above 0")

    @property
    def after_blocks(self) -> tuple[int, ...]:
        """How many blocks have run at each look; the last is ``max_blocks``."""
        planned = []
        blocks = self.first
        while blocks < self.max_blocks:
            planned.append(blocks)
            blocks *= 2
        return (*planned, self.max_blocks)

    @property
    def levels(self) -> tuple[float, ...]:
        """The level of each look's interval: close to 1 at the first, near 0.95 at the last."""
        return look_levels(tuple(n / self.max_blocks for n in self.after_blocks))

    def after(self, log_ratios: Sequence[float]) -> Look | None:
        """The look due after this many whole blocks, one log ratio each; None where none is due."""
        blocks = len(log_ratios)
        if blocks not in self.after_blocks:
            return None
        look = self.after_blocks.index(blocks)
        return self._look(log_ratios, self.levels[look], last=blocks == self.max_blocks)

    def cut_short(self, log_ratios: Sequence[float]) -> Look | None:
        """The last look of a run that ended between looks, for want of time.

        Nothing was seen since the look before, so what is left of the error may be spent here. None
        below the minimum number of blocks, where there is no interval.
        """
        blocks = len(log_ratios)
        if blocks < MIN_BLOCKS:
            return None
        seen = [n for n in self.after_blocks if n < blocks]
        shares = (*(n / self.max_blocks for n in seen), blocks / self.max_blocks)
        return self._look(log_ratios, look_levels(shares, ends_early=True)[-1], last=True)

    def _look(self, log_ratios: Sequence[float], level: float, *, last: bool) -> Look:
        interval = geometric_mean(log_ratios, level)
        assert interval is not None
        narrow = half_width(interval) <= self.target
        return Look(stop=narrow or last, narrow=narrow, level=level, interval=interval)


def looks_for(blocks: int, target: float) -> Looks:
    """Looks after ``blocks`` (or what an interval needs), twice and four times as many."""
    first = max(blocks, MIN_BLOCKS)
    return Looks(MOST_TIMES * first, target, first)


def half_width(interval: Interval) -> float:
    """Half the width of a ratio's interval on logs, as a share: e^h − 1. Infinite without ends."""
    if interval.low is None or interval.high is None:
        return math.inf
    return math.expm1((math.log(interval.high) - math.log(interval.low)) / 2)


def spent(share: float, error: float = ERROR) -> float:
    """Error spent once ``share`` (0…1) of the blocks have run: α(t) of the module's docstring.

    ``error`` is what all looks spend together; half of it on either side.
    """
    z = stats.norm.isf(error / 4)
    return float(4 * stats.norm.sf(z / math.sqrt(share)))


@cache
def look_levels(
    shares: tuple[float, ...], *, ends_early: bool = False, error: float = ERROR
) -> tuple[float, ...]:
    """Levels of intervals looked at when these shares of the blocks have run, in rising order.

    Together they miss the true value with chance ``error``, half of it on either side.
    ``ends_early``: the last of them spends all that is left of the error, though its share is not
    1.

    Raises:
        ValueError: shares do not rise or lie outside 0…1.
    """
    steps = np.diff((0.0, *shares))
    if not shares or shares[-1] > 1 or np.any(steps <= 0):
        raise ValueError(f"shares {shares}: they must rise from above 0 to at most 1")
    total = [spent(share, error) for share in shares]
    if ends_early:
        total[-1] = error
    return tuple(
        float(1 - 2 * stats.norm.sf(c)) for c in _boundaries(shares, np.diff([0.0, *total]))
    )


def _boundaries(shares: Sequence[float], errors: FloatArray) -> list[float]:
    """c_k of each look, at which |Z_k| first leaves with chance ``errors[k]``."""
    first = float(stats.norm.isf(errors[0] / 2))
    found = [min(first, _FARTHEST)]
    reach = found[0] * math.sqrt(shares[0])
    at = np.linspace(-reach, reach, _GRID_POINTS)
    density = stats.norm.pdf(at, scale=math.sqrt(shares[0]))
    for k in range(1, len(shares)):
        step = math.sqrt(shares[k] - shares[k - 1])
        reach = _crossing(at, density, step, float(errors[k]), _FARTHEST * math.sqrt(shares[k]))
        found.append(reach / math.sqrt(shares[k]))
        onward = np.linspace(-reach, reach, _GRID_POINTS)
        moved = stats.norm.pdf(onward[:, None], loc=at[None, :], scale=step)
        density = np.trapezoid(moved * density, at, axis=1)
        at = onward
    return found


def _crossing(
    at: FloatArray, density: FloatArray, step: float, error: float, farthest: float
) -> float:
    """The b beyond which |B| lies after one more step with chance ``error``.

    B has this density at the places ``at``, and the step is normal with deviation ``step``.
    """

    def excess(reach: float) -> float:
        beyond = stats.norm.sf((reach - at) / step) + stats.norm.cdf((-reach - at) / step)
        return float(np.trapezoid(density * beyond, at)) - error

    if excess(farthest) >= 0:
        return farthest
    return float(optimize.brentq(excess, 0.0, farthest, xtol=1e-10))

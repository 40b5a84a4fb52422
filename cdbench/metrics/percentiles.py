"""Percentiles that refuse to be read off too few samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# Fewer than two values above the percentile must have less than this chance.
MISS_CHANCE = 0.01


@cache
def minimum_samples(q: float) -> int:
    """Smallest n at which the q-th percentile (0 < q < 100) may be shown.

    The number of n values above the percentile is binomial(n, 1 − q/100); n is the smallest for
    which fewer than two lie above it with a chance under 1 %: 11 for p50, 64 p90, 130 p95, 662 p99,
    6,636 p99.9.

    Raises:
        ValueError: q lies outside 0…100.
    """
    if not 0 < q < 100:
        raise ValueError(f"percentile {q}: it must lie between 0 and 100")
    above = 1 - q / 100
    low, high = 1, 2
    while _fewer_than_two(high, above) >= MISS_CHANCE:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _fewer_than_two(middle, above) < MISS_CHANCE:
            high = middle
        else:
            low = middle
    return high


def percentile(
    values: Sequence[float] | FloatArray, q: float, *, distinct: int | None = None
) -> float | None:
    """The q-th percentile (linear interpolation), in the unit of the values; None with too few.

    ``distinct`` is how many distinct requests the values come from, where that is not their number
    (pooled gaps, repeats): the rule counts requests.
    """
    requests = len(values) if distinct is None else min(distinct, len(values))
    if requests < minimum_samples(q):
        return None
    return float(np.percentile(np.asarray(values, dtype=np.float64), q))


def _fewer_than_two(n: int, above: float) -> float:
    """P(X < 2) for X ~ binomial(n, above)."""
    below = 1 - above
    return float(below**n + n * above * below ** (n - 1))

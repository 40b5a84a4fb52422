"""How a number would move with other requests or other passes: bootstraps over those there were.

They answer other questions than the interval over blocks, which covers the machine's noise on this
workload; so a number that comes from here is always marked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from cdbench.stats.interval import Interval

RESAMPLES = 2000
MIN_REQUESTS = 10
"""Fewer requests say too little of others."""
MOST_CELLS = 1 << 21
"""Of one matrix of draws: 16 MiB, however many requests there are."""


def ratio_over_requests(
    full: npt.ArrayLike, own: npt.ArrayLike, *, level: float = 0.95, seed: int = 0
) -> Interval:
    """Σ full / Σ own over requests, each drawn again with both of its values.

    A percentile interval; without ends below ``MIN_REQUESTS``. The same values and seed give the
    same interval.

    Raises:
        ValueError: the two differ in length, are empty, or a value is not positive.
    """
    full_N, own_N = np.asarray(full, dtype=np.float64), np.asarray(own, dtype=np.float64)
    if full_N.shape != own_N.shape or not full_N.size:
        raise ValueError(f"{full_N.size} values against {own_N.size}: one of each a request")
    if min(full_N.min(), own_N.min()) <= 0:
        raise ValueError("a request's cost is not positive")
    n = full_N.size
    estimate = float(full_N.sum() / own_N.sum())
    if n < MIN_REQUESTS:
        return Interval(estimate, None, None, n)
    random, ratios = np.random.default_rng(seed), []
    for rows in in_parts(RESAMPLES, n):
        draw = random.integers(n, size=(rows, n))
        ratios.append(full_N[draw].sum(axis=1) / own_N[draw].sum(axis=1))
    low, high = np.quantile(np.concatenate(ratios), [(1 - level) / 2, (1 + level) / 2])
    return Interval(estimate, float(low), float(high), n)


def moved(
    estimate: float, base: float, drawn: npt.ArrayLike, n: int, level: float = 0.95
) -> Interval:
    """``estimate``, and how far it moves where draws move ``base``, a figure of the same kind.

    The share ``level`` of ``drawn`` is no further from ``base``, as a ratio either way, than the
    ends from the estimate. (Draws of quantiles lean to one side: their own percentiles need not
    hold the estimate.) ``n`` says of how many observations each draw was made.
    """
    ratios = np.asarray(drawn, dtype=np.float64) / base
    reach = math.exp(float(np.quantile(np.abs(np.log(ratios)), level)))
    return Interval(estimate, estimate / reach, estimate * reach, n)


def in_parts(rows: int, columns: int) -> Iterator[int]:
    """How many rows of a matrix of draws to make at a time, so that its memory is bounded.

    A generator gives the same numbers in parts as in one go, row after row.
    """
    most = max(1, MOST_CELLS // max(1, columns))
    for start in range(0, rows, most):
        yield min(most, rows - start)

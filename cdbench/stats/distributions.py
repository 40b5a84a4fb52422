"""Exit depths of tasks: mean depths with intervals, and whether two tasks exit alike.

The tokens of one request depend on one another (an easy text stays easy), so the request is the
unit that is drawn again or moved between tasks, never the token. A mean depth is a ratio, loops
over tokens, of totals over requests; its interval is a bootstrap-t over requests: each resample is
studentised by the linearised error of the ratio, which keeps the level with few requests of unequal
length, where plain percentiles are too short. All of it is the same whenever it is run with the
same seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from cdbench.stats.holm import holm
from cdbench.stats.interval import Interval
from cdbench.stats.resampling import in_parts

FloatArray = npt.NDArray[np.float64]
Depths = Sequence[Sequence[int]]
"""The depths of a task's tokens, one list a request."""

MIN_REQUESTS = 10
"""Fewer requests give an estimate without an interval, and no test."""
RESAMPLES = 2000
PERMUTATIONS = 2000


@dataclass(frozen=True)
class DepthDifference:
    """Two tasks' exit depths. ``distance``: half the sum over depths of |share − share|, 0 to 1.

    ``p_value`` is that of a permutation test of the distance over requests, ``adjusted_p`` the
    same after Holm's correction over all pairs; None with too few requests. ``by_chance`` is the
    distance that the permutations have on average: what two equal tasks of these sizes show.
    """

    first: str
    second: str
    difference: Interval
    distance: float
    by_chance: float | None
    p_value: float | None
    adjusted_p: float | None


def mean_depth(
    requests: Depths, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval | None:
    """Mean depth over a task's tokens, loops/token, with its interval; None without a token.

    The interval is undefined below ``MIN_REQUESTS`` requests, and where they do not differ.
    """
    sample = _sample(requests)
    if sample is None:
        return None
    found = _interval([sample], [1.0], level, resamples, seed)
    return found if found.low is None else replace(found, low=max(1.0, found.low))


def mean_difference(
    first: Depths, second: Depths, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval | None:
    """Mean depth of the first − that of the second; None where either has no token.

    ``n`` is the number of requests of the smaller task.
    """
    samples = [_sample(first), _sample(second)]
    known = [sample for sample in samples if sample is not None]
    if len(known) < 2:
        return None
    return _interval(known, [1.0, -1.0], level, resamples, seed)


def compare_tasks(
    tasks: Mapping[str, Depths],
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> list[DepthDifference]:
    """Every pair of tasks, in the order given; p-values corrected over all pairs (Holm)."""
    found = []
    for number, (a, b) in enumerate(combinations(tasks, 2)):
        difference = mean_difference(
            tasks[a], tasks[b], level=level, resamples=resamples, seed=seed + number
        )
        if difference is None:
            continue
        distance, by_chance, p = distance_test(
            tasks[a], tasks[b], permutations=permutations, seed=seed + number
        )
        found.append(DepthDifference(a, b, difference, distance, by_chance, p, None))
    tested = [pair.p_value for pair in found if pair.p_value is not None]
    adjusted = iter(holm(tested))
    return [
        pair if pair.p_value is None else replace(pair, adjusted_p=next(adjusted)) for pair in found
    ]


def distance_test(
    first: Depths, second: Depths, *, permutations: int = PERMUTATIONS, seed: int = 0
) -> tuple[float, float | None, float | None]:
    """Total-variation distance of two tasks' depth shares, its mean by chance, and a p-value.

    Requests are dealt anew to two groups of the same sizes. p = (1 + permutations at least as far)
    / (1 + permutations); the last two are None below ``MIN_REQUESTS`` requests in either task.

    Raises:
        ValueError: a task has no token.
    """
    deepest = max((d for requests in (first, second) for r in requests for d in r), default=0)
    counts = np.concatenate([_histograms(first, deepest), _histograms(second, deepest)])
    size = len([r for r in first if r])
    group = np.zeros((1, len(counts)), dtype=np.float64)
    group[0, :size] = 1.0
    distance = float(_distances(group, counts)[0])
    if min(size, len(counts) - size) < MIN_REQUESTS:
        return distance, None, None
    rng = np.random.default_rng(seed)
    parts = [
        _distances(rng.permuted(np.repeat(group, rows, axis=0), axis=1), counts)
        for rows in in_parts(permutations, group.size)
    ]
    random = np.concatenate(parts)
    # Equal up to rounding counts as equally far: equal tasks must not look unlike.
    farther = int(np.count_nonzero(random >= distance - 1e-12))
    return distance, float(random.mean()), (1 + farther) / (1 + permutations)


@dataclass(frozen=True)
class _Sample:
    """Per request: the sum of depths and the number of tokens."""

    loops: FloatArray
    tokens: FloatArray

    @property
    def size(self) -> int:
        return len(self.tokens)

    def resampled(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Ratio and its linearised variance for each line of ``weights`` ``[B, requests]``.

        The variance is n/(n − 1) · Σ w·(loops − ratio·tokens)² / (Σ w·tokens)².
        """
        n, total = self.size, weights @ self.tokens
        ratio = weights @ self.loops / total
        residual = (
            weights @ self.loops**2
            - 2 * ratio * (weights @ (self.loops * self.tokens))
            + ratio**2 * (weights @ self.tokens**2)
        )
        variance = np.maximum(residual, 0.0) / total**2 * (n / (n - 1) if n > 1 else np.nan)
        return ratio, variance


def _sample(requests: Depths) -> _Sample | None:
    kept = [r for r in requests if r]  # a request without a later token says nothing
    if not kept:
        return None
    loops = np.array([sum(r) for r in kept], dtype=np.float64)
    return _Sample(loops, np.array([len(r) for r in kept], dtype=np.float64))


def _interval(
    samples: Sequence[_Sample], signs: Sequence[float], level: float, resamples: int, seed: int
) -> Interval:
    """Bootstrap-t interval of Σ sign · ratio over independent samples."""
    smallest = min(sample.size for sample in samples)
    whole = [sample.resampled(np.ones((1, sample.size))) for sample in samples]
    estimate = float(sum(sign * ratio[0] for sign, (ratio, _) in zip(signs, whole, strict=True)))
    if smallest < MIN_REQUESTS:
        return Interval(estimate, None, None, smallest)
    error = float(np.sqrt(sum(variance[0] for _, variance in whole)))
    rng = np.random.default_rng(seed)
    value = np.zeros(resamples)
    variance = np.zeros(resamples)
    for sign, sample in zip(signs, samples, strict=True):
        n, done = sample.size, 0
        for rows in in_parts(resamples, n):
            weights = rng.multinomial(n, np.full(n, 1 / n), size=rows).astype(np.float64)
            ratio, spread = sample.resampled(weights)
            value[done : done + rows] += sign * ratio
            variance[done : done + rows] += spread
            done += rows
    # A resample without spread has no t; it would be an infinite one.
    usable = variance > 1e-24
    if error <= 1e-12 or not usable.any():
        return Interval(estimate, None, None, smallest)  # no spread: nothing to be learnt from it
    t = (value[usable] - estimate) / np.sqrt(variance[usable])
    low, high = np.quantile(t, [(1 - level) / 2, (1 + level) / 2])
    reach = (float(high) * error, float(low) * error)
    return Interval(estimate, estimate - reach[0], estimate - reach[1], smallest)


def _histograms(requests: Depths, deepest: int) -> FloatArray:
    """Tokens per depth of each request that has one, ``[requests, depths]``."""
    kept = [r for r in requests if r]
    if not kept:
        raise ValueError("a task without a token has no depths to compare")
    return np.array(
        [np.bincount(np.asarray(r), minlength=deepest + 1)[1:] for r in kept], dtype=np.float64
    )


def _distances(groups: FloatArray, counts: FloatArray) -> FloatArray:
    """½ Σ |share − share| of the two sides of each line of ``groups`` ``[B, requests]``."""
    inside = groups @ counts
    outside = counts.sum(axis=0) - inside
    shares = inside / inside.sum(axis=1, keepdims=True)
    others = outside / outside.sum(axis=1, keepdims=True)
    distances: FloatArray = np.abs(shares - others).sum(axis=1) / 2
    return distances

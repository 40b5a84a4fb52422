"""A gate that looks several times: when it may stop, and what it would say of given pairs.

    for n in LOOKS:                      # 6, 12, 24 pairs
        judged = judge([paired_gain(logs[:n]) for logs in series], margins, look_errors()[i])
        if settled([each.decision for each in judged]): break

``decide`` is that loop on log ratios that are there already: for self-tests and simulations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdbench.stats.gains import Gain, paired_gain
from cdbench.stats.gate import LOOKS, Decision, look_errors, overall
from cdbench.stats.gate import judge as judge_gains

MOST_ENUMERATED = 10_000
"""Above, choices of signs are drawn, not listed."""

BISECTIONS = 12
LARGEST_LOSS = 1.0
"""More than twice the time is not looked for."""

Series = Sequence[Sequence[float]]
"""Log ratios, one list a check and one number a pair."""
Signs = NDArray[np.int8]


@dataclass(frozen=True)
class Ended:
    """What a gate said, and after how many pairs."""

    decision: Decision
    pairs: int


def settled(decisions: Sequence[Decision]) -> bool:
    """Whether to measure no more: a check failed, or every one passed."""
    return overall(decisions) is not Decision.INCONCLUSIVE


def decide(series: Series, margins: Sequence[float], looks: Sequence[int] = LOOKS) -> Ended:
    """What a gate with these looks says of these pairs.

    Raises:
        ValueError: there are fewer pairs than the last look needs.
    """
    if any(len(logs) < looks[-1] for logs in series):
        raise ValueError(f"{min(map(len, series))} pairs; the last look needs {looks[-1]}")
    decision = Decision.INCONCLUSIVE
    for pairs, errors in zip(looks, look_errors(looks), strict=True):
        judged = judge_gains([_gain(logs[:pairs]) for logs in series], margins, errors)
        decision = overall([each.decision for each in judged])
        if settled([each.decision for each in judged]):
            return Ended(decision, pairs)
    return Ended(decision, looks[-1])


def sign_choices(pairs: int, most: int = MOST_ENUMERATED, seed: int = 0) -> tuple[Signs, bool]:
    """Choices of signs ``[choice, pair]``, and whether they are all there are.

    All of them where there are at most ``most``, else that many, drawn from the seed.
    """
    if 2**pairs <= most:
        listed = list(itertools.product((1, -1), repeat=pairs))
        return np.array(listed, np.int8), True
    draw = np.random.default_rng(seed)
    return (2 * draw.integers(0, 2, (most, pairs), np.int8) - 1).astype(np.int8), False


def flipped(series: Series, signs: Signs) -> Iterator[list[list[float]]]:
    """The series under each choice; a pair's sign is the same for every check."""
    values = np.asarray(series, np.float64)
    for choice in signs:
        yield (values * choice).tolist()


def smallest_loss(
    series: Series, margins: Sequence[float], which: int, looks: Sequence[int]
) -> float:
    """The smallest loss of one check, as a share, at which a gate on these pairs FAILs.

    Infinite where it does not below ``LARGEST_LOSS``.
    """

    def fails(loss: float) -> bool:
        shifted = [
            [log - math.log1p(loss) * (place == which) for log in logs]
            for place, logs in enumerate(series)
        ]
        return decide(shifted, margins, looks).decision is Decision.FAIL

    return _smallest(fails, LARGEST_LOSS)


def smallest_margin(series: Series, which: int, looks: Sequence[int]) -> float:
    """The smallest margin at which one check on these pairs PASSes; infinite where none does."""

    def passes(margin: float) -> bool:
        return decide([series[which]], [margin], looks).decision is Decision.PASS

    return _smallest(passes, LARGEST_LOSS)


def _smallest(holds: Callable[[float], bool], most: float) -> float:
    if not holds(most):
        return math.inf
    low, high = 0.0, most
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def _gain(logs: Sequence[float]) -> Gain:
    found = paired_gain(logs)
    assert found is not None, "a look has pairs"
    return found

"""Speed-ups from interleaved runs.

Modes run in palindromic blocks, A B C C B A, in one warm process. Summing a mode's two runs of a
block cancels a linear drift of the machine, so a block gives one observation per pair of modes: the
log of the ratio of their walls. Logs, because a ratio and its inverse are then equally far from no
change.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from cdbench.stats.interval import Interval

MIN_BLOCKS = 6
"""Fewer blocks give an estimate without an interval."""

RUNS_PER_BLOCK = 2

LEVEL = 0.95
"""Of an interval, where the number of blocks was fixed beforehand (see ``looks`` otherwise)."""


@dataclass(frozen=True)
class BlockRun:
    """One timed run: ``wall_s`` seconds of ``mode`` in block ``index``, in one scope."""

    index: int
    mode: str
    wall_s: float


def palindrome(modes: Sequence[str], rotate: int = 0) -> list[str]:
    """The order of one block, A B C C B A; ``rotate`` starts it at another mode.

    The middle mode runs twice in a row. Passing the block's index as ``rotate`` hands that place
    round.

    Raises:
        ValueError: a mode is listed twice.
    """
    if len(set(modes)) != len(modes):
        raise ValueError(f"modes {', '.join(modes)}: each may be listed once")
    shift = rotate % len(modes) if modes else 0
    order = [*modes[shift:], *modes[:shift]]
    return [*order, *reversed(order)]


def log_ratios(runs: Iterable[BlockRun], mode: str, over: str) -> list[float]:
    """log(wall of ``over`` / wall of ``mode``) of each whole block, in block order.

    A block in which either mode lacks one of its two runs is left out: its drift does not cancel.

    Raises:
        ValueError: a wall is not positive.
    """
    walls: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if not run.wall_s > 0:
            raise ValueError(
                f"block {run.index}, mode {run.mode}: wall {run.wall_s} s is not positive"
            )
        walls[run.index][run.mode].append(run.wall_s)
    return [
        math.log(sum(block[over]) / sum(block[mode]))
        for _, block in sorted(walls.items())
        if len(block[over]) == len(block[mode]) == RUNS_PER_BLOCK
    ]


def speedup(runs: Iterable[BlockRun], mode: str, over: str) -> Interval | None:
    """wall(over) / wall(mode): above 1 where ``mode`` is faster. None without a whole block."""
    return geometric_mean(log_ratios(runs, mode, over))


def geometric_mean(logs: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Geometric mean of ratios given by their logs, with a t interval on the logs.

    The interval is undefined below ``MIN_BLOCKS``; None without an observation.
    """
    centre, reach = _t_interval(logs, level)
    if centre is None:
        return None
    if reach is None:
        return Interval(math.exp(centre), None, None, len(logs))
    return Interval(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach), len(logs))


def mean(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Arithmetic mean of one value per block, with a t interval; same minimum as the ratios."""
    centre, reach = _t_interval(values, level)
    if centre is None:
        return None
    if reach is None:
        return Interval(centre, None, None, len(values))
    return Interval(centre, centre - reach, centre + reach, len(values))


def _t_interval(values: Sequence[float], level: float) -> tuple[float | None, float | None]:
    """Mean and half-width: None without a value, the second also below ``MIN_BLOCKS``."""
    if not values:
        return None, None
    array = np.asarray(values, dtype=np.float64)
    centre = float(array.mean())
    if len(array) < MIN_BLOCKS:
        return centre, None
    error = float(array.std(ddof=1)) / math.sqrt(len(array))
    return centre, float(stats.t.ppf((1 + level) / 2, len(array) - 1)) * error

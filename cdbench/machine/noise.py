"""How noisy this machine is: the same work timed against itself, as modes are.

The work runs in palindromic blocks A B B A in which A and B are the same, so every ratio should be
1. How far a block's ratio strays tells how small an effect an interval over so many blocks can
show. Repeats of a real run are longer than those of the probe, which averages out what is random
from moment to moment, but not a disturbance that lasts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, stdev

from scipy import stats

from cdbench.stats.blocks import BlockRun, log_ratios, palindrome

PROBE_BLOCKS = 12
RUN_S = 0.025
"""Length of one run: twelve blocks of four take a little over a second."""

SHOWN_BLOCKS = (6, 12)
_MATRIX = 256


@dataclass(frozen=True)
class Noise:
    """What an A/A probe found. ``spread``: standard deviation of a block's log ratio."""

    blocks: int
    run_s: float
    spread: float

    def visible_effect(self, blocks: int) -> float:
        """Half the width of a 95 % interval over so many blocks, as a share of the ratio.

        A true effect smaller than this is likely to be indistinguishable from none.
        """
        reach = stats.t.isf(0.025, blocks - 1) * self.spread / math.sqrt(blocks)
        return math.expm1(float(reach))


def probe(
    work: Callable[[], None],
    blocks: int = PROBE_BLOCKS,
    run_s: float = RUN_S,
    clock: Callable[[], float] = time.perf_counter,
) -> Noise:
    """Time ``work`` against itself. Each run repeats it until it lasts about ``run_s`` seconds.

    Raises:
        ValueError: fewer than two blocks have no spread.
    """
    if blocks < 2:
        raise ValueError(f"{blocks} blocks: a spread needs two")
    times = _repeats(work, run_s, clock)
    runs = []
    for block in range(blocks):
        for side in palindrome(("a", "b"), rotate=block):
            start = clock()
            for _ in range(times):
                work()
            runs.append(BlockRun(block, side, clock() - start))
    return Noise(blocks, median(run.wall_s for run in runs), stdev(log_ratios(runs, "a", "b")))


def matmul_work(device: str) -> Callable[[], None]:
    """A small matrix product on a torch device, waited for: the size of one launch's work."""
    import torch

    matrix = torch.ones(_MATRIX, _MATRIX, device=device) / _MATRIX

    def work() -> None:
        torch.mm(matrix, matrix)
        if matrix.is_cuda:
            torch.cuda.synchronize(matrix.device)

    return work


def _repeats(work: Callable[[], None], run_s: float, clock: Callable[[], float]) -> int:
    """How often to do the work in one run; doing it meanwhile warms it up."""
    times = 1
    while True:
        start = clock()
        for _ in range(times):
            work()
        took_s = clock() - start
        if took_s >= run_s / 2:
            return max(1, round(times * run_s / took_s))
        times *= 2

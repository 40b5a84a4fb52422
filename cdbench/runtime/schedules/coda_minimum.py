"""``coda_min_rows: auto``: the minimum of least cost, from stage curves and the run's own exits.

The cost model is ``cdbench.metrics.coda_minimum``. It is asked when the curves are handed over,
with the depths of all tokens served until then, or with 1 … R in equal parts before there are any;
and while a run goes on after fixed counts of tokens, if their depths have come to differ. Nothing
here reads a clock, so equal work gives equal launches. Without curves the minimum is 1.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from cdbench.metrics.coda_minimum import Depths, best_minimum
from cdbench.metrics.curves import MeasuredCurves
from cdbench.runtime.core import IntArray

FIRST, AGAIN = 16, 4
"""Tokens a row of width after which depths are first looked at; then after so many times more."""
ENOUGH = 2
"""Tokens a row of width that say more of depths than nothing does."""
CHANGED = 0.05
"""Depths that are this far from those that the minimum was chosen for: a share of all tokens."""


class AutoMinimum:
    """How many rows a coda launch waits for, by tokens in flight."""

    def __init__(self, width: int, max_residents: int, max_loops: int) -> None:
        self.width, self.residents = width, max_residents
        self._loops = np.zeros(max_residents, np.int64)
        """Of each resident's token in flight."""
        self._curves: MeasuredCurves | None = None
        self._planned_for = self._depths = Depths.even(max_loops)
        self._planned = self._full = 1
        self._in_force = 1
        self.chosen: Counter[int] = Counter()
        """Coda launches by the minimum that was in force."""
        self._look_afresh(FIRST * width)

    def use(self, curves: MeasuredCurves) -> None:
        """Choose from these curves from now on, in the middle of their contexts.

        Raises:
            ValueError: they do not reach the width.
        """
        if self._tokens >= ENOUGH * self.width:
            self._planned_for = self._seen
        self._planned = self._best(curves, self._planned_for)
        self._curves = curves
        self.restart()

    def restart(self) -> None:
        """Go back to what was chosen as the curves came, so that equal work is served alike."""
        self._full, self._depths = self._planned, self._planned_for
        self._look_afresh(FIRST * self.width)
        self.chosen.clear()

    def rows(self, in_flight: int) -> int:
        """The minimum while so many tokens are in flight, in rows.

        With fewer than there could be it falls in proportion.
        """
        share = (2 * self._full * in_flight + self.residents) // (2 * self.residents)
        self._in_force = max(1, min(share, self.width, in_flight))
        return self._in_force

    def entered(self, residents: IntArray) -> None:
        """Tokens before their first loop, or back from host memory: their loops are counted on."""
        self._loops[residents] = 0

    def ran_core(self, residents: IntArray) -> None:
        """Count a core launch."""
        self._loops[residents] += 1

    def ran_coda(self, rows: int, done: IntArray) -> None:
        """Count a coda launch: its rows, and whose tokens it ended."""
        self.chosen[self._in_force] += 1
        self._coda_rows += rows
        self._done += done.size
        loops = self._loops[done]
        self._by_depth += np.bincount(loops, minlength=self._by_depth.size)
        self._tokens += int(np.count_nonzero(loops))
        if self._tokens >= self._period:
            self._look()

    def note(self) -> str:
        """What was chosen, for a reader of the result."""
        if self._curves is None:
            return "coda_min_rows auto: 1, since there were no stage curves to choose from"
        if not self.chosen:
            return "coda_min_rows auto: no coda ran"
        (mostly, _), *_ = self.chosen.most_common(1)
        low, high = min(self.chosen), max(self.chosen)
        varied = f" (from {low} to {high})" if low < high else ""
        return f"coda_min_rows auto: mostly {mostly}{varied}, chosen from the stage curves"

    def _look(self) -> None:
        """Choose anew where the depths seen are others than those that were chosen for."""
        seen, noise = self._seen, 1 / math.sqrt(self._tokens)
        self._look_afresh(AGAIN * self._period)
        if self._curves is None:
            self._planned_for = seen
        elif seen.distance(self._depths) > CHANGED + noise:
            self._full, self._depths = self._best(self._curves, seen), seen

    def _look_afresh(self, period: int) -> None:
        self._period = period
        self._tokens = self._done = self._coda_rows = 0
        self._by_depth = np.zeros(len(self._depths.shares) + 1, np.int64)

    @property
    def _seen(self) -> Depths:
        """The depths of the tokens counted."""
        shares = tuple(self._by_depth[1:].astype(float).tolist())
        return Depths(shares, read_out=self._coda_rows > self._done)

    def _best(self, curves: MeasuredCurves, depths: Depths) -> int:
        context = curves.middle_context("core")
        return best_minimum(curves, depths, self.width, self.residents, context)

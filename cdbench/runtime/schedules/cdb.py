"""Continuous depth batching (arXiv 2608.09444): the batch is re-formed at every loop.

A token waits in the core queue (any depth) or in the coda queue (exited). Coda first once it has
``coda_min_rows`` rows, then prefill when the token level offers one, then a core launch of mixed
depths. Survivors go back to the head of the core queue and refills to its tail, so the oldest token
is always served first and none starves. A coda below its minimum flushes when nothing else can run,
so there is no deadlock.
"""

from __future__ import annotations

import numpy as np

from cdbench.runtime.core import IntArray
from cdbench.runtime.schedules.base import (
    NOBODY,
    PREFILL,
    Launch,
    Schedule,
    Verdict,
    VerdictArray,
    Work,
    joined,
    places,
    without,
)


class ContinuousDepth(Schedule):
    """Mixed-depth core launches of up to ``width`` rows."""

    def __init__(self, width: int, coda_min_rows: int = 1) -> None:
        self.width = width
        self.coda_min_rows = min(coda_min_rows, width)
        self._core = NOBODY
        self._coda = NOBODY

    def enter(self, residents: IntArray, place: np.int8 = Verdict.LOOP) -> None:
        if place == Verdict.LOOP:
            self._core = joined(self._core, residents)
        else:
            self._coda = joined(self._coda, residents)

    def next_launch(self, prefill_offered: bool) -> Launch | None:
        if self._coda.size >= self.coda_min_rows:
            return self._launch_coda()
        if prefill_offered:
            return PREFILL
        if self._core.size:
            rows, self._core = self._core[: self.width], self._core[self.width :]
            return Launch(Work.CORE, rows)
        return self._launch_coda() if self._coda.size else None

    def _launch_coda(self) -> Launch:
        rows, self._coda = self._coda[: self.width], self._coda[self.width :]
        return Launch(Work.CODA, rows)

    def signals(self, launch: Launch, verdicts: VerdictArray) -> None:
        loops_on = verdicts == Verdict.LOOP
        self._core = joined(launch.residents[loops_on], self._core)
        if launch.work is Work.CORE:
            # Exited or to be read out; after a coda launch, what does not loop on is done.
            self._coda = joined(self._coda, launch.residents[~loops_on])

    def leave(self, residents: IntArray) -> VerdictArray:
        left = places(residents, self._coda)
        self._core, self._coda = without(self._core, residents), without(self._coda, residents)
        return left

    @property
    def in_flight(self) -> int:
        return self._core.size + self._coda.size

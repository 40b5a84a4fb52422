"""Continuous depth batching (arXiv 2608.09444): the batch is re-formed at every loop.

A token waits in the core queue (any depth) or in the coda queue (exited). Coda first once it has
``coda_min_rows`` rows, then prefill when the token level offers one, then a core launch of mixed
depths. Survivors go back to the head of the core queue and refills to its tail, so the oldest token
is always served first and none starves. A coda below its minimum flushes when nothing else can run,
so there is no deadlock. A prompt chunk that may ride takes part in the core launch instead.
"""

from __future__ import annotations

import numpy as np

from cdbench.metrics.curves import MeasuredCurves
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
from cdbench.runtime.schedules.coda_minimum import AutoMinimum


class ContinuousDepth(Schedule):
    """Mixed-depth core launches of up to ``width`` rows.

    ``auto`` chooses the coda's minimum as the run goes on, in place of ``coda_min_rows``.
    """

    def __init__(self, width: int, coda_min_rows: int = 1, auto: AutoMinimum | None = None) -> None:
        self.width = width
        self.coda_min_rows = min(coda_min_rows, width)
        self.auto = auto
        self._core = NOBODY
        self._coda = NOBODY

    def enter(self, residents: IntArray, place: np.int8 = Verdict.LOOP) -> None:
        if place == Verdict.LOOP:
            self._core = joined(self._core, residents)
            if self.auto is not None:
                self.auto.entered(residents)
        else:
            self._coda = joined(self._coda, residents)

    def next_launch(self, prefill_offered: bool, may_ride: bool = False) -> Launch | None:
        least = self.coda_min_rows if self.auto is None else self.auto.rows(self.in_flight)
        if self._coda.size >= least:
            return self._launch_coda()
        if prefill_offered and not (may_ride and self._core.size):
            return PREFILL
        if self._core.size:
            rows, self._core = self._core[: self.width], self._core[self.width :]
            return Launch(Work.CORE, rows, rides=may_ride)
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
        if self.auto is not None:
            if launch.work is Work.CORE:
                self.auto.ran_core(launch.residents)
            else:
                self.auto.ran_coda(launch.residents.size, launch.residents[~loops_on])

    def leave(self, residents: IntArray) -> VerdictArray:
        left = places(residents, self._coda)
        self._core, self._coda = without(self._core, residents), without(self._coda, residents)
        return left

    @property
    def in_flight(self) -> int:
        return self._core.size + self._coda.size

    def use_curves(self, curves: MeasuredCurves) -> None:
        if self.auto is not None:
            self.auto.use(curves)

    def start_afresh(self) -> None:
        if self.auto is not None:
            self.auto.restart()

    @property
    def note(self) -> str | None:
        return None if self.auto is None else self.auto.note()

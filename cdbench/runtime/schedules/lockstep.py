"""Token-boundary batching: the batch is formed once per token and not refilled between loops.

With an adaptive rule this is `lockstep`: the batch loops on, shrinking, until its last token has
exited, and only then runs one coda for all. With rule ``none`` nothing leaves early and the same
policy is continuous batching per token as ordinary engines do it: modes ``static``, ``static@d``
and, with one loop, ``dense``.

Prompts run between batches; a chunk that may ride takes part in any core launch of a batch.
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


class Lockstep(Schedule):
    """Batches of up to ``width`` tokens that start and end together."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._waiting = NOBODY
        self._batch = {v: NOBODY for v in (Verdict.LOOP, Verdict.READ_OUT, Verdict.EXIT)}

    def enter(self, residents: IntArray, place: np.int8 = Verdict.LOOP) -> None:
        if place == Verdict.LOOP:
            # Also one that comes back in the middle of its loops: it starts with the next batch.
            self._waiting = joined(self._waiting, residents)
        else:
            self._batch[Verdict.EXIT] = joined(self._batch[Verdict.EXIT], residents)

    def next_launch(self, prefill_offered: bool, may_ride: bool = False) -> Launch | None:
        # A readout decides who loops on, so it comes before the next loop; the exited wait for all.
        for verdict, work in (
            (Verdict.READ_OUT, Work.CODA),
            (Verdict.LOOP, Work.CORE),
            (Verdict.EXIT, Work.CODA),
        ):
            held = self._batch[verdict]
            if held.size:
                # Tokens that came back from host memory may be more than a launch has room for.
                rows, self._batch[verdict] = held[: self.width], held[self.width :]
                return Launch(work, rows, rides=may_ride and work is Work.CORE)
        if prefill_offered and not (may_ride and self._waiting.size):
            return PREFILL
        if self._waiting.size:
            rows, self._waiting = self._waiting[: self.width], self._waiting[self.width :]
            return Launch(Work.CORE, rows, rides=may_ride)
        return None

    def signals(self, launch: Launch, verdicts: VerdictArray) -> None:
        for verdict, held in self._batch.items():
            self._batch[verdict] = joined(held, launch.residents[verdicts == verdict])

    def leave(self, residents: IntArray) -> VerdictArray:
        batch = self._batch
        left = places(residents, joined(batch[Verdict.READ_OUT], batch[Verdict.EXIT]))
        self._waiting = without(self._waiting, residents)
        self._batch = {v: without(held, residents) for v, held in batch.items()}
        return left

    @property
    def in_flight(self) -> int:
        return self._waiting.size + sum(held.size for held in self._batch.values())

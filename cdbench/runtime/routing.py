"""Routing: where the rows of a decode launch go from there, by what is known of them.

A rule's tests come to the host behind their launch. At lag 0 they say who leaves after it, and are
waited for. At lag 1 they say who leaves after the next one: a launch's rows are routed by the tests
of the launches before it, which have had all its time to arrive, and the device is never idle
because the host waits for what it has just begun.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from cdbench.runtime.calls import look_ahead
from cdbench.runtime.core import BoolArray, IntArray
from cdbench.runtime.new_tokens import NewTokens
from cdbench.runtime.prefill import PrefillJob
from cdbench.runtime.readback import Array, Awaited, Chosen, LoopTests
from cdbench.runtime.runner import Runner
from cdbench.runtime.schedules.base import Launch, Schedule, Verdict


class Routing:
    """Runs core and coda launches and tells the schedule, and the tokens, what became of them."""

    def __init__(
        self, runner: Runner, schedule: Schedule, new_tokens: NewTokens, awaited: Awaited
    ) -> None:
        self.runner, self.residents = runner, runner.residents
        self.schedule, self.new_tokens, self.awaited = schedule, new_tokens, awaited

    def core(self, launch: Launch, job: PrefillJob | None) -> int:
        """Run a loop, with the chunk of ``job`` that rides in it; the prompt tokens of that."""
        res = self.residents
        rows = launch.residents
        # Making room may have brought the job to its end.
        if job is not None and job.may_ride:
            prompt_tokens, tests = job.next_tokens, job.ride(rows)
        else:
            prompt_tokens, tests = 0, self.runner.core(rows)
        self.awaited.take_all()
        if tests.readback is not None:
            self.awaited.expect(tests.readback, partial(self._record, tests))
            if not self._is_late(rows):
                self.awaited.take_all()
        exited = res.exited(rows)
        verdicts = np.where(exited, Verdict.EXIT, Verdict.LOOP)
        if res.any_reads_out:
            # A readout may be what decides; if this loop is the exit it is the token's coda too.
            verdicts[res.reads_out[rows] & ~exited] = Verdict.READ_OUT
        self.schedule.signals(launch, verdicts)
        return prompt_tokens

    def coda(self, launch: Launch) -> None:
        """Read out the rows: of those that have exited, the next token is there."""
        res = self.residents
        rows = launch.residents
        chosen = self.runner.coda(rows)
        self.awaited.take_all()
        verdicts = np.full(rows.size, Verdict.DONE)
        if res.any_reads_out and (asking := res.reads_out[rows]).any():
            if self._is_late(rows[asking]):
                # Who leaves is known already, and its next token begins before this is.
                self._record_later(rows, asking & ~res.exited(rows), chosen)
            else:
                res.decide(rows, chosen.met())
            verdicts[asking & ~res.exited(rows)] = Verdict.LOOP
            done = verdicts == Verdict.DONE
            rows, chosen = rows[done], chosen.of(done)
        self.schedule.signals(launch, verdicts)
        if rows.size:
            depths = res.loop[rows], res.requested_depths(rows)
            self.new_tokens.take(rows, chosen, *depths)

    def _is_late(self, rows: IntArray) -> bool:
        """Whether what a launch says of these rows decides only about the next one."""
        return bool(self.residents.lag[rows].all())

    def _record_later(self, rows: IntArray, mask: BoolArray, chosen: Chosen) -> None:
        """Record the tests of a readout, of some of its rows, once they are there."""
        read, loops = rows[mask], self.residents.loop[rows[mask]]

        def record(_tokens: Array, _logprobs: Array, met: BoolArray) -> None:
            self.residents.record(read, loops, met[mask])

        self.awaited.expect(chosen.readback, record)

    def _record(self, tests: LoopTests, met: BoolArray, calls: BoolArray | None = None) -> None:
        """Take what a launch has said of its rows: whose rule is met, and what gates call."""
        res = self.residents
        res.record(tests.residents, tests.loops, met)
        if res.foresight.any:
            nobody = np.zeros_like(met)
            look_ahead(res, tests.residents, tests.loops, nobody if calls is None else calls)

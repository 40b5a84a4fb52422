"""Requests on their way to a first token: arriving, waiting, admitted, their prompts running.

It says when a prompt may run (*offers*) and carries its launches out one by one; the schedule says
which launch is next.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from cdbench.runtime.arrivals import Arrivals
from cdbench.runtime.core import Clock, IntArray
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.memory import Memory
from cdbench.runtime.pacing import Pacing
from cdbench.runtime.prefill import FirstTokens, PrefillJob


class Intake:
    """Who waits to be admitted, and the pack of prompts that is under way."""

    def __init__(
        self,
        config: EngineConfig,
        width: int,
        memory: Memory,
        clock: Clock,
        pacing: Pacing | None,
    ) -> None:
        self.config, self.memory, self.clock, self.pacing = config, memory, clock, pacing
        self.residents = memory.residents
        self.min_free = config.min_free_residents or max(1, width // 8)
        self.arrivals = Arrivals()
        self.job: PrefillJob | None = None

    @property
    def preparing(self) -> set[int]:
        """The residents whose prompts are running."""
        return set(self.job.prompts) if self.job is not None else set()

    def offers(self) -> bool:
        """A job under way, or enough free residents for waiting requests to be worth a launch."""
        if self.job is not None:
            return self._is_in_time()
        free, waiting = self.residents.free_count, self.arrivals.waiting
        if not waiting or not free:
            return False
        enough = min(self.min_free, len(waiting))
        if free < enough and self.residents.occupied_count:
            return False
        return self._is_in_time() and self.memory.can_admit(waiting[0])

    def offers_ride(self) -> bool:
        """Whether what is offered may share a core launch with decode rows."""
        return self.config.ride and self.job is not None and self.job.may_ride

    def step(self) -> tuple[int, FirstTokens | None]:
        """Make a prefill's next launch: the prompt tokens in it, and first tokens at its end."""
        if self.job is None:
            self.job = self._admit()
        job, tokens = self.job, self.job.next_tokens
        first = job.step()
        if first is not None:
            self.job = None
            for r, ids in job.prompts.items():
                self.memory.cache.close_prompt(r, ids, self.residents.request(r).positions)
        return tokens, first

    def _is_in_time(self) -> bool:
        """Whether ``max_itl_s`` leaves room for the prompt tokens of the launch that comes next."""
        if self.pacing is None:
            return True
        preparing = self.preparing
        decoding = np.setdiff1d(self.residents.occupied, list(preparing))
        if self.job is not None:
            tokens = self.job.next_tokens
        else:
            coming = islice(self.arrivals.waiting, self.residents.free_count)
            tokens = sum(len(request.prompt) for request in coming)
            tokens = min(tokens, self.pacing.chunk_tokens(decoding.size))
        return self.pacing.allows(decoding, tokens, len(preparing), self.clock.now())

    def _admit(self) -> PrefillJob:
        """Make waiting requests resident, in order, while room and the prefill budget last."""
        prompts: dict[int, IntArray] = {}
        starts: dict[int, int] = {}
        room = self.config.prefill_tokens
        now, waiting = self.clock.now(), self.arrivals.waiting
        while waiting and self.residents.free_count:
            request = waiting[0]
            if prompts and (len(request.prompt) > room or not self.memory.can_admit(request)):
                break
            waiting.popleft()
            resident, ids, cached = self.memory.admit(request, now)
            prompts[resident], starts[resident] = ids, cached
            room -= ids.size - cached
        self.residents.upload()
        chunk_tokens = self.config.prefill_tokens
        if self.pacing is not None:
            chunk_tokens = self.pacing.chunk_tokens(self.memory.schedule.in_flight)
        return PrefillJob(
            self.memory.runner,
            prompts,
            self.residents.max_loops,
            chunk_tokens,
            select_first=self.config.first_token == "select",
            starts=starts,
        )

"""What is done when KV rows run out: who is admitted, who waits in host memory, who comes back.

A request is admitted when the rows of its prompt are free. If a launch then lacks rows, cached
prefixes that nobody reads are given up first, and then the youngest residents are moved to host
memory, in the middle of a token where need be: rows, state, signals, sampling position, all bit for
bit. They come back, oldest first, before anyone new is admitted. Nothing is ever computed again, so
pressure changes no result.

The host budget cannot lose state either. Oldest first, residents whose worst case fits the pools
together are *covered*; the others' worst case must fit the host budget before one more request is
admitted. Only uncovered residents are ever moved, so the host always has room for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from cdbench.runtime.cache_shape import StageRows
from cdbench.runtime.core import IntArray, Request, Stage
from cdbench.runtime.kv_cache import KVCache
from cdbench.runtime.prefix_cache import Prefix
from cdbench.runtime.residents import Residents, SavedResident
from cdbench.runtime.runner import Runner
from cdbench.runtime.schedules.base import Launch, Schedule, Verdict, Work
from cdbench.runtime.stage_cache import SavedRows


@dataclass(frozen=True)
class Preempted:
    """A request in host memory, and where its token in flight goes on."""

    resident: SavedResident
    rows: dict[Stage, SavedRows]
    carried: list[Tensor]
    place: np.int8

    @property
    def bytes(self) -> int:
        return sum(rows.bytes for rows in self.rows.values())


@dataclass
class MemoryCounters:
    """What pressure has cost so far."""

    preemptions: int = 0
    mid_token: int = 0
    """Preemptions of a token that had run at least one loop."""
    swapped_bytes: int = 0
    """Bytes of KV copied to host memory."""
    peak_host_bytes: int = 0


class Memory:
    """Decides over the rows of one engine; the cache, residents and schedule carry it out."""

    def __init__(
        self,
        cache: KVCache,
        residents: Residents,
        runner: Runner,
        schedule: Schedule,
        host_bytes: int | None,
    ) -> None:
        self.cache, self.residents = cache, residents
        self.runner, self.schedule = runner, schedule
        self.host_bytes = host_bytes
        self.preempted: deque[Preempted] = deque()
        self.counters = MemoryCounters()
        self.settle: Callable[[], None] = lambda: None
        """Has what launches have yet to say of the residents written down, before one is moved."""

    # Admission.

    def can_admit(self, request: Request) -> bool:
        """Whether the rows of its prompt are free, or can be made so by giving up prefixes."""
        if self.cache.budget_bytes is None:
            return True
        if self.preempted or not self._host_covers(request):
            return False
        ids = np.asarray(request.prompt, dtype=np.int64)
        # Everyone in flight may want a row for the loop that comes next.
        spare = self.residents.occupied_count + 1 if self.residents.occupied_count else 0
        while True:
            prefix = self.cache.cached_prefix(ids, request.positions)
            cached = prefix.length if prefix is not None else 0
            rows = self.cache.prompt_rows(ids.size, request.positions, cached)
            if self._are_free(rows, spare):
                return True
            if not self._evict_towards(rows, spare, keep=prefix):
                return False

    def admit(self, request: Request, now_s: float) -> tuple[int, IntArray, int]:
        """Make a request resident: its number, its prompt, and how much of that is cached."""
        resident = self.residents.admit(request, now_s)
        ids = np.asarray(request.prompt, dtype=np.int64)
        prefix = self.cache.cached_prefix(ids, request.positions)
        return resident, ids, self.cache.open_prompt(resident, ids, request.positions, prefix)

    def _are_free(self, rows: StageRows, spare: int) -> bool:
        free = self.cache.free_rows
        return all(free[stage] >= count + spare for stage, count in rows.items())

    def _evict_towards(self, rows: StageRows, spare: int, keep: Prefix | None) -> bool:
        """Give up one prefix, where giving up all of them could free enough rows."""
        if self.cache.prefixes is None:
            return False
        free, cached = self.cache.free_rows, self.cache.prefixes.positions
        for stage, count in rows.items():
            lines = self.cache.max_loops if stage is Stage.CORE else 1
            if free[stage] + cached * lines < count + spare:
                return False
        if keep is not None:
            keep.pins += 1
        gone = self.cache.evict_prefix()
        if keep is not None:
            keep.pins -= 1
            # With nothing else left, the prefix it would have used has to go as well.
            gone = gone or self.cache.evict_prefix()
        return gone

    def _host_covers(self, request: Request) -> bool:
        """Whether all that might have to be moved, this request with it, fits the host budget."""
        if self.host_bytes is None:
            return True
        held = [r for r in self.residents.requests if r is not None]
        ages = self.residents.age[self.residents.occupied]
        by_age = [held[i] for i in np.argsort(ages)] + [request]
        left = {stage: cache.pool.rows for stage, cache in self.cache.stages.items()}
        uncovered = 0
        for one in by_age:
            worst = self.cache.worst_rows(len(one.prompt), one.positions)
            if not uncovered and all(worst[stage] <= left[stage] for stage in left):
                left = {stage: left[stage] - worst[stage] for stage in left}
            else:
                uncovered += one.positions * self.cache.position_bytes
        return uncovered <= self.host_bytes

    # Pressure.

    def make_room(
        self, launch: Launch, preparing: Callable[[], set[int]], finish: Callable[[], None]
    ) -> Launch:
        """The launch, less those of its residents that had to go for it to have its rows.

        ``preparing`` tells whose prompts are running; they stay until ``finish`` has been called.
        """
        if self.cache.budget_bytes is None:
            return launch
        while launch.residents.size and self._lacks_rows(launch):
            if self.cache.evict_prefix():
                continue
            occupied = self.residents.occupied
            youngest = int(occupied[np.argmax(self.residents.age[occupied])])
            if youngest in preparing():
                finish()
                continue
            if occupied.size == 1:
                break
            launch = self._preempt(youngest, launch)
        return launch

    def _lacks_rows(self, launch: Launch) -> bool:
        rows, res = launch.residents, self.residents
        positions = res.position[rows]
        stages = self.cache.stages
        if launch.work is Work.CORE:
            core = stages[Stage.CORE]
            if core.pool.free_count >= rows.size:
                return False
            return core.pool.free_count < core.rows_missing(rows, positions, res.loop[rows] + 1)
        coda, prelude = stages.get(Stage.CODA), stages.get(Stage.PRELUDE)
        if coda is not None and coda.pool.free_count < rows.size:
            ones = np.ones_like(rows)
            if coda.pool.free_count < coda.rows_missing(rows, positions, ones):
                return True
        if prelude is None:
            return False
        # A token that is not the last is followed at once by the next one's prelude.
        going_on = res.outputs.count[rows] + 1 < res.limit[rows]
        return prelude.pool.free_count < int(np.count_nonzero(going_on))

    def _preempt(self, resident: int, launch: Launch) -> Launch:
        """Move a resident to host memory, out of the launch or out of the schedule's queues."""
        self.settle()
        mine = launch.residents == resident
        if mine.any():
            launch = replace(launch, residents=launch.residents[~mine])
            place = Verdict.LOOP if launch.work is Work.CORE else Verdict.EXIT
        else:
            place = self.schedule.leave(np.array([resident]))[0]
        count = self.counters
        count.preemptions += 1
        count.mid_token += int(self.residents.loop[resident] > 0)
        carried = self.runner.carried.save(resident)
        gone = Preempted(self.residents.save(resident), self.cache.save(resident), carried, place)
        # Whoever was preempted earlier is younger still.
        self.preempted.appendleft(gone)
        count.swapped_bytes += gone.bytes
        count.peak_host_bytes = max(count.peak_host_bytes, self.host_bytes_in_use)
        return launch

    @property
    def host_bytes_in_use(self) -> int:
        return sum(request.bytes for request in self.preempted)

    def restore(self) -> None:
        """Bring back preempted requests, oldest first, while there is room for them."""
        while self.preempted and self.residents.free_count:
            back = self.preempted[0]
            rows = {stage: saved.rows for stage, saved in back.rows.items()}
            spare = self.residents.occupied_count + 1 if self.residents.occupied_count else 0
            while not self._are_free(rows, spare):
                if not self.cache.evict_prefix():
                    return
            self.preempted.popleft()
            resident = self.residents.restore(back.resident)
            self.cache.restore(resident, back.rows)
            self.runner.carried.restore(resident, back.carried)
            self.schedule.enter(np.array([resident]), back.place)

    def withdraw(self, request_id: str) -> Preempted | None:
        """Take a preempted request out, for good."""
        for gone in self.preempted:
            if gone.resident.request.id == request_id:
                self.preempted.remove(gone)
                return gone
        return None

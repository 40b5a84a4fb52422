"""Loop-major prefill: loop k over all chunks, states kept, then loop k + 1.

At loop k prompt tokens read one another's loop-k keys under every KV layout, so cutting a prompt
into chunks inside a loop changes nothing. A job is one pack of admitted prompts; it makes one
launch a step, so that the schedule may put decode launches between them. A step at a loop may also
ride in a core launch of the decode rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from cdbench.runtime.attention.sdpa import Segment
from cdbench.runtime.core import BoolArray, IntArray
from cdbench.runtime.first_token import Selection
from cdbench.runtime.prompt_launches import PrefillChunk, PromptLaunches
from cdbench.runtime.readback import Chosen, LoopTests
from cdbench.runtime.runner import Runner


@dataclass(frozen=True)
class FirstTokens:
    """What a finished prefill yields, aligned with ``residents``.

    ``depths`` is the loop each token was read from: R, or the one that its rule selected.
    """

    residents: IntArray
    chosen: Chosen
    depths: IntArray


@dataclass(frozen=True)
class _Step:
    """One launch of a job: over ``chunk`` at ``loop``, or at a boundary stage (None)."""

    run: Callable[[], object]
    chunk: PrefillChunk | None = None
    loop: int | None = None


class PrefillJob:
    """The prompts of newly admitted residents on their way to their first tokens.

    ``start`` says how many of a prompt's tokens are cached already and need not run.
    """

    def __init__(
        self,
        runner: Runner,
        prompts: dict[int, IntArray],
        max_loops: int,
        chunk_tokens: int,
        select_first: bool = False,
        starts: dict[int, int] | None = None,
    ) -> None:
        # Equal lengths side by side become one attention call.
        self.order = sorted(prompts, key=lambda r: (prompts[r].size, r))
        self.prompts = prompts
        self.runner = runner
        self.launches = PromptLaunches(runner)
        self.max_loops = max_loops
        self.result: FirstTokens | None = None
        spans = [(r, (starts or {}).get(r, 0), prompts[r].size) for r in self.order]
        self.chunks = [self._chunk(segments) for segments in cut(spans, chunk_tokens)]
        self.residents = np.array(self.order, dtype=np.int64)
        self.selection = Selection(runner, self.residents, max_loops) if select_first else None
        self._left = deque(self._steps())

    def step(self) -> FirstTokens | None:
        """Run one launch; the first tokens once the last has run."""
        if self._left:
            self._left.popleft().run()
        return self.result

    @property
    def next_tokens(self) -> int:
        """Prompt tokens of the launch that comes next; 0 where only last positions are read."""
        chunk = self._left[0].chunk if self._left else None
        return 0 if chunk is None else chunk.ids.size

    @property
    def may_ride(self) -> bool:
        """Whether the launch that comes next is a core launch, which decode rows can share."""
        return bool(self._left) and self._left[0].loop is not None

    def ride(self, rows: IntArray) -> LoopTests:
        """Run the step that comes next in one core launch with these decode rows.

        Answers what is seen of the decode rows, as ``Runner.core`` does. ``may_ride`` must hold.
        """
        step = self._left.popleft()
        assert step.chunk is not None
        assert step.loop is not None, "only a step at a loop may ride"
        watch = self.selection is not None
        tests, chunk_met = self.launches.core_with_decode(rows, step.chunk, step.loop, watch)
        self._observe(step.chunk, step.loop, chunk_met)
        return tests

    def _chunk(self, segments: list[Segment]) -> PrefillChunk:
        ids = np.concatenate(
            [self.prompts[s.resident][s.start : s.start + s.length] for s in segments]
        )
        last = np.cumsum([s.length for s in segments]) - 1
        ends = np.array(
            [s.start + s.length == self.prompts[s.resident].size for s in segments], np.bool_
        )
        who = np.array([s.resident for s in segments], np.int64)
        return PrefillChunk(segments, ids, last[ends], who[ends])

    def _steps(self) -> Iterator[_Step]:
        launches, selects = self.launches, self.selection is not None
        for chunk in self.chunks:
            yield _Step(partial(launches.prelude, chunk, select_first=selects), chunk)
        for loop in range(1, self.max_loops + 1):
            for chunk in self.chunks:
                yield _Step(partial(self._core, chunk, loop), chunk, loop)
        if self.runner.model.dims.coda_layers:
            for chunk in self.chunks:
                yield _Step(partial(launches.coda, chunk), chunk)
        yield _Step(self._finish)

    def _core(self, chunk: PrefillChunk, loop: int) -> None:
        met = self.launches.core(chunk, loop, watch=self.selection is not None)
        self._observe(chunk, loop, met)

    def _observe(self, chunk: PrefillChunk, loop: int, met: BoolArray) -> None:
        if self.selection is not None:
            self.selection.observe(chunk, loop, met)

    def _finish(self) -> None:
        if not self.runner.model.dims.coda_layers:
            # The coda runs for the last positions alone; what was gathered of the loops is its.
            for chunk in self.chunks:
                self.launches.coda(chunk)
        self.result = self._first_tokens()

    def _first_tokens(self) -> FirstTokens:
        if self.selection is not None:
            return FirstTokens(self.residents, *self.selection.first_tokens())
        full = np.full_like(self.residents, self.max_loops)
        rows = np.concatenate([chunk.residents for chunk in self.chunks])
        hidden = torch.cat([chunk.last_rows() for chunk in self.chunks])
        return FirstTokens(rows, self.launches.first_tokens(rows, hidden), full)


def cut(spans: list[tuple[int, int, int]], chunk_tokens: int) -> list[list[Segment]]:
    """Cut packed prompts (resident, start, end) into runs of at most ``chunk_tokens`` tokens."""
    chunks: list[list[Segment]] = [[]]
    room = chunk_tokens
    for resident, start, end in spans:
        while start < end:
            if room == 0:
                chunks.append([])
                room = chunk_tokens
            take = min(room, end - start)
            chunks[-1].append(Segment(resident, start, take))
            start += take
            room -= take
    return chunks

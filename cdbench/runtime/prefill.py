"""Loop-major prefill: loop k over all chunks, states kept, then loop k + 1.

At loop k prompt tokens read one another's loop-k keys under every KV layout, so cutting a prompt
into chunks inside a loop changes nothing. A job is one pack of admitted prompts; it is a generator
with one launch per step, so that the schedule may put decode launches between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from cdbench.runtime.attention.sdpa import Segment
from cdbench.runtime.core import FloatArray, IntArray
from cdbench.runtime.first_token import Selection
from cdbench.runtime.runner import PrefillChunk, Runner


@dataclass(frozen=True)
class FirstTokens:
    """What a finished prefill yields, aligned with ``residents``.

    ``depths`` is the loop each token was read from: R, or the one that its rule selected.
    """

    residents: IntArray
    tokens: IntArray
    logprobs: FloatArray
    depths: IntArray


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
        self.max_loops = max_loops
        self.result: FirstTokens | None = None
        spans = [(r, (starts or {}).get(r, 0), prompts[r].size) for r in self.order]
        self.chunks = [self._chunk(segments) for segments in cut(spans, chunk_tokens)]
        self.residents = np.array(self.order, dtype=np.int64)
        self.selection = Selection(runner, self.residents, max_loops) if select_first else None
        self._steps = self._launches()

    def step(self) -> FirstTokens | None:
        """Run one launch; the first tokens once the last has run."""
        next(self._steps, None)
        return self.result

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

    def _launches(self) -> Iterator[None]:
        runner = self.runner
        for chunk in self.chunks:
            runner.prefill_prelude(chunk, select_first=self.selection is not None)
            yield
        for loop in range(1, self.max_loops + 1):
            for chunk in self.chunks:
                met = runner.prefill_core(chunk, loop, watch=self.selection is not None)
                if self.selection is not None:
                    self.selection.observe(chunk, loop, met)
                yield
        for chunk in self.chunks:
            # Without layers the coda runs for the last positions alone.
            if runner.prefill_coda(chunk):
                yield
        self.result = self._first_tokens()

    def _first_tokens(self) -> FirstTokens:
        if self.selection is not None:
            return FirstTokens(self.residents, *self.selection.first_tokens())
        full = np.full_like(self.residents, self.max_loops)
        rows = np.concatenate([chunk.residents for chunk in self.chunks])
        hidden = torch.cat([chunk.last_rows() for chunk in self.chunks])
        return FirstTokens(rows, *self.runner.first_tokens(rows, hidden), full)


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

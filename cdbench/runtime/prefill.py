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
from torch import Tensor

from cdbench.models.base import ModelDims
from cdbench.runtime.attention.sdpa import Segment
from cdbench.runtime.core import FloatArray, IntArray
from cdbench.runtime.runner import Runner


@dataclass(frozen=True)
class FirstTokens:
    """What a finished prefill yields, aligned with ``residents``."""

    residents: IntArray
    tokens: IntArray
    logprobs: FloatArray


class PrefillJob:
    """The prompts of newly admitted residents on their way to their first tokens."""

    def __init__(
        self, runner: Runner, prompts: dict[int, IntArray], max_loops: int, chunk_tokens: int
    ) -> None:
        # Equal lengths side by side become one attention call.
        self.order = sorted(prompts, key=lambda r: (prompts[r].size, r))
        self.prompts = prompts
        self.runner = runner
        self.max_loops = max_loops
        self.chunks = _chunks([(r, prompts[r].size) for r in self.order], chunk_tokens)
        self.result: FirstTokens | None = None
        self._steps = self._launches()

    def step(self) -> FirstTokens | None:
        """Run one launch; the first tokens once the last has run."""
        next(self._steps, None)
        return self.result

    def _launches(self) -> Iterator[None]:
        runner, dims = self.runner, self.runner.model.dims
        states: list[Tensor] = []
        injections: list[Tensor | None] = []
        for chunk in self.chunks:
            state, injection = runner.prefill_prelude(chunk, self._ids(chunk))
            states.append(state)
            injections.append(injection)
            yield
        for loop in range(1, self.max_loops + 1):
            for i, chunk in enumerate(self.chunks):
                states[i] = runner.prefill_core(chunk, loop, states[i], injections[i])
                yield
        if dims.coda_layers:
            for i, chunk in enumerate(self.chunks):
                states[i] = runner.prefill_coda(chunk, states[i])
                yield
        self.result = self._first_tokens(dims, states)

    def _first_tokens(self, dims: ModelDims, states: list[Tensor]) -> FirstTokens:
        residents = np.array(self.order, dtype=np.int64)
        last = np.cumsum([self.prompts[r].size for r in self.order]) - 1
        hidden = torch.cat(states)[torch.from_numpy(last).to(states[0].device)]
        tokens, logprobs = self.runner.first_tokens(residents, hidden, bool(dims.coda_layers))
        return FirstTokens(residents, tokens, logprobs)

    def _ids(self, chunk: list[Segment]) -> IntArray:
        return np.concatenate(
            [self.prompts[s.resident][s.start : s.start + s.length] for s in chunk]
        )


def _chunks(lengths: list[tuple[int, int]], chunk_tokens: int) -> list[list[Segment]]:
    """Cut the packed prompts into runs of at most ``chunk_tokens`` tokens, in order."""
    chunks: list[list[Segment]] = [[]]
    room = chunk_tokens
    for resident, length in lengths:
        start = 0
        while start < length:
            if room == 0:
                chunks.append([])
                room = chunk_tokens
            take = min(room, length - start)
            chunks[-1].append(Segment(resident, 0, start, take))
            start += take
            room -= take
    return chunks

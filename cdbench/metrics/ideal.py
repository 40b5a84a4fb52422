"""What later tokens cost at ideal packing: stage curves, each token at its own context.

Ideal packing means that every launch of a stage has the width at which a row is cheapest, so that
nothing is lost to empty rows, small launches or the host. The bounds in time and the waterfall
start from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cdbench.metrics.curves import Curves, CurveStage, FloatArray

PromptAndDepths = tuple[int, Sequence[int]]
"""A request's prompt tokens, and the loops of each of its output tokens (entry 0: the first)."""


@dataclass(frozen=True)
class LaterTokens:
    """Later tokens, one entry each: positions its query attends to, and its loops, ``[N]``."""

    contexts: FloatArray
    loops: FloatArray

    @property
    def count(self) -> int:
        return int(self.loops.size)

    @cached_property
    def by_context(self) -> TokensByContext:
        """The same by context: tokens of one context cost the same, and are few of many."""
        contexts, place = np.unique(self.contexts, return_inverse=True)
        counts = np.bincount(place, minlength=contexts.size).astype(np.float64)
        loops = np.bincount(place, weights=self.loops, minlength=contexts.size)
        return TokensByContext(contexts, counts, loops.astype(np.float64))


class TokensByContext(NamedTuple):
    """Contexts, how many tokens each has, and the sum of their loops, ``[C]``."""

    contexts: FloatArray
    counts: FloatArray
    loops: FloatArray


class StageSums(NamedTuple):
    """One number for each stage: seconds, or rows."""

    prelude: float
    core: float
    coda: float

    @property
    def total(self) -> float:
        return self.prelude + self.core + self.coda


@dataclass(frozen=True)
class Packing:
    """How a mode's launches are costed: up to ``width`` rows each, on these curves.

    With ``readout_every_loop`` every loop has a row in a coda launch, and the last of them is the
    token's own coda.
    """

    curves: Curves
    width: int
    readout_every_loop: bool = False
    prelude: CurveStage = "prelude"
    core: CurveStage = "core"
    coda: CurveStage = "coda"

    def with_exit(self) -> Packing:
        """The same with what early exits cost: signal, test and readback, and settled slots."""
        return replace(
            self, prelude="prelude_with_exit", core="core_with_exit", coda="coda_with_exit"
        )

    def rows(self, tokens: LaterTokens) -> StageSums:
        """Rows of launches of each stage that these tokens need."""
        loops = float(tokens.loops.sum())
        return StageSums(tokens.count, loops, loops if self.readout_every_loop else tokens.count)

    def ideal_s(self, tokens: LaterTokens) -> StageSums:
        """Seconds of each stage: t̂_prelude + loops·t̂_core + t̂_coda a token.

        With a readout at every loop it is t̂_prelude + loops·(t̂_core + t̂_coda).

        Raises:
            ValueError: the curves do not reach the width.
        """
        contexts, counts, loops = tokens.by_context
        row_s = self.row_s(contexts)
        coda_rows = loops if self.readout_every_loop else counts
        return StageSums(
            float((counts * row_s.prelude).sum()),
            float((loops * row_s.core).sum()),
            float((coda_rows * row_s.coda).sum()),
        )

    def row_s(self, contexts: FloatArray) -> RowTimes:
        """t̂ of each stage at these contexts, seconds a row ``[N]``."""
        stages = (self.prelude, self.core, self.coda)
        return RowTimes(*(self.curves.ideal_row_s(s, self.width, contexts) for s in stages))


class RowTimes(NamedTuple):
    """Seconds a row of each stage, ``[N]``."""

    prelude: FloatArray
    core: FloatArray
    coda: FloatArray


def later_tokens(requests: Iterable[PromptAndDepths]) -> LaterTokens:
    """The later tokens of requests.

    Later token i stands at position prompt + i − 1 (the first token's id is the first row that
    decodes), so it attends to prompt + i positions, itself included.
    """
    contexts, loops = [np.empty(0)], [np.empty(0)]
    for prompt_tokens, depths in requests:
        loops.append(np.asarray(depths[1:], dtype=np.float64))
        contexts.append(prompt_tokens + np.arange(1.0, max(1, len(depths))))
    return LaterTokens(np.concatenate(contexts), np.concatenate(loops))


def prefill_s(prompts: Iterable[int], curves: Curves, chunk_tokens: int) -> float:
    """Seconds of all prompts' prefill in chunks of the best size up to ``chunk_tokens``."""
    return sum(prompts) * curves.prefill_token_s(chunk_tokens)

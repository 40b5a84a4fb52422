"""Where the curves are measured: widths, contexts, and sizes of prefill chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from cdbench.bench.plan import Plan
from cdbench.errors import UsageError
from cdbench.stages.cells import LATER_TOKENS, SHORTEST_CONTEXT

NEAR_POSITIONS = 16
"""Contexts closer than this are measured as one. So few positions are 0.3 % of the arithmetic of a
layer of 1,024 hidden units, far less than what passes over the same launch differ by."""
CHUNKS = 4
"""Prefill chunks are measured at so many sizes, each twice the one before, up to the largest."""


def widths(width: int) -> list[int]:
    """1, 2, 4, …, three quarters of the width, and the width itself.

    Most launches are nearly full, and between the last two powers of two a line is a poor guess:
    kernels go over to other block sizes there.
    """
    powers = [1 << k for k in range(width.bit_length()) if 1 << k < width]
    return sorted({*powers, max(1, 3 * width // 4), width})


def chunk_sizes(prefill_tokens: int, residents: int, max_positions: int) -> list[int]:
    """1/8, 1/4, 1/2 and all of the largest chunk of prompts that so many residents can bring."""
    largest = min(prefill_tokens, residents * max_positions)
    return sorted({max(1, largest >> halved) for halved in range(CHUNKS)})


def context_limits(max_positions: int) -> tuple[int, int]:
    """The shortest and the longest context that a cell can have.

    Its prompt has a token or more, and its last token a position.
    """
    return SHORTEST_CONTEXT, max_positions - LATER_TOKENS + SHORTEST_CONTEXT - 1


def checked_contexts(plan: Plan, contexts: Sequence[int]) -> tuple[int, ...]:
    """The contexts in order, each once. UsageError where there is none or one does not fit."""
    low, high = context_limits(plan.model.network.dims.max_positions)
    wrong = next((c for c in contexts if not low <= c <= high), None)
    if wrong is not None:
        raise UsageError(
            f"contexts: {wrong} cannot be measured on {plan.model.name}; use {low} to {high} "
            "positions"
        )
    if not contexts:
        raise UsageError("contexts: none given; name at least one, in positions")
    return tuple(sorted(set(contexts)))


def later_contexts(requests: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Contexts of all later tokens, in order, from (prompt, output) tokens of each request.

    Later token i attends to prompt + i positions. UsageError where no request has one.
    """
    spans = [np.arange(prompt + 1, prompt + output) for prompt, output in requests]
    contexts = np.sort(np.concatenate([np.empty(0, np.int64), *spans]))
    if not contexts.size:
        raise UsageError("stage curves: no request has a later token; give --contexts")
    return tuple(int(c) for c in contexts)


def grid_contexts(later: Sequence[int], max_positions: int) -> tuple[int, ...]:
    """Least, middle and largest of the contexts, without those near a larger one.

    Of near ones the largest stays: hardly a launch of a run has no long row, and the other rows of
    a cell are shorter. What no cell can have is moved to what it can.
    """
    points = np.percentile(np.array(later), (100, 50, 0), method="lower")
    kept: list[int] = []
    for context in np.clip(points, *context_limits(max_positions)):
        if not kept or kept[-1] - context >= NEAR_POSITIONS:
            kept.append(int(context))
    return tuple(reversed(kept))

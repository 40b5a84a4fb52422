"""One cell of the grid: requests that make launches of exactly so many rows at one context.

A decode cell has ``rows`` residents, all of whose prompts run before the first of them decodes, so
that every core launch holds all of them. Tokens are forced. In a plain cell every token runs all
loops and is read out in one coda launch of all rows. With the exit rule tokens leave at scripted
depths, a mix of them, and come back at loop 1 as they do under ``cdb``; each request's depths add
up to the same number of loops, so no launch lacks a row, and the rule's signal, test and readback
are paid at every loop.

``Company`` says whom a row shares its launch with. In a run the rows of a launch attend to unequal
contexts and stand at unequal depths, and a launch of equal rows would not take the same time.

A prefill cell has the prompts of one chunk, which end with their first tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cdbench.metrics.curves import CurveStage
from cdbench.runtime.core import ExitPolicy, LaunchRecord, Request, Stage

CellKind = Literal["plain", "with_exit", "prefill"]

LATER_TOKENS = 3
"""Full-depth tokens' worth of loops a row runs in a decode cell. Odd: one is the middle one."""
SHARED_EXITS = 2
"""Tokens of the least depth that end a decode cell with the exit rule: all rows leave at once, so
that one coda launch and one prelude launch after it hold all of them."""
LONGEST_STALL = 3.0
"""A launch that took this many times the median of its cell and pass was held up from outside."""

STAGES: dict[tuple[CellKind, Stage], CurveStage] = {
    ("plain", Stage.PRELUDE): "prelude",
    ("plain", Stage.CORE): "core",
    ("plain", Stage.CODA): "coda",
    ("with_exit", Stage.PRELUDE): "prelude_with_exit",
    ("with_exit", Stage.CORE): "core_with_exit",
    ("with_exit", Stage.CODA): "coda_with_exit",
}
"""Which curve the decode launches of a cell belong to."""


@dataclass(frozen=True)
class Cell:
    """``rows`` decode rows, the longest at ``context`` positions; or ``rows`` prompt tokens.

    A prefill cell's prompts have ``context`` tokens, or less where the chunk has.
    """

    kind: CellKind
    rows: int
    context: int


@dataclass(frozen=True)
class Launches:
    """What one cell gave in one pass: the mean time of a launch, and of how many."""

    stage: CurveStage
    mean_s: float
    count: int


class Streams:
    """Real text without end, one stream of token ids a resident, each different from the others.

    A stream starts with its own number, written in two token ids: equal beginnings would be cached
    once and read by all, which is faster than what residents of a run have.
    """

    def __init__(self, texts: Sequence[Sequence[int]], vocab_size: int) -> None:
        joined = [token for text in texts for token in text]
        if not joined:
            raise ValueError("stage curves need text: no token was given")
        self._joined = np.array(joined, np.int64)
        self._starts = np.cumsum([0, *(len(text) for text in texts)])[:-1]
        self._vocab_size = vocab_size

    def tokens(self, stream: int, count: int) -> list[int]:
        """The first ``count`` tokens of a stream."""
        number = [stream % self._vocab_size, stream // self._vocab_size % self._vocab_size]
        start = self._starts[stream % self._starts.size]
        places = (start + np.arange(max(0, count - 2))) % self._joined.size
        return [*number, *self._joined[places].tolist()][:count]


@dataclass(frozen=True)
class Company:
    """Whom a row shares its launch with: samples of contexts and depths of later tokens.

    Without ``contexts`` all rows of a cell are at its context; without ``depths`` they are
    1, …, ``max_loops`` in equal parts.
    """

    max_loops: int
    max_positions: int
    contexts: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()

    def row_contexts(self, cell: Cell) -> list[int]:
        """The context of each row: the last at the cell's, the others as the sample below it."""
        below = np.array([c for c in self.contexts if c <= cell.context], np.int64)
        if not below.size or cell.rows == 1:
            return [cell.context] * cell.rows
        shares = (np.arange(cell.rows - 1) + 0.5) / (cell.rows - 1)
        others = np.quantile(below, shares, method="lower")
        return [*(max(int(c), SHORTEST_CONTEXT) for c in others), cell.context]

    def script(self, cell: Cell, row: int) -> list[int]:
        """Depths of one row's later tokens.

        They add up to ``LATER_TOKENS`` times all loops; then come those of the ``SHARED_EXITS``.
        """
        draw = random.Random(f"{cell.rows}/{cell.context}/{row}")
        choices = self.depths or tuple(range(1, self.max_loops + 1))
        left = LATER_TOKENS * self.max_loops
        script: list[int] = []
        while left:
            script.append(min(draw.choice(choices), left))
            left -= script[-1]
        return script + [min(choices)] * SHARED_EXITS


SHORTEST_CONTEXT = (LATER_TOKENS + 1) // 2 + 1
"""At which a plain cell's prompt has one token."""


def decode_requests(
    cell: Cell, streams: Streams, company: Company, policy: ExitPolicy
) -> list[Request]:
    """The residents of a decode cell; the middle one of a row's tokens is at the row's context."""
    requests = []
    for row, context in enumerate(company.row_contexts(cell)):
        depths = None
        later = LATER_TOKENS
        if cell.kind == "with_exit":
            depths = [company.max_loops, *company.script(cell, row)]
            later = len(depths) - 1
        prompt = max(1, min(context - (later + 1) // 2, company.max_positions - later))
        ids = streams.tokens(row, prompt + later + 1)
        requests.append(
            Request(
                id=str(row),
                prompt=ids[:prompt],
                exit=policy,
                force=ids[prompt:],
                replay_depths=depths,
            )
        )
    return requests


def prefill_requests(cell: Cell, streams: Streams, most_prompts: int) -> list[Request]:
    """The prompts of one chunk, of equal length as far as its tokens can be shared out evenly."""
    count = min(most_prompts, -(-cell.rows // cell.context))
    short, longer = divmod(cell.rows, count)
    lengths = [short + (row < longer) for row in range(count)]
    return [
        Request(id=str(row), prompt=ids[:length], force=ids[length:])
        for row, length in enumerate(lengths)
        for ids in (streams.tokens(row, length + 1),)
    ]


def read_launches(cell: Cell, records: Sequence[LaunchRecord]) -> Iterator[Launches]:
    """What the launches of one run of a cell say, stage by stage."""
    if cell.kind == "prefill":
        yield Launches("prefill", sum(r.duration_s for r in records if r.is_prefill), 1)
        return
    first_core = next(i for i, r in enumerate(records) if r.stage is Stage.CORE and r.decode_rows)
    for (kind, stage), curve in STAGES.items():
        # The preludes of the first later tokens follow their prompts: they may have fewer rows,
        # and have no slots to settle.
        times = [
            r.duration_s
            for r in records[first_core:]
            if r.stage is stage and r.decode_rows == cell.rows
        ]
        if kind == cell.kind and times:
            yield Launches(curve, trimmed_mean(times), len(times))


def trimmed_mean(times_s: Sequence[float]) -> float:
    """The mean, without launches that were held up from outside."""
    limit_s = LONGEST_STALL * float(np.median(times_s))
    return float(np.mean([t for t in times_s if t <= limit_s]))

"""What summaries are made from: timed runs and live passes, live or read back from their files.

Nothing here, nor in what computes the summaries (``figures``, ``compared``, ``accuracy``), needs
the runtime: a run directory can be summarised again where there is no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

from cdbench.metrics.registry import evaluate
from cdbench.metrics.trace import RequestTrace, RunTrace
from cdbench.schema.repeats import ModeFacts
from cdbench.schema.samples import SampleRecord
from cdbench.stats.blocks import RUNS_PER_BLOCK


class Repeat(Protocol):
    """One timed run of one mode (``trace.mode``) at its place in the palindromic blocks."""

    @property
    def block(self) -> int: ...
    @property
    def order(self) -> int: ...
    @property
    def trace(self) -> RunTrace: ...


class Answers(Protocol):
    """One mode's live pass: the texts it generated, and a sample of every question."""

    @property
    def results(self) -> Sequence[RequestTrace]: ...
    @property
    def samples(self) -> Sequence[SampleRecord]: ...
    @property
    def prefix_hit_rate(self) -> float | None: ...
    @property
    def preemptions(self) -> int: ...


@dataclass(frozen=True)
class StoredRepeat:
    """A timed run read back. A ``Repeat``."""

    block: int
    order: int
    trace: RunTrace
    facts: ModeFacts

    @cached_property
    def figures(self) -> dict[str, float | None]:
        """Every metric of the run, by name; computed once, however many summaries ask."""
        return evaluate(self.trace)


@dataclass(frozen=True)
class StoredAnswers:
    """A live pass read back. ``Answers``."""

    results: tuple[RequestTrace, ...]
    samples: tuple[SampleRecord, ...]
    prefix_hit_rate: float | None = None
    preemptions: int = 0


AnyRepeat = TypeVar("AnyRepeat", bound=Repeat)


def complete_blocks(runs: Sequence[AnyRepeat]) -> list[AnyRepeat]:
    """The runs of blocks in which every mode ran twice: a torn block favours whoever is in it."""
    places = RUNS_PER_BLOCK * len({run.trace.mode for run in runs})
    sizes = Counter(run.block for run in runs)
    return [run for run in runs if sizes[run.block] == places]

"""Every refused cell in one line, however many there are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cdbench.errors import UsageError

NAMED = 5
"""Cells of one reason that are given with what they change; the others by number."""
REASONS = 12
"""Reasons that are given; of more, the number of cells."""


@dataclass(frozen=True)
class Refusal:
    """A cell that no run would take: ``words`` are what it changes, ``why`` is the run's own."""

    number: int
    words: str
    why: str


def refuse(refused: Sequence[Refusal], total: int, source: str) -> None:
    """Raise UsageError, one line, where any of ``total`` cells is refused."""
    if not refused:
        return
    by_reason: dict[str, list[Refusal]] = {}
    for found in sorted(refused, key=lambda r: r.number):
        by_reason.setdefault(found.why, []).append(found)
    parts = [f"{_cells(found)}: {why}" for why, found in by_reason.items()]
    left = sum(map(len, list(by_reason.values())[REASONS:]))
    parts = [*parts[:REASONS], *([f"and {left} more for other reasons"] if left else [])]
    raise UsageError(f"{source}: {len(refused)} of {total} cells refused: {' | '.join(parts)}")


def _cells(found: Sequence[Refusal]) -> str:
    """``cell 2 (exit=cdf@2), cell 4 (…) and 7-9``."""
    named = ", ".join(f"cell {r.number} ({r.words})" for r in found[:NAMED])
    others = ", ".join(_ranges([r.number for r in found[NAMED:]]))
    return f"{named} and {others}" if others else named


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    """Increasing numbers, those in a row as ``7-9``."""
    for _, row in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in row]
        yield str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"

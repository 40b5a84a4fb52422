"""Which cells of a table are significantly best: the only ones that a paper may print bold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdbench.render.table import Cell, Column, Direction, Row, Table


def mark_best(table: Table) -> Table:
    """The table with its best cells marked, column by column within each group of rows.

    A cell is best where its interval overlaps that of no other number of the column in its group,
    on the better side of them all. None is where the column has no direction, where there is
    nothing to compare with, or where one of the numbers has no interval or is of an INVALID run:
    then it cannot be told. The rows of a group must be of one run: intervals do not hold how far
    runs lie apart.
    """
    rows: list[Row] = []
    for _, group in table.groups():
        best = [
            _best(column, [r.cells[i] for r in group]) for i, column in enumerate(table.columns)
        ]
        rows += [
            replace(row, cells=tuple(_marked(c, best[i] == at) for i, c in enumerate(row.cells)))
            for at, row in enumerate(group)
        ]
    return replace(table, rows=tuple(rows))


def _marked(cell: Cell, best: bool) -> Cell:
    return replace(cell, best=True) if best else cell


def _best(column: Column, cells: Sequence[Cell]) -> int | None:
    """The place of the best cell; None where there is none, or it cannot be told."""
    numbers = [
        (at, cell)
        for at, cell in enumerate(cells)
        if cell.value is not None and not isinstance(cell.value, str)
    ]
    if column.direction == "none" or len(numbers) < 2:
        return None
    intervals: dict[int, tuple[float, float]] = {}
    for at, cell in numbers:
        if cell.low is None or cell.high is None or cell.invalid:
            return None
        intervals[at] = (cell.low, cell.high)
    return next(
        (
            at
            for at, own in intervals.items()
            if all(_beats(own, x, column.direction) for n, x in intervals.items() if n != at)
        ),
        None,
    )


def _beats(one: tuple[float, float], other: tuple[float, float], direction: Direction) -> bool:
    """Whether an interval lies wholly on the better side of another."""
    return one[0] > other[1] if direction == "up" else one[1] < other[0]

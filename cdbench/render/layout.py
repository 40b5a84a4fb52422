"""How a table fits a width: on one line a row, stacked, folded, or one record a row.

In this order a table gives way: intervals go under their values and headers fold; texts fold
between words, to three lines at most; columns of priority above 0 go, the highest first; texts fold
further; at last every row becomes a record, one line a column. A number is never broken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.cells import cell_len

from cdbench.render.formats import Kind, for_encoding
from cdbench.render.table import Cell, Table, marked
from cdbench.render.wrapping import longest_word, wrap

GAP = 2
_MOST_LINES = 3
"""Lines a text may fold to while there is still a column to drop."""
_LEAST_TEXT = 16
"""A text folded below this many columns is a ladder: then a record reads better."""


@dataclass(frozen=True)
class Layout:
    """How a table fits. ``widths`` has one for each column of ``keep``; None: one record a row."""

    keep: tuple[int, ...]
    stacked: bool
    widths: tuple[int, ...] | None


@dataclass(frozen=True)
class Contents:
    """Header and cell texts of one column, with the line breaks of stacked intervals."""

    header: str
    cells: tuple[str, ...]
    folds: bool
    """Whether all cells are texts, which may break between words."""

    @property
    def natural(self) -> int:
        """Columns that it takes unbroken."""
        return max(widest(self.header), widest(*self.cells))

    @property
    def narrowest(self) -> int:
        """Columns that it takes at least, its header folded."""
        words = longest_word(self.header)
        if not self.folds:
            return max(words, widest(*self.cells))
        return max(words, *(longest_word(cell) for cell in self.cells), 0)


def fit(table: Table, width: int, encoding: str | None = "utf-8") -> Layout:
    """The fullest layout of ``table`` that is at most ``width`` columns wide."""
    keep = tuple(range(len(table.columns)))
    whole = [column.natural for column in contents(table, stacked=False, encoding=encoding)]
    if _total(whole) <= width:
        return Layout(keep, False, tuple(whole))
    while True:
        columns = contents(table.select(keep), stacked=True, encoding=encoding)
        if (widths := _folded(columns, width, _few_lines)) is not None:
            return Layout(keep, True, widths)
        droppable = [i for i in keep if table.columns[i].priority > 0]
        if not droppable:
            return Layout(keep, True, _folded(columns, width, _legible))
        # Of equal priorities the rightmost goes first.
        worst = max(droppable, key=lambda i: (table.columns[i].priority, i))
        keep = tuple(i for i in keep if i != worst)


def contents(table: Table, stacked: bool, encoding: str | None = "utf-8") -> list[Contents]:
    """Every column's texts as the encoding can carry them."""
    marks = table.footnotes()
    return [
        Contents(
            for_encoding(marked(column.header, column.note, marks), encoding),
            tuple(
                for_encoding(content(row.cells[index], marks, stacked), encoding)
                for row in table.rows
            ),
            folds=all(row.cells[index].kind is Kind.TEXT for row in table.rows),
        )
        for index, column in enumerate(table.columns)
    ]


def content(cell: Cell, marks: dict[str, str], stacked: bool) -> str:
    """A cell's text, its interval under the value where it is ``stacked``."""
    formatted = cell.formatted()
    if not stacked or not formatted.interval:
        return marked(formatted.line, cell.note, marks)
    return f"{marked(formatted.value, cell.note, marks)}\n{formatted.interval}"


def widest(*texts: str) -> int:
    """Columns of the longest line of all texts."""
    return max((cell_len(line) for text in texts for line in text.split("\n")), default=0)


def _total(widths: list[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _unfolded(column: Contents) -> int:
    """Columns where only the header folds."""
    return max(longest_word(column.header), widest(*column.cells))


def _folded(
    columns: list[Contents], width: int, least: Callable[[Contents], int]
) -> tuple[int, ...] | None:
    """Widths that fit, the widest texts folded first; None where even the least are too wide."""
    floors = [least(column) for column in columns]
    if _total(floors) > width:
        return None
    wanted = [max(_unfolded(column), _low_header(column)) for column in columns]
    widths = [max(pair) for pair in zip(floors, wanted, strict=True)]
    while _total(widths) > width:
        shrinkable = [i for i, floor in enumerate(floors) if widths[i] > floor]
        widths[max(shrinkable, key=lambda i: widths[i])] -= 1
    return tuple(widths)


def _few_lines(column: Contents) -> int:
    """The least width at which no text takes more than a few lines."""
    if not column.folds:
        return column.narrowest
    candidates = range(column.narrowest, column.natural)
    return next(
        (width for width in candidates if _lines(column, width) <= _MOST_LINES), column.natural
    )


def _low_header(column: Contents) -> int:
    """The least width at which the header takes no more than a few lines."""
    candidates = range(longest_word(column.header), widest(column.header))
    few = (width for width in candidates if len(wrap(column.header, width)) <= _MOST_LINES)
    return next(few, widest(column.header))


def _lines(column: Contents, width: int) -> int:
    return max((len(wrap(cell, width)) for cell in column.cells), default=0)


def _legible(column: Contents) -> int:
    """The least width at which a text can still be read."""
    if not column.folds:
        return column.narrowest
    return max(column.narrowest, min(_unfolded(column), _LEAST_TEXT))

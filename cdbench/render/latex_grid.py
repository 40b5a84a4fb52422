"""The rows of a LaTeX table: on one line each, or folded where they are wider than a page.

A folded row has its intervals under their values and its texts broken between words, as a terminal
shows it; the lines are rows of the ``tabular``, so that no package is needed. What is too wide even
so goes on in a further ``tabular`` below, with the columns that name the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from cdbench.render.latex_text import SIGNS, escape, number
from cdbench.render.table import ARROWS, Cell, Column, Row, Table
from cdbench.render.wrapping import longest_word, wrap

LINE = 72
"""Characters of a row that a page of text takes on one line, gaps included."""
_FOLDED_LINE = 88
"""The same of a folded row, whose letters are smaller."""
_GAP = 1.5
_ARROW = 2
_TINY = 0.7
"""Width of a letter of an interval, in those of its value."""
_LEAST_TEXT = 14
_INDENT = "  "


@dataclass(frozen=True)
class Grid:
    """How a table is set. ``widths``: characters of each column where it is folded, else None."""

    table: Table
    marks: dict[str, str]
    siunitx: bool
    widths: tuple[int, ...] | None

    @classmethod
    def of(cls, table: Table, marks: dict[str, str], *, siunitx: bool) -> list[Grid]:
        """The parts that it takes: one where a row fits a line, or a folded one a page."""
        columns = range(len(table.columns))
        if sum(_natural(table, at) + _GAP for at in columns) <= LINE:
            return [cls(table, marks, siunitx, None)]
        folded = [_folded(table, at) for at in columns]
        return [
            cls(table.select(keep), marks, siunitx, tuple(folded[at] for at in keep))
            for keep in _parts(table, [_room(table, at, folded[at]) for at in columns])
        ]

    def lines(self) -> Iterator[str]:
        """The ``tabular``, with the size of its letters before it."""
        aligns = "".join("r" if column.align == "right" else "l" for column in self.table.columns)
        yield r"\small" if self.widths is None else r"\footnotesize"
        yield r"\setlength{\tabcolsep}{3pt}"
        yield rf"\begin{{tabular}}{{@{{}}{aligns}@{{}}}}"
        yield r"\toprule"
        yield from self._spans()
        yield from self._titles()
        yield r"\midrule"
        for place, (group, rows) in enumerate(self.table.groups()):
            if group is not None:
                yield from self._group(group, first=place == 0)
            for row in rows:
                yield from self._row(row)
        yield r"\bottomrule"
        yield r"\end{tabular}"

    def _spans(self) -> Iterator[str]:
        if not any(column.group for column in self.table.columns):
            return
        cells, rules, at = [], [], 1
        for group, columns in self.table.column_groups():
            end = at + len(columns) - 1
            if group is None:
                cells.append("")
            else:
                cells.append(rf"\multicolumn{{{len(columns)}}}{{c}}{{{escape(group)}}}")
                rules.append(rf"\cmidrule(lr){{{at}-{end}}}")
            at = end + 1
        yield _line(cells)
        yield " ".join(rules)

    def _titles(self) -> Iterator[str]:
        """The last line of every title stands on the rule, and has arrow and mark."""
        found = [self._title(at, column) for at, column in enumerate(self.table.columns)]
        height = max(map(len, found))
        yield from _lines([[""] * (height - len(lines)) + lines for lines in found])

    def _title(self, at: int, column: Column) -> list[str]:
        words = _words(column)
        lines = [words] if self.widths is None else wrap(words, self.widths[at])
        arrow = SIGNS.get(ARROWS[column.direction], "")
        last = " ".join(part for part in (escape(lines[-1]), arrow) if part)
        return [*(escape(line) for line in lines[:-1]), last + self._mark(column.note)]

    def _group(self, name: str, *, first: bool) -> Iterator[str]:
        if not first:
            yield r"\addlinespace"
        across = rf"\multicolumn{{{len(self.table.columns)}}}{{@{{}}l}}"
        yield rf"{across}{{\textit{{{escape(name)}}}}} \\"

    def _row(self, row: Row) -> Iterator[str]:
        cells = [self._cell(at, cell) for at, cell in enumerate(row.cells)]
        if self.widths is None:
            yield from _lines([[" ".join(lines)] for lines in cells])
        else:
            yield from _lines(cells)
            yield r"\addlinespace[2pt]"

    def _cell(self, at: int, cell: Cell) -> list[str]:
        """Value and interval, or a text in lines; the mark stands beside the first of them."""
        mark = self._mark(cell.note)
        if isinstance(cell.value, str):
            lines = [cell.value] if self.widths is None else wrap(cell.value, self.widths[at])
            first, *rest = (escape(line) for line in lines)
            return [first + mark, *rest]
        value, interval = cell.formatted()
        # siunitx has a weight of its own: it would set a bold number light.
        shown = number(value, siunitx=self.siunitx and not cell.best)
        if cell.best:
            shown = rf"\textbf{{{shown}}}"
        if not interval:
            return [shown + mark]
        size = r"\scriptsize" if self.widths is None else r"\tiny"
        small = rf"{{{size} {number(interval, siunitx=self.siunitx)}}}"
        # On one line the mark ends the cell; folded it belongs to the value.
        return [shown, small + mark] if self.widths is None else [shown + mark, small]

    def _mark(self, note: str | None) -> str:
        return rf"\textsuperscript{{{self.marks[note]}}}" if note else ""


def _words(column: Column) -> str:
    """Title and unit; the arrow is not for wrapping."""
    return " ".join(
        part for part in (column.title, f"({column.unit})" if column.unit else "") if part
    )


def _natural(table: Table, at: int) -> int:
    """Characters of a column on one line."""
    cells = [cell_len(row.cells[at].formatted().line) for row in table.rows]
    return max([cell_len(_words(table.columns[at])) + 2, *cells])


def _folded(table: Table, at: int) -> int:
    """Characters of a column whose intervals stand below and whose texts are broken."""
    widths = [longest_word(_words(table.columns[at]))]
    for row in table.rows:
        cell = row.cells[at]
        if isinstance(cell.value, str):
            widths += [longest_word(cell.value), min(cell_len(cell.value), _LEAST_TEXT)]
        else:
            widths += map(cell_len, cell.formatted())
    return max(widths)


def _parts(table: Table, rooms: Sequence[float]) -> Iterator[tuple[int, ...]]:
    """The columns of every part, each led by those that name the rows."""
    names = _naming(table)
    left = [at for at in range(len(table.columns)) if at not in names]
    while left:
        room, part = _FOLDED_LINE - sum(rooms[at] for at in names), [left.pop(0)]
        room -= rooms[part[0]]
        while left and rooms[left[0]] <= room:
            room -= rooms[left[0]]
            part.append(left.pop(0))
        yield (*names, *part)


def _naming(table: Table) -> tuple[int, ...]:
    """The first column, and those after it that say what a row is: they have no better side."""
    plain = [column.direction == "none" and column.group is None for column in table.columns]
    count = plain.index(False) if False in plain else 1
    return tuple(range(max(1, count)))


def _room(table: Table, at: int, width: int) -> float:
    """What a folded column takes, its gap included: intervals are small, headers have arrows."""
    header = max(map(cell_len, wrap(_words(table.columns[at]), width)))
    header += _ARROW if table.columns[at].direction != "none" else 0
    values, intervals = [float(header)], [0.0]
    for row in table.rows:
        cell = row.cells[at]
        if isinstance(cell.value, str):
            values.append(max(map(cell_len, wrap(cell.value, width))))
        else:
            value, interval = cell.formatted()
            values.append(cell_len(value))
            intervals.append(cell_len(interval) * _TINY)
    return max(*values, *intervals) + _GAP


def _lines(cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Cells of several lines as rows of a ``tabular``."""
    for place in range(max(map(len, cells))):
        yield _line([lines[place] if place < len(lines) else "" for lines in cells])


def _line(cells: Sequence[str]) -> str:
    return f"{_INDENT}{' & '.join(cells)} \\\\"

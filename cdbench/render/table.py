"""The one table every renderer prints: raw values, which each format shows its own way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cdbench.render.formats import Formatted, Kind, format_value

Direction = Literal["up", "down", "none"]
Align = Literal["left", "right"]

ARROWS: dict[Direction, str] = {"up": "↑", "down": "↓", "none": ""}
DAGGER = "†"
"""Of a run that is INVALID."""


@dataclass(frozen=True)
class Column:
    """A column. ``priority`` 0 always shows; the highest numbers go first on a narrow terminal.

    Neighbours of one ``group`` stand under it as under a common header. ``name`` is what programs
    call the column (``over.static``); where it is empty they take the full title.
    """

    title: str
    unit: str = ""
    direction: Direction = "none"
    align: Align = "right"
    priority: int = 0
    note: str | None = None
    group: str | None = None
    name: str = ""

    @property
    def full_title(self) -> str:
        """``cdb over, static``: the common header, where there is one, and the column's own."""
        return ", ".join(part for part in (self.group, self.title) if part)

    @property
    def header(self) -> str:
        """``tokens/s ↑``: group, title, unit and which way is better, on one line."""
        unit = f"({self.unit})" if self.unit else ""
        return " ".join(part for part in (self.full_title, unit, ARROWS[self.direction]) if part)


@dataclass(frozen=True)
class Cell:
    """A value with its interval, or a text. ``value`` None is undefined and prints ``n/a``.

    ``n`` is how many observations stand behind it; ``note`` becomes a footnote.
    ``best``: significantly better than every cell that it may be compared with; formats for papers
    make it bold. ``invalid``: of a run whose numbers must not be quoted; it carries a dagger, and
    the table says why below.
    """

    value: float | str | None
    kind: Kind = Kind.NUMBER
    low: float | None = None
    high: float | None = None
    n: int | None = None
    note: str | None = None
    best: bool = False
    invalid: bool = False

    def formatted(self) -> Formatted:
        """Value and interval as text, an invalid number with its dagger."""
        shown = format_value(self.value, self.kind, self.low, self.high, self.n)
        if self.invalid and self.value is not None and not isinstance(self.value, str):
            return shown._replace(value=shown.value + DAGGER)
        return shown


@dataclass(frozen=True)
class Row:
    """One line. Rows of one ``group`` follow one another under its name."""

    cells: tuple[Cell, ...]
    group: str | None = None
    emphasis: bool = False


@dataclass(frozen=True)
class Table:
    """Columns, rows and what must be said of them: ``caption`` of the whole, ``notes`` of parts.

    Raises:
        ValueError: a row has another number of cells than there are columns.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    title: str | None = None
    notes: tuple[str, ...] = field(default=())
    caption: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows, start=1):
            if len(row.cells) != len(self.columns):
                raise ValueError(
                    f"row {number} has {len(row.cells)} cells for {len(self.columns)} columns"
                )

    def footnotes(self) -> dict[str, str]:
        """Footnote text → mark, ``a``, ``b``, … in reading order; equal texts share a mark."""
        texts = [column.note for column in self.columns]
        texts += [cell.note for row in self.rows for cell in row.cells]
        unique = dict.fromkeys(text for text in texts if text)
        return {text: _mark(index) for index, text in enumerate(unique)}

    def groups(self) -> list[tuple[str | None, list[Row]]]:
        """Runs of rows that share a group, in order."""
        runs: list[tuple[str | None, list[Row]]] = []
        for row in self.rows:
            if not runs or runs[-1][0] != row.group:
                runs.append((row.group, []))
            runs[-1][1].append(row)
        return runs

    def column_groups(self) -> list[tuple[str | None, list[Column]]]:
        """Runs of columns that stand under one common header; those without one stand alone."""
        runs: list[tuple[str | None, list[Column]]] = []
        for column in self.columns:
            if not runs or column.group is None or runs[-1][0] != column.group:
                runs.append((column.group, []))
            runs[-1][1].append(column)
        return runs

    def select(self, keep: tuple[int, ...]) -> Table:
        """The table with the columns at these places only."""
        return Table(
            columns=tuple(self.columns[i] for i in keep),
            rows=tuple(
                Row(tuple(row.cells[i] for i in keep), row.group, row.emphasis) for row in self.rows
            ),
            title=self.title,
            notes=self.notes,
            caption=self.caption,
        )


def text(value: str, note: str | None = None) -> Cell:
    """A cell of plain text."""
    return Cell(value, Kind.TEXT, note=note)


def marked(content: str, note: str | None, marks: dict[str, str]) -> str:
    """The content with its footnote's mark, if it has one."""
    return f"{content} ({marks[note]})" if note else content


def _mark(index: int) -> str:
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return letters

"""What programs are given of a table: names, raw values in one unit, and no display text.

Values are those that were measured, at full precision: shares and differences as fractions, times
in seconds, sizes in bytes. An absent value (shown as a dash) and an undefined one are both None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cdbench.render.formats import Kind
from cdbench.render.table import Cell, Column, Table

ABSENT = "-"
"""What a table shows where there is nothing to show."""

_UNITS = {
    Kind.PERCENT: "fraction",
    Kind.POINTS: "fraction",
    Kind.RATIO: "ratio",
    Kind.BYTES: "byte",
    Kind.SECONDS: "s",
    Kind.TEXT: "",
}


def column_names(columns: Sequence[Column]) -> list[str]:
    """A name for each column, no two alike: its own, else its full title; a second gets ``.2``."""
    names: list[str] = []
    for column in columns:
        name = unique = column.name or column.full_title
        count = 1
        while unique in names:
            count += 1
            unique = f"{name}.{count}"
        names.append(unique)
    return names


def raw_unit(column: Column, cell: Cell) -> str:
    """The unit of the raw value; empty for a text and for a number without one."""
    if isinstance(cell.value, str):
        return ""
    return _UNITS.get(cell.kind, column.unit)


def raw_value(cell: Cell) -> float | str | None:
    """The value itself; None where there is none, also where it is not finite."""
    if isinstance(cell.value, str):
        return None if cell.value == ABSENT else cell.value
    return finite(cell.value)


def raw_kind(cell: Cell) -> str:
    """What the value is: text, number, count, ratio, percent, points, bytes or seconds."""
    return Kind.TEXT.value if isinstance(cell.value, str) else cell.kind.value


def finite(value: float | None) -> float | None:
    """The number, or None where it is none that JSON could hold."""
    return value if value is not None and math.isfinite(value) else None


def label(table: Table, row: Sequence[Cell]) -> str:
    """The text of a row's first cell, by which a reader finds the row."""
    return row[0].formatted().line if table.columns else ""

"""Tables as CSV, one line a cell: RFC 4180, UTF-8, raw numbers at full precision.

A line names its table, group, row (from 1, in the table's order) and column, so that several
tables share a file and any reader can pivot them. ``value``, ``low``, ``high`` and ``n`` are plain
numbers in ``unit``, or empty; ``notes`` holds the footnotes of the cell and of its column. Captions
and notes of a whole table are lines of their kind without a row, so that no mark is lost.

A text that a spreadsheet could take for a formula begins with an apostrophe (``plain`` takes it
off).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from cdbench.render.raw_values import (
    column_names,
    finite,
    label,
    raw_kind,
    raw_unit,
    raw_value,
)
from cdbench.render.table import Cell, Column, Table

FIELDS = (
    "table",
    "group",
    "row",
    "label",
    "column",
    "value",
    "low",
    "high",
    "n",
    "unit",
    "kind",
    "direction",
    "invalid",
    "best",
    "notes",
)
CAPTION, NOTE = "caption", "note"
"""Kinds of the lines that belong to a whole table."""

_RISKY = ("=", "+", "-", "@", "\t", "\r", "\n", "'")
"""Texts that begin so are guarded: formulas, and the guard itself, so that it can be taken off."""


def to_csv(tables: Sequence[Table]) -> str:
    """All cells of all tables under one header; lines end as RFC 4180 has it."""
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, FIELDS, restval="", lineterminator="\r\n")
    writer.writeheader()
    for number, table in enumerate(tables, start=1):
        name = table.title or f"table {number}"
        writer.writerows({"table": guarded(name), **line} for line in _lines(table))
    return stream.getvalue()


def guarded(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    sound = text.encode("utf-8", "replace").decode("utf-8")
    return f"'{sound}" if sound.startswith(_RISKY) else sound


def plain(text: str) -> str:
    """The text before it was guarded."""
    return text.removeprefix("'")


def _lines(table: Table) -> Iterator[dict[str, str]]:
    names = column_names(table.columns)
    for number, row in enumerate(table.rows, start=1):
        where = {
            "group": guarded(row.group or ""),
            "row": str(number),
            "label": guarded(label(table, row.cells)),
        }
        for name, column, cell in zip(names, table.columns, row.cells, strict=True):
            yield {**where, "column": guarded(name), **_values(column, cell)}
    for kind, texts in ((CAPTION, table.caption), (NOTE, table.notes)):
        for said in texts:
            yield {"column": kind, "value": guarded(said), "kind": kind}


def _values(column: Column, cell: Cell) -> dict[str, str]:
    notes = " ".join(note for note in (column.note, cell.note) if note)
    value = raw_value(cell)
    return {
        "value": guarded(value) if isinstance(value, str) else _number(value),
        "low": _number(cell.low),
        "high": _number(cell.high),
        "n": "" if cell.n is None else str(cell.n),
        "unit": raw_unit(column, cell),
        "kind": raw_kind(cell),
        "direction": "" if column.direction == "none" else column.direction,
        "invalid": _flag(cell.invalid),
        "best": _flag(cell.best),
        "notes": guarded(notes),
    }


def _number(value: float | None) -> str:
    """The shortest text that reads back as the same number."""
    known = finite(value)
    return "" if known is None else repr(known)


def _flag(holds: bool) -> str:
    return "true" if holds else "false"

"""The table as GitHub Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cdbench.render.formats import visible
from cdbench.render.table import Cell, Row, Table, marked

_ENTITIES = str.maketrans(
    {
        "\\": "&#92;",
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        "`": "&#96;",
        "*": "&#42;",
        "~": "&#126;",
    }
)


def to_markdown(table: Table) -> str:
    """A pipe table with title, caption, group rows and footnotes; ends with a newline.

    Of a table without rows only title, caption and notes are left.
    """
    marks = table.footnotes() if table.rows else {}
    above = [f"**{plain(table.title)}**"] if table.title else []
    above += [plain(line) for line in table.caption]
    grid = ["\n".join(_grid(table, marks))] if table.rows else []
    notes = [f"({mark}) {plain(note)}" for note, mark in marks.items()]
    return "\n\n".join([*above, *grid, *map(plain, table.notes), *notes]) + "\n"


def plain(words: str) -> str:
    """A text on one line that means nothing to Markdown or HTML."""
    line = " ".join(visible(words.replace("\n", " ")).split())
    escaped = line.translate(_ENTITIES).replace("](", "]&#40;")
    # Within a word an underscore is only an underscore.
    return re.sub(r"(?<!\w)_|_(?!\w)", "&#95;", escaped)


def _grid(table: Table, marks: dict[str, str]) -> Iterator[str]:
    yield _line([_escape(marked(column.header, column.note, marks)) for column in table.columns])
    yield _line(["---:" if column.align == "right" else ":---" for column in table.columns])
    for group, rows in table.groups():
        if group is not None:
            blanks = [""] * (len(table.columns) - 1)
            yield _line([f"**{_escape(group)}**", *blanks])
        for row in rows:
            yield _line(_cells(row, marks))


def _cells(row: Row, marks: dict[str, str]) -> list[str]:
    texts = [_cell(cell, marks, bold=cell.best and not row.emphasis) for cell in row.cells]
    return [f"**{content}**" if row.emphasis and content else content for content in texts]


def _cell(cell: Cell, marks: dict[str, str], *, bold: bool) -> str:
    """Value, interval and mark; only the value is made bold, not its interval."""
    value, interval = (_escape(part) for part in cell.formatted())
    shown = f"**{value}**" if bold and value else value
    return marked(f"{shown} {interval}".rstrip(), cell.note, marks)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escape(content: str) -> str:
    """Plain, within its cell."""
    return plain(content).replace("|", "\\|")

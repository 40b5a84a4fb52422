"""The table as HTML: semantic, escaped, without style and without script.

Classes to style: ``num`` and ``text`` cells, ``interval``, ``unit``, ``arrow``, ``best`` cells,
``emphasis`` and ``group`` rows, ``caption-line``, ``table-notes`` below. Groups of rows are table
bodies under a header row of their own; columns under a common header are a column group.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Iterator

from cdbench.render.table import ARROWS, Align, Cell, Column, Direction, Row, Table

_SAID: dict[Direction, str] = {"up": "higher is better", "down": "lower is better", "none": ""}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""What no HTML document may hold."""


def to_html(table: Table, *, classes: str = "", anchor: str | None = None) -> str:
    """``<table>`` with its caption, then its notes as a list; ends with a newline.

    ``anchor`` starts the ids of the footnotes; the default follows from the content, so give one
    where the same table stands twice on a page. Of a table without rows only the title and the
    notes are left: nothing, where it has none.
    """
    return table_html(table, classes=classes, anchor=anchor) + notes_html(table, anchor=anchor)


def table_html(table: Table, *, classes: str = "", anchor: str | None = None) -> str:
    """The ``<table>`` alone, for a page that scrolls it; its footnotes are in ``notes_html``."""
    if not table.rows:
        has_words = table.title and table.notes
        return f'<p class="table-title">{escape(table.title or "")}</p>\n' if has_words else ""
    marks = _Marks(table, anchor)
    named = f' class="{escape(classes)}"' if classes else ""
    head = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in _header(table, marks))
    bodies = "\n".join(_body(table, group, rows, marks) for group, rows in table.groups())
    return f"<table{named}>\n{_caption(table)}<thead>\n{head}\n</thead>\n{bodies}\n</table>\n"


def notes_html(table: Table, *, anchor: str | None = None) -> str:
    """What must be said below the table, footnotes last; nothing where there is nothing."""
    marks = _Marks(table, anchor)
    lines = [f"<li>{escape(note)}</li>" for note in table.notes]
    if table.rows:
        lines += [
            f'<li id="{marks.target(mark)}"><sup>{mark}</sup> {escape(note)}</li>'
            for note, mark in marks.of.items()
        ]
    if not lines:
        return ""
    return '<ul class="table-notes">\n' + "\n".join(lines) + "\n</ul>\n"


def escape(content: str) -> str:
    """The text for an element or a quoted attribute; characters no page may hold become U+FFFD."""
    return html.escape(printable(content), quote=True)


def printable(content: str) -> str:
    """The text without what no page and no picture may hold: U+FFFD stands for it."""
    return _CONTROL.sub("\ufffd", content)


class _Marks:
    """Footnote marks of one table, and where each leads."""

    def __init__(self, table: Table, anchor: str | None) -> None:
        self.of = table.footnotes()
        self._anchor = escape(anchor) if anchor is not None else _anchor(table)

    def target(self, mark: str) -> str:
        return f"{self._anchor}-note-{mark}"

    def link(self, note: str | None) -> str:
        """A superscript that leads to the note, or nothing."""
        if not note:
            return ""
        mark = self.of[note]
        return f'<sup><a href="#{self.target(mark)}">{mark}</a></sup>'


def _anchor(table: Table) -> str:
    content = repr((table.title, table.caption, table.columns, table.rows))
    return f"t{hashlib.sha256(content.encode('utf-8', 'replace')).hexdigest()[:10]}"


def _caption(table: Table) -> str:
    title = [escape(table.title)] if table.title else []
    lines = [f'<span class="caption-line">{escape(line)}</span>' for line in table.caption]
    return f"<caption>{' '.join([*title, *lines])}</caption>\n" if title or lines else ""


def _header(table: Table, marks: _Marks) -> Iterator[list[str]]:
    """One line of headers, or two where columns stand under a common one."""
    if not any(column.group for column in table.columns):
        yield [_column(column, marks, "") for column in table.columns]
        return
    upper, lower = [], []
    for group, columns in table.column_groups():
        if group is None:
            upper += [_column(column, marks, ' rowspan="2"') for column in columns]
        else:
            upper.append(f'<th scope="colgroup" colspan="{len(columns)}">{escape(group)}</th>')
            lower += [_column(column, marks, "") for column in columns]
    yield upper
    yield lower


def _column(column: Column, marks: _Marks, spans: str) -> str:
    parts = [escape(column.title)] if column.title else []
    if column.unit:
        parts.append(f'<span class="unit">({escape(column.unit)})</span>')
    if arrow := ARROWS[column.direction]:
        said = _SAID[column.direction]
        parts.append(f'<span class="arrow" role="img" aria-label="{said}">{arrow}</span>')
    content = " ".join(parts) + marks.link(column.note)
    return f'<th scope="col"{spans} class="{_class(column.align)}">{content}</th>'


def _body(table: Table, group: str | None, rows: list[Row], marks: _Marks) -> str:
    lines = []
    if group is not None:
        across = f'<th scope="rowgroup" colspan="{len(table.columns)}">{escape(group)}</th>'
        lines.append(f'<tr class="group">{across}</tr>')
    lines += [_row(table, row, marks) for row in rows]
    return "<tbody>\n" + "\n".join(lines) + "\n</tbody>"


def _row(table: Table, row: Row, marks: _Marks) -> str:
    first, *rest = table.columns
    head = f'<th scope="row" class="{_class(first.align)}">{_content(row.cells[0], marks)}</th>'
    cells = [
        f'<td class="{_class(column.align)}{" best" if cell.best else ""}">'
        f"{_content(cell, marks)}</td>"
        for column, cell in zip(rest, row.cells[1:], strict=True)
    ]
    named = ' class="emphasis"' if row.emphasis else ""
    return f"<tr{named}>{head}{''.join(cells)}</tr>"


def _content(cell: Cell, marks: _Marks) -> str:
    value, interval = (escape(part) for part in cell.formatted())
    shown = f"<strong>{value}</strong>" if cell.best else value
    small = f' <span class="interval">{interval}</span>' if interval else ""
    return f"{shown}{small}{marks.link(cell.note)}"


def _class(align: Align) -> str:
    return "num" if align == "right" else "text"

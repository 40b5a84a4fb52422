"""The table in a terminal.

How a table gives way to a narrow terminal: ``cdbench.render.layout``; what was dropped is said
below it. Colour goes to a terminal only, never to a pipe, and never under NO_COLOR.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import IO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from cdbench.render.formats import for_encoding
from cdbench.render.layout import GAP, Contents, contents, fit, widest
from cdbench.render.table import Align, Row, Table
from cdbench.render.wrapping import squeeze, wrap

PIPE_WIDTH = 120
"""Columns where there is no terminal to ask: a file has no edge, so little should be dropped."""

ROWS = 25
_INDENT = "  "
_RULE = "─"


class PipeConsole(Console):
    """A console that lets a closed pipe be seen: rich by itself would exit with code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def make_console(stream: IO[str] | None = None, width: int | None = None) -> Console:
    """A console that colours only a terminal, and not under NO_COLOR or TERM=dumb.

    ``width`` overrides the terminal's; a pipe takes COLUMNS, or ``PIPE_WIDTH``.
    """
    target = sys.stdout if stream is None else stream
    terminal = bool(getattr(target, "isatty", lambda: False)())
    colour = terminal and not is_dumb() and not os.environ.get("NO_COLOR")
    if width is None and (is_dumb() or not terminal):
        columns = os.environ.get("COLUMNS", "")
        asked = int(columns) if columns.isdecimal() else 0
        # Rich takes a dumb terminal for one of 80 columns, whatever COLUMNS says.
        width = asked if asked > 0 else (None if terminal else PIPE_WIDTH)
    return PipeConsole(
        file=target,
        width=width,
        # Rich heeds the width of a dumb terminal only beside a height.
        height=None if width is None else ROWS,
        color_system="auto" if colour else None,
        force_terminal=terminal,
        highlight=False,
        markup=False,
        emoji=False,
    )


def is_dumb() -> bool:
    """Whether the terminal can neither colour nor move its cursor, by what TERM says of it."""
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def print_lines(console: Console, *lines: str) -> None:
    """Plain text within the console's width, in what the stream can carry."""
    for line in lines:
        indent = _INDENT if line.startswith("- ") else ""
        wrapped = wrap(for_encoding(line, console.encoding), console.width, indent)
        _print(console, *squeeze(wrapped, console.width))


def print_whole(console: Console, line: str) -> None:
    """A line that is left to the terminal to break: a path can be copied only in one piece."""
    _print(console, for_encoding(line, console.encoding))


def print_table(table: Table, console: Console) -> None:
    """Print the table, then its caption, notes and footnotes, within the console's width.

    Of a table without rows only the title and the notes are printed: nothing, where it has none.
    """
    if table.rows:
        _print_rows(table, console)
    elif table.notes:
        title = [table.title] if table.title else []
        print_lines(console, *title, *table.caption, *table.notes)


def _print_rows(table: Table, console: Console) -> None:
    layout = fit(table, console.width, console.encoding)
    shown = table.select(layout.keep)
    if shown.title:
        _print(
            console, *wrap(for_encoding(shown.title, console.encoding), console.width), style="bold"
        )
    columns = contents(shown, layout.stacked, console.encoding)
    if layout.widths is None:
        _print_records(shown, columns, console)
    else:
        _print_grid(shown, columns, layout.widths, console)
    dropped = [c.full_title for i, c in enumerate(table.columns) if i not in layout.keep]
    marks = [f"({mark}) {note}" for note, mark in shown.footnotes().items()]
    between = "; " if any("," in title for title in dropped) else ", "
    missing = [f"Not shown at this width: {between.join(dropped)}."] if dropped else []
    if below := [*table.caption, *table.notes, *marks, *missing]:
        print_lines(console, "", *below)


def _print_grid(
    table: Table, columns: list[Contents], widths: tuple[int, ...], console: Console
) -> None:
    aligns = [column.align for column in table.columns]
    header = [wrap(column.header, width) for column, width in zip(columns, widths, strict=True)]
    height = max(map(len, header))
    # A header's last line stands on the rule.
    standing = [[""] * (height - len(lines)) + lines for lines in header]
    _print(console, *_side_by_side(standing, widths, aligns), style="bold")
    rule = for_encoding(_RULE, console.encoding)
    _print(console, rule * (sum(widths) + GAP * (len(widths) - 1)))
    for row, cells in _rows(table, columns, console):
        folded = [wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
        _print(console, *_side_by_side(folded, widths, aligns), style=_style(row))


def _print_records(table: Table, columns: list[Contents], console: Console) -> None:
    """A row as lines ``header  value`` under its first cell, where no grid fits."""
    longest = max((len(column.header) for column in columns[1:]), default=0)
    labels = min(longest, (console.width - len(_INDENT)) // 2)
    for row, cells in _rows(table, columns, console):
        first = f"{columns[0].header}: {cells[0]}" if columns[0].header else cells[0]
        heading = squeeze(wrap(first, console.width, _INDENT), console.width)
        _print(console, *heading, style="bold")
        for column, cell in zip(columns[1:], cells[1:], strict=True):
            lines = _record_lines(column.header, cell, labels, console.width)
            _print(console, *squeeze(lines, console.width), style=_style(row))


def _record_lines(label: str, cell: str, labels: int, width: int) -> Iterator[str]:
    """Label and value side by side where both fit, else the value under its label."""
    room = width - len(_INDENT) - labels - GAP
    left = wrap(label, labels)
    for right in (wrap(cell.replace("\n", " "), room), wrap(cell, room)):
        if widest(*left) <= labels and widest(*right) <= room:
            beside = _side_by_side([left, right], (labels, room), ["left", "left"])
            yield from (_INDENT + line for line in beside)
            return
    yield from (_INDENT + line for line in wrap(label, width - len(_INDENT)))
    yield from (2 * _INDENT + line for line in wrap(cell, width - 2 * len(_INDENT)))


def _rows(
    table: Table, columns: list[Contents], console: Console
) -> Iterator[tuple[Row, tuple[str, ...]]]:
    """Every row with its texts; a group's name is printed before its first."""
    texts = iter(zip(*(column.cells for column in columns), strict=True))
    for group, rows in table.groups():
        if group is not None:
            name = for_encoding(group, console.encoding)
            _print(console, "", *wrap(name, console.width), style="italic")
        for row in rows:
            yield row, next(texts)


def _side_by_side(
    cells: list[list[str]], widths: tuple[int, ...], aligns: list[Align]
) -> Iterator[str]:
    """The lines of cells beside one another, without blanks at the end."""
    for number in range(max(map(len, cells))):
        parts = (
            _padded(lines[number] if number < len(lines) else "", width, align)
            for lines, width, align in zip(cells, widths, aligns, strict=True)
        )
        yield (" " * GAP).join(parts).rstrip()


def _padded(content: str, width: int, align: Align) -> str:
    blanks = " " * (width - cell_len(content))
    return content + blanks if align == "left" else blanks + content


def _style(row: Row) -> str:
    return "bold" if row.emphasis else ""


def _print(console: Console, *lines: str, style: str = "") -> None:
    """Lines that are ready: a word that is too wide is left to the terminal, whole."""
    for line in lines:
        console.print(Text(line, style=style), soft_wrap=True)

"""The table in a terminal.

A narrow terminal first puts intervals under their values, then drops the columns of least priority
and says which; a column of priority 0 is never dropped. Colour goes to a terminal only, never to a
pipe, and never under NO_COLOR.
"""

from __future__ import annotations

import os
import sys
import textwrap
from dataclasses import dataclass
from typing import IO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from cdbench.render.formats import for_encoding
from cdbench.render.table import Cell, Table, marked

PIPE_WIDTH = 120
"""Columns where there is no terminal to ask: a file has no edge, so little should be dropped."""

_GAP = 2


@dataclass(frozen=True)
class Layout:
    """How a table fits: which columns stay, and whether intervals go under their values."""

    keep: tuple[int, ...]
    stacked: bool


class PipeConsole(Console):
    """A console that lets a closed pipe be seen: rich by itself would exit with code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def make_console(stream: IO[str] | None = None, width: int | None = None) -> Console:
    """A console that colours only a terminal, and not under NO_COLOR.

    ``width`` overrides the terminal's; a pipe takes COLUMNS, or ``PIPE_WIDTH``.
    """
    target = sys.stdout if stream is None else stream
    terminal = bool(getattr(target, "isatty", lambda: False)())
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    if width is None and not terminal:
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdigit() and int(columns) > 0 else PIPE_WIDTH
    return PipeConsole(
        file=target,
        width=width,
        color_system="auto" if colour else None,
        force_terminal=terminal,
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_table(table: Table, console: Console) -> None:
    """Print the table, then its notes and footnotes, within the console's width."""
    layout = fit(table, console.width)
    shown = table.select(layout.keep)
    marks = shown.footnotes()
    console.print(_rich_table(shown, layout.stacked, console.encoding))
    console.print()
    dropped = [c.title for i, c in enumerate(table.columns) if i not in layout.keep]
    notes = [*table.notes, *(f"({mark}) {note}" for note, mark in marks.items())]
    if dropped:
        notes.append(f"Not shown at this width: {', '.join(dropped)}.")
    for note in notes:
        console.print(Text(for_encoding(note, console.encoding)))


def fit(table: Table, width: int) -> Layout:
    """The fullest layout of ``table`` that is at most ``width`` columns wide.

    Where even the columns of priority 0 are wider, they stay, and the renderer folds them.
    """
    keep = tuple(range(len(table.columns)))
    if natural_width(table, stacked=False) <= width:
        return Layout(keep, stacked=False)
    while natural_width(table.select(keep), stacked=True) > width:
        droppable = [i for i in keep if table.columns[i].priority > 0]
        if not droppable:
            break
        # Of equal priorities the rightmost goes first.
        worst = max(droppable, key=lambda i: (table.columns[i].priority, i))
        keep = tuple(i for i in keep if i != worst)
    return Layout(keep, stacked=True)


def natural_width(table: Table, *, stacked: bool) -> int:
    """Columns the table takes without folding a cell."""
    contents = _contents(table, stacked)
    widths = (max(_widest(header), _widest(*cells)) for header, cells in contents)
    return sum(widths) + _GAP * (len(table.columns) - 1)


def _rich_table(table: Table, stacked: bool, encoding: str | None) -> RichTable:
    def shown(content: str, style: str = "") -> Text:
        return Text(for_encoding(content, encoding), style=style)

    drawn = RichTable(
        box=box.SIMPLE_HEAD,
        title=shown(table.title) if table.title else None,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        # The box puts one blank between columns by itself.
        padding=(0, _GAP - 1, 0, 0),
        show_edge=False,
    )
    contents = _contents(table, stacked)
    for place, (column, (header, _)) in enumerate(zip(table.columns, contents, strict=True)):
        drawn.add_column(
            shown(header),
            justify=column.align,
            overflow="fold",
            vertical="top",
            # A row's name in two pieces is no name.
            no_wrap=place == 0,
        )
    lines = iter(zip(*(cells for _, cells in contents), strict=True))
    for group, rows in table.groups():
        if group is not None:
            drawn.add_section()
            drawn.add_row(shown(group, "italic"), *[""] * (len(table.columns) - 1))
        for row in rows:
            style = "bold" if row.emphasis else ""
            drawn.add_row(*(shown(content, style) for content in next(lines)))
    return drawn


def _contents(table: Table, stacked: bool) -> list[tuple[str, list[str]]]:
    """Header and cell texts of each column, line breaks included."""
    marks = table.footnotes()
    columns = []
    for index, column in enumerate(table.columns):
        cells = [_content(row.cells[index], marks, stacked) for row in table.rows]
        header = marked(column.header, column.note, marks)
        columns.append((_wrapped(header, _widest(*cells)) if stacked else header, cells))
    return columns


def _wrapped(header: str, width: int) -> str:
    """The header broken between words, as wide as the cells below it or its longest word."""
    widest = max([width, *(cell_len(word) for word in header.split())])
    return "\n".join(textwrap.wrap(header, widest, break_on_hyphens=False))


def _content(cell: Cell, marks: dict[str, str], stacked: bool) -> str:
    formatted = cell.formatted()
    if not stacked or not formatted.interval:
        return marked(formatted.line, cell.note, marks)
    return f"{marked(formatted.value, cell.note, marks)}\n{formatted.interval}"


def _widest(*texts: str) -> int:
    return max((cell_len(line) for text in texts for line in text.split("\n")), default=0)

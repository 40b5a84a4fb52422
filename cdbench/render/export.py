"""The formats a table can be written in, by name: all of them show the one table IR."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdbench.errors import UsageError
from cdbench.render.csv_table import to_csv
from cdbench.render.html_table import to_html
from cdbench.render.json_table import to_json
from cdbench.render.latex import to_latex
from cdbench.render.markdown import to_markdown
from cdbench.render.table import Table
from cdbench.render.terminal import PIPE_WIDTH, make_console, print_lines, print_table
from cdbench.resources import nearest_hint


@dataclass(frozen=True)
class Options:
    """What a format may be told: ``style`` that made the tables; LaTeX: its label, and siunitx."""

    style: str | None = None
    label: str | None = None
    siunitx: bool = False


@dataclass(frozen=True)
class Format:
    """How tables become a text, for whom, and the ending of a file that holds it."""

    write: Callable[[Sequence[Table], Options], str]
    summary: str
    ending: str


def as_text(tables: Sequence[Table], width: int = PIPE_WIDTH) -> str:
    """What a terminal of that width shows, without colour."""
    stream = io.StringIO()
    console = make_console(stream, width)
    for number, table in enumerate(tables):
        if number:
            print_lines(console, "")
        print_table(table, console)
    return stream.getvalue()


def export(tables: Sequence[Table], name: str, options: Options | None = None) -> str:
    """The tables in one format; ends with a newline. UsageError for an unknown name."""
    return format_named(name).write(tables, options or Options())


def format_named(name: str) -> Format:
    """The format of that name. UsageError names the nearest known one."""
    found = FORMATS.get(name)
    if found is None:
        raise UsageError(f"--format {name}: no such format; {nearest_hint(name, tuple(FORMATS))}")
    return found


def format_of(file: str) -> str | None:
    """The format whose files end so; None where no format's do."""
    return next((name for name, each in FORMATS.items() if file.endswith(each.ending)), None)


def format_of_file(file: str) -> str:
    """The format of a file by its ending. UsageError: no format's files end so."""
    found = format_of(file)
    if found is None:
        endings = ", ".join(each.ending for each in FORMATS.values())
        raise UsageError(
            f"--out {file}: no format's files end so ({endings}); name another file, or add "
            "--format F"
        )
    return found


def _markdown(tables: Sequence[Table], _: Options) -> str:
    return "\n".join(to_markdown(table) for table in tables)


def _html(tables: Sequence[Table], options: Options) -> str:
    # Each table has ids of its own, even where two are alike.
    return "\n".join(
        to_html(table, anchor=f"{options.style or 'table'}-{number}")
        for number, table in enumerate(tables, start=1)
    )


FORMATS: dict[str, Format] = {
    "rich": Format(lambda tables, _: as_text(tables), "for a terminal, or a pipe", ".txt"),
    "markdown": Format(_markdown, "a GitHub pipe table", ".md"),
    "latex": Format(
        lambda tables, options: to_latex(tables, label=options.label, siunitx=options.siunitx),
        "booktabs, for a paper",
        ".tex",
    ),
    "csv": Format(lambda tables, _: to_csv(tables), "one line a cell, raw numbers", ".csv"),
    "json": Format(
        lambda tables, options: to_json(tables, options.style), "raw numbers and notes", ".json"
    ),
    "html": Format(_html, "a table element without style", ".html"),
}
"""Format by name, in the order in which they are listed."""

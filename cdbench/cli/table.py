"""``cdbench table``."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdbench.render.table import Table

_LABEL = re.compile(r"[A-Za-z0-9:._/-]+")


def verb(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Run or sweep directories, or their JSON files."),
    ],
    style: Annotated[
        str,
        typer.Option(
            metavar="S",
            help="speedup (default), exit-sweep, width-sweep, serving, accuracy-by-depth, "
            "waterfall or ablation.",
        ),
    ] = "speedup",
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="F",
            help="rich, markdown, latex, csv, json or html; default: by the ending of --out, else "
            "rich.",
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write it there; default: standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of --out.")] = False,
    siunitx: Annotated[
        bool, typer.Option("--siunitx", help="LaTeX: set numbers by siunitx's \\num.")
    ] = False,
    label: Annotated[
        str | None, typer.Option(metavar="TEXT", help="LaTeX: label; default: tab:STYLE.")
    ] = None,
    caption: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="In place of the title; facts and marks still follow."),
    ] = None,
) -> None:
    """Make a table of runs or sweeps: for a terminal, a paper, a pull request or a program.

    Captions say model, hardware, work and scope, and mark random weights, synthetic depths, replay
    and INVALID runs. Exit codes: 0 made, 2 wrong input or no data for the style.
    """
    from cdbench.render.styles import check_style, make_tables
    from cdbench.render.styles.points import read_points

    check_style(style)
    place = None if out is None else _place(out, force, runs)
    chosen = _format(format_name, out)
    _check_flags(chosen, label, siunitx)
    made = make_tables(style, read_points(runs))
    if caption is not None:
        made = [replace(table, title=caption) for table in made]
    if place is None and chosen == "rich":
        _print(made)
        return
    from cdbench.render.export import Options, export

    text = export(made, chosen, Options(style, label or f"tab:{style}", siunitx))
    if place is None:
        _write_stdout(text)
    else:
        _write(place, text)


def _format(name: str | None, out: str | None) -> str:
    from cdbench.render.export import format_named, format_of_file

    if name is None:
        return "rich" if out is None else format_of_file(out)
    format_named(name)
    return name


def _check_flags(chosen: str, label: str | None, siunitx: bool) -> None:
    if chosen != "latex" and (label is not None or siunitx):
        flag = "--siunitx" if siunitx else "--label"
        raise UsageError(f"{flag}: is for LaTeX, not {chosen}; add --format latex, or drop it")
    if label is not None and not _LABEL.fullmatch(label):
        raise UsageError(
            f"--label {label!r}: LaTeX would not take it; use letters, digits and :._-/"
        )


def _place(out: str, force: bool, runs: Sequence[str]) -> Path:
    """The file of ``--out``. UsageError: it is there, is of another command, or cannot be made."""
    from cdbench.bench.places import typed_path
    from cdbench.bench.run_files import is_run_file

    path = typed_path(out, "--out")
    named = [os.path.realpath(typed_path(run, "RUN")) for run in runs]
    place = os.path.realpath(path)  # a link is written through
    if is_run_file(path) or is_run_file(Path(place)) or place in named:
        raise UsageError(
            f"--out {path}: is what a run wrote, so it is not replaced; name a new file"
        )
    if os.path.lexists(path) and not force:
        raise UsageError(f"--out {path}: exists; name a new file, or add --force")
    return path


def _print(tables: Sequence[Table]) -> None:
    from cdbench.render.terminal import make_console, print_lines, print_table

    console = make_console()
    for number, table in enumerate(tables):
        if number:
            print_lines(console, "")
        print_table(table, console)


def _write_stdout(text: str) -> None:
    """In UTF-8 whatever the locale: the text is a file's."""
    sys.stdout.flush()
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:
        sys.stdout.write(text)
    else:
        binary.write(text.encode())


def _write(path: Path, text: str) -> None:
    from cdbench.bench.places import claim_file
    from cdbench.cli.streams import tell
    from cdbench.schema.files import write_whole

    with claim_file(path, "--out"):
        write_whole(path, text)
    tell(f"written to {path}")

"""``cdbench sweep``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from cdbench.cli.config import JsonOption, SetOption
from cdbench.cli.streams import tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from cdbench.render.table import Table
    from cdbench.schema.sweep import SweepDocument
    from cdbench.sweep.cells import Sweep
    from cdbench.sweep.file import SweepFile
    from cdbench.sweep.session import Options

INVALID = 3
INTERRUPTED = 130

OutOption = Annotated[
    str | None, typer.Option(help="Sweep directory (default: results/runs/sweep-NAME).")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="List the cells and the time they will take; run none.")
]
RetryOption = Annotated[
    bool, typer.Option("--retry-failed", help="Run cells again that failed before.")
]
LimitOption = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Run at most N cells now.")
]


def verb(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A sweep file or a shipped one (paper/NAME).")
    ],
    overrides: SetOption = None,
    out: OutOption = None,
    dry_run: DryRunOption = False,
    retry_failed: RetryOption = False,
    limit_cells: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run every cell of a grid, each as `cdbench run` would, and compare them.

    Every cell is checked before the first one runs. Cells run in random order, each in a directory
    named by the hash of its configuration; the same command again runs what is not finished. Exit
    codes: 0 every cell is valid, 2 wrong input, 3 a cell failed or is invalid, 130 interrupted
    (the same command goes on).
    """
    from cdbench.sweep.cells import expand
    from cdbench.sweep.file import find_sweep, read_sweep, set_values

    source = str(find_sweep(file))
    read = read_sweep(file)
    values = set_values(overrides or (), read.varied)

    # Not before the keys have been read: a sweep session brings torch.
    from cdbench.sweep.session import Options, check_of, run

    options = Options(out, retry_failed, limit_cells)
    if dry_run:
        dry(expand(read, source, values), read, source, options, as_json)
        return
    sweep = expand(read, source, values, check_of(read, options, tell))
    document = run(sweep, options, tell)
    print_document(document, as_json)
    raise typer.Exit(exit_code(document))


def dry(sweep: Sweep, file: SweepFile, source: str, options: Options, as_json: bool) -> None:
    """Print the plan, then raise UsageError where the same command would refuse a cell.

    The plan comes first: it may be made on another machine than the one that will run it.
    """
    from cdbench.sweep.cells import refusals
    from cdbench.sweep.refusals import refuse
    from cdbench.sweep.session import check_of, plan

    print_document(plan(sweep, options.out, options.retry_failed), as_json)
    refuse(refusals(sweep.cells, check_of(file, options, tell)), len(sweep.cells), source)


def exit_code(document: SweepDocument) -> int:
    """0 unless a cell failed or is invalid (3), or the sweep was interrupted (130)."""
    if document.status == "planned":
        return 0
    if document.status == "interrupted":
        return INTERRUPTED
    bad = any(
        cell.verdict == "INVALID" or any(r.state == "failed" for r in cell.rounds)
        for cell in document.cells
    )
    return INVALID if bad else 0


def print_document(document: SweepDocument, as_json: bool) -> None:
    """The plan or the cells side by side; under --json the document."""
    from cdbench.cli.output import print_json
    from cdbench.render.terminal import make_console
    from cdbench.schema import to_json

    if as_json:
        print_json(json.loads(to_json(document)))
    else:
        show(document, make_console())


def show(document: SweepDocument, console: Console) -> None:
    """The tables, then what the rates and the estimate say in words."""
    from cdbench.render.sweep_report import estimate_words
    from cdbench.render.terminal import print_lines, print_table

    for table in _tables(document, console):
        print_table(table, console)
    if document.sustained:
        print_lines(console, "", *document.sustained)
    if document.estimate is not None:
        print_lines(console, "", estimate_words(document.estimate))


def _tables(document: SweepDocument, console: Console) -> Iterator[Table]:
    from cdbench.render.layout import fit
    from cdbench.render.sweep_report import plan_table, summary_tables

    def fits(table: Table) -> bool:
        layout = fit(table, console.width, console.encoding)
        return layout.widths is not None and len(layout.keep) == len(table.columns)

    if document.status == "planned":
        yield plan_table(document)
    else:
        yield from summary_tables(document, fits)

"""``cdbench sweep``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cdbench.cli.config import JsonOption, SetOption

if TYPE_CHECKING:
    from cdbench.schema.sweep import SweepDocument

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
    from cdbench.sweep.runners import checker

    source = str(find_sweep(file))
    read = read_sweep(file)
    sweep = expand(read, source, set_values(overrides or (), read.varied), checker())

    from cdbench.sweep.session import Options, plan, run

    if dry_run:
        document = plan(sweep, out, retry_failed)
    else:
        document = run(sweep, Options(out, retry_failed, limit_cells), say)
    print_document(document, as_json)
    raise typer.Exit(exit_code(document))


def say(line: str) -> None:
    """Progress, one line on stderr."""
    print(f"cdbench: {line}", file=sys.stderr, flush=True)


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
    from cdbench.cli.run import say as print_lines
    from cdbench.render import sweep_report
    from cdbench.render.terminal import make_console, print_table
    from cdbench.schema import to_json

    if as_json:
        print_json(json.loads(to_json(document)))
        return
    console = make_console()
    planned = document.status == "planned"
    table = sweep_report.plan_table if planned else sweep_report.summary_table
    print_table(table(document), console)
    if document.sustained:
        print_lines(console, "", *document.sustained)
    if document.estimate is not None:
        print_lines(console, "", sweep_report.estimate_words(document.estimate))

"""``cdbench report``."""

from __future__ import annotations

from typing import Annotated

import typer

from cdbench.cli.config import JsonOption


def verb(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Run directories or result.json files.")
    ],
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Default, of one run: RUN/report.html.")
    ] = None,
    plots: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write the pictures there as well.")
    ] = None,
    plot_format: Annotated[
        str | None,
        typer.Option(metavar="F,F,...", help="Of --plots: svg, pdf, png; default: all three."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write one self-contained HTML page of a run, or of several side by side.

    The page needs no network and no JavaScript, and holds its numbers as JSON. From a run directory
    it shows occupancy and latency distributions too, which a result.json alone does not hold. A
    page or picture that this command wrote before is replaced, anything else is left alone. Exit
    codes: 0 success, also for a run that is INVALID (the page says so first), 2 wrong input.
    """
    from cdbench.render.report.document import make_report
    from cdbench.render.report.output import claimed_output, write_report
    from cdbench.render.report.source import read_runs
    from cdbench.render.terminal import make_console, print_whole

    found = read_runs(runs)
    with claimed_output(runs, out, plots, plot_format) as output:
        pictures = write_report(make_report(found), output)
    if as_json:
        from cdbench.cli.output import print_json

        print_json({"report": str(output.page), "plots": [str(path) for path in pictures]})
        return
    console = make_console()
    if pictures:
        print_whole(console, f"{len(pictures)} pictures written to {output.pictures}")
    print_whole(console, f"Report written to {output.page}")

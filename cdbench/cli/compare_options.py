"""Options of ``cdbench compare`` that no other command has."""

from __future__ import annotations

from typing import Annotated

import typer

RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[BASE] RUN...",
        help="Run directories, or their result.json; beside --pair a configuration.",
    ),
]
PairOption = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--pair",
        metavar="OLD_PYTHON NEW_PYTHON",
        help="Measure two checkouts in turns, each by its own Python, and judge NEW.",
    ),
]
SelfTestOption = Annotated[
    bool,
    typer.Option("--self-test", help="With --pair: what the gate says of the same code twice."),
]
OutOption = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="With --pair: keep every timed region and the logs there."),
]
MarginOption = Annotated[
    float | None,
    typer.Option(metavar="X", help="Share within which a time has not changed; default: 0.05."),
]
FullOption = Annotated[
    bool, typer.Option("--full", help="Print every metric, task, bound and check.")
]
GateOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Judge the run by a gate file, or a shipped gate's name."),
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        "--baseline", metavar="DIR", help="Where baselines lie; default: results/baselines."
    ),
]
RequireOption = Annotated[
    bool,
    typer.Option(
        "--require-baseline", help="A baseline that --gate needs and that is missing is an error."
    ),
]
JunitOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write the gate's checks as JUnit XML.")
]
SummaryOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Write the gate's verdict as Markdown; $GITHUB_STEP_SUMMARY is appended to besides.",
    ),
]
ReceiptOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write the gate's receipt as JSON.")
]

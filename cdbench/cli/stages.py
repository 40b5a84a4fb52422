"""``cdbench stages``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cdbench.cli.config import ConfigArgument, JsonOption, SetOption
from cdbench.cli.options import ModelOption
from cdbench.errors import UsageError

if TYPE_CHECKING:
    from cdbench.config import RunConfig
    from cdbench.schema.stages import StageCurves
    from cdbench.stages.measure import Asked
    from cdbench.stages.output import StageOutput

ExitOption = Annotated[
    str | None,
    typer.Option(
        "--exit", metavar="RULE", help="Rule whose cost is measured; default: the card's."
    ),
]
PassesOption = Annotated[int, typer.Option(min=1, help="Passes over the whole grid.")]
ContextsOption = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,...",
        help="Contexts of decode rows, in positions, all rows of a launch equal; default: those of "
        "the workload, rows ragged as its requests are.",
    ),
]
OutOption = Annotated[
    str | None,
    typer.Option(metavar="FILE|DIR", help="Default: results/runs/<date>-stages-<model>."),
]
PlotOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Draw the curves, as .png or .svg.")
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace stage curves at --out and their picture at --plot.")
]


def verb(
    config: ConfigArgument = None,
    model: ModelOption = None,
    exit_rule: ExitOption = None,
    overrides: SetOption = None,
    passes: PassesOption = 5,
    contexts: ContextsOption = None,
    out: OutOption = None,
    plot: PlotOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure what one launch of each stage takes, by rows and by context.

    Launches run through the engine as in `cdbench run`, at 1, 2, 4, ..., three quarters of
    `engine.width`, and `engine.width` rows, beside the least that this machine's memory and
    arithmetic allow. The document can stand for a
    new measurement where code, torch, threads, model, dtype, KV layout and exit rule are the same.
    Exit codes: 0 success, 2 wrong input.
    """
    from cdbench.config import load_config

    loaded = load_config(config, overrides or (), {"model": model, "exit.rule": exit_rule})
    wanted = _contexts(contexts)

    from cdbench.stages.measure import Asked
    from cdbench.stages.output import claimed_output

    with claimed_output(out, plot, force, loaded.model) as output:
        document = _measure(loaded, Asked(passes, wanted), output, as_json)
    _print(document, output, as_json)


def _contexts(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--contexts {text!r}: no list of whole numbers; write them with commas, as 64,256"
        ) from None


def _measure(config: RunConfig, asked: Asked, output: StageOutput, quiet: bool) -> StageCurves:
    """Measure, then write, before anything is printed: a closed pipe loses nothing."""
    from cdbench.cli.progress import progress_on_stderr
    from cdbench.schema.files import write_document
    from cdbench.stages.measure import measure_stages

    with progress_on_stderr(sys.stderr, quiet=quiet, unit="passes") as progress:
        document = measure_stages(config, asked, progress)
    write_document(output.document, document)
    if output.picture is not None:
        from cdbench.render.stage_plot import write_plot

        write_plot(output.picture, document)
    return document


def _print(document: StageCurves, output: StageOutput, as_json: bool) -> None:
    from cdbench.cli.output import print_json
    from cdbench.render.stage_table import stage_lines, stage_table
    from cdbench.render.terminal import make_console, print_lines, print_table, print_whole
    from cdbench.schema import to_json

    if as_json:
        print_json(json.loads(to_json(document)))
        return
    console = make_console()
    print_lines(console, *stage_lines(document), "")
    print_table(stage_table(document), console)
    picture = f" and {output.picture}" if output.picture is not None else ""
    print_lines(console, "")
    print_whole(console, f"Written to {output.document}{picture}")

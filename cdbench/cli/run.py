"""``cdbench run``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cdbench.cli.config import ConfigArgument, JsonOption, SetOption

if TYPE_CHECKING:
    from rich.console import Console

    from cdbench.config import RunConfig
    from cdbench.schema import Result

INVALID = 3
INTERRUPTED = 130


def verb(
    config: ConfigArgument = None,
    model: Annotated[
        str | None, typer.Option(help="Demo name, checkpoint directory or hub id.")
    ] = None,
    dense: Annotated[
        str | None, typer.Option(help="Dense models to compare with, separated by commas.")
    ] = None,
    modes: Annotated[
        str | None,
        typer.Option(help="dense:NAME, static, static@D, static@auto, lockstep, cdb; by commas."),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="Tasks to answer (`cdbench list tasks`), by commas.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Questions per task.")] = None,
    exit_rule: Annotated[
        str | None, typer.Option("--exit", help="none, fixed:D, RULE[@THRESHOLD], trace:FILE.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="The same as RULE@THRESHOLD.")] = None,
    min_loops: Annotated[int | None, typer.Option(help="Floor on the executed depth.")] = None,
    max_loops: Annotated[int | None, typer.Option(help="Loops at full depth.")] = None,
    exit_lag: Annotated[int | None, typer.Option(help="0 or 1 loops of delay.")] = None,
    kv: Annotated[
        str | None, typer.Option(help="per-loop, first-shared, shared or slots:M.")
    ] = None,
    work: Annotated[str | None, typer.Option(help="live, equal, or both by a comma.")] = None,
    requests: Annotated[int | None, typer.Option(help="How many requests are timed.")] = None,
    blocks: Annotated[int | None, typer.Option(help="Palindromic timing blocks.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="auto, float32, bfloat16, float16, float64.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="checkpoint or random:SEED.")] = None,
    layers: Annotated[
        str | None, typer.Option(help="Layers P-C-K in place of the model's; random weights only.")
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Run directory (default: results/runs/<date>-<name>).")
    ] = None,
    overrides: SetOption = None,
    full: Annotated[
        bool, typer.Option("--full", help="Print rates, launches, bounds and every speed-up.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure every mode on equal work, and its accuracy.

    Without arguments it runs the embedded demo, offline, in a few minutes. Every mode first answers
    the same questions with its own text (accuracy), then all modes are timed on the same recorded
    tokens in interleaved blocks (speed). Exit codes: 0 valid, 2 wrong input, 3 invalid run,
    130 interrupted (what was finished is kept).
    """
    from cdbench.cli.output import print_json
    from cdbench.config import load_config
    from cdbench.render.terminal import make_console
    from cdbench.schema import to_json

    loaded = load_config(
        config,
        overrides or (),
        {
            "model": model,
            "dense": dense,
            "modes": modes,
            "tasks": tasks,
            "limit": limit,
            "exit.rule": exit_rule,
            "exit.threshold": threshold,
            "exit.min_loops": min_loops,
            "exit.max_loops": max_loops,
            "exit.lag": exit_lag,
            "kv.layout": kv,
            "work": work,
            "workload.requests": requests,
            "repeats.blocks": blocks,
            "device": device,
            "dtype": dtype,
            "weights": weights,
            "layers": layers,
            "out": out,
        },
    )
    console = None if as_json else make_console()
    result, directory = measure(loaded, console)
    if console is None:
        print_json(json.loads(to_json(result)))
    else:
        print_report(result, directory, console, full)
    if result.status == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if result.validity.verdict == "INVALID":
        raise typer.Exit(INVALID)


def measure(config: RunConfig, console: Console | None) -> tuple[Result, str]:
    """Run it; the result and where it was written. Without a console nothing is printed."""
    from cdbench.bench.directory import RunDirectory
    from cdbench.bench.plan import make_plan
    from cdbench.bench.rows import exit_settings
    from cdbench.bench.session import Session
    from cdbench.bench.summary import model_facts, start_manifest, summarise
    from cdbench.bench.workload import prepare
    from cdbench.cli.progress import progress_on_stderr
    from cdbench.render.run_report import exit_words, model_lines

    directory = RunDirectory.create(config.out, config.model)
    try:
        plan = make_plan(config)
        work = prepare(plan)
        started = start_manifest(plan)
        if console is not None:
            trace_file = plan.trace.file if plan.trace is not None else None
            exit_text = exit_words(exit_settings(plan.policy), trace_file)
            say(console, *model_lines(model_facts(plan), started, exit_text))
        with progress_on_stderr(sys.stderr, quiet=console is None) as progress:
            session = Session(plan, work, directory, progress)
            session.measure()
        result = summarise(plan, session.measured, started)
        directory.finish(result)
        return result, str(directory.path)
    finally:
        directory.discard_if_empty()


def print_report(result: Result, directory: str, console: Console, full: bool) -> None:
    """Table, histogram and plain words; with ``full`` everything that was measured."""
    from cdbench.render import run_report, verdict
    from cdbench.render.terminal import print_table

    if not result.modes:
        say(console, "Nothing was measured before the interruption.")
        return
    say(console, *run_report.work_lines(result.workload, _signalled(result)), "")
    print_table(run_report.main_table(result), console)
    print_histogram(result, console)
    for table in run_report.full_tables(result) if full else ():
        say(console, "")
        print_table(table, console)
    reasons = "; ".join(result.validity.reasons)
    status = result.validity.verdict + (f": {reasons}" if reasons else "")
    say(console, "", *verdict.sentences(result), "", f"{status}. Written to {directory}")


def _signalled(result: Result) -> bool:
    """Whether an adaptive mode ran a rule with a signal of its own."""
    return any(
        mode.schedule in ("cdb", "lockstep") and mode.exit.rule not in ("none", "fixed", "trace")
        for mode in result.modes.values()
    )


def print_histogram(result: Result, console: Console) -> None:
    """Executed depths of the first adaptive mode there is, as bars."""
    from cdbench.render.bars import depth_bars

    for label in ("cdb", "lockstep"):
        counts = result.modes[label].depth_histogram if label in result.modes else None
        if counts:
            where = "live pass" if result.modes[label].live else "replayed"
            say(console, "", f"loops per later token, {label} ({where})")
            width = min(60, console.width)
            say(console, *depth_bars(counts, width=width, encoding=console.encoding))
            return


def say(console: Console, *lines: str) -> None:
    """Plain lines, in what the stream can carry."""
    from cdbench.render.formats import for_encoding

    for line in lines:
        console.print(for_encoding(line, console.encoding))

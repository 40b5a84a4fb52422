"""``cdbench run``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from cdbench.cli.config import ConfigArgument, JsonOption, SetOption
from cdbench.cli.options import (
    DeviceOption,
    DtypeOption,
    KvOption,
    LagOption,
    LayersOption,
    MaxLoopsOption,
    MinLoopsOption,
    ModelOption,
    ThresholdOption,
    WeightsOption,
)
from cdbench.cli.run_options import (
    ArrivalsOption,
    BlocksOption,
    DenseOption,
    DepthsOption,
    EqualOption,
    ExitOption,
    FewshotOption,
    FromOption,
    FullOption,
    GenKwargsOption,
    LaunchesOption,
    LimitOption,
    ModesOption,
    OutOption,
    RequestsOption,
    SamplesOption,
    SourceOption,
    StagesOption,
    TasksOption,
    WorkOption,
)
from cdbench.cli.streams import tell
from cdbench.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from cdbench.bench.again import Again
    from cdbench.bench.plan import Plan
    from cdbench.bench.workload import TimedWork
    from cdbench.config import RunConfig
    from cdbench.render.table import Table
    from cdbench.schema import Manifest, Result

INVALID = 3
INTERRUPTED = 130


def verb(
    config: ConfigArgument = None,
    model: ModelOption = None,
    dense: DenseOption = None,
    modes: ModesOption = None,
    tasks: TasksOption = None,
    limit: LimitOption = None,
    num_fewshot: FewshotOption = None,
    samples: SamplesOption = None,
    gen_kwargs: GenKwargsOption = None,
    exit_rule: ExitOption = None,
    threshold: ThresholdOption = None,
    min_loops: MinLoopsOption = None,
    max_loops: MaxLoopsOption = None,
    exit_lag: LagOption = None,
    kv: KvOption = None,
    work: WorkOption = None,
    equal: EqualOption = None,
    source: SourceOption = None,
    requests: RequestsOption = None,
    arrivals: ArrivalsOption = None,
    depths: DepthsOption = None,
    blocks: BlocksOption = None,
    stages: StagesOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    weights: WeightsOption = None,
    layers: LayersOption = None,
    out: OutOption = None,
    overrides: SetOption = None,
    earlier: FromOption = None,
    launches: LaunchesOption = False,
    full: FullOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure every mode on equal work, and its accuracy.

    Without arguments it runs the embedded demo, offline, in a few minutes. Every mode first answers
    the same questions with its own text (accuracy), then all modes are timed on the same recorded
    tokens in interleaved blocks (speed). For a quick look with wide intervals: `cdbench run --limit
    10 --requests 32`.

    Every flag stands for a key of the configuration (`cdbench config schema`); a flag wins over
    --set, and --set over CONFIG. Exit codes: 0 valid, 2 wrong input, 3 invalid run, 130 interrupted
    (what was finished is kept).
    """
    from cdbench.cli.output import print_json
    from cdbench.render.terminal import make_console
    from cdbench.schema import to_json

    flags = {
        "model": model,
        "dense": dense,
        "modes": modes,
        "tasks": tasks,
        "limit": limit,
        "evaluation.num_fewshot": num_fewshot,
        "evaluation.samples": samples,
        "evaluation.gen_kwargs": gen_kwargs,
        "exit.rule": exit_rule,
        "exit.threshold": threshold,
        "exit.min_loops": min_loops,
        "exit.max_loops": max_loops,
        "exit.lag": exit_lag,
        "kv.layout": kv,
        "work": work,
        "equal": equal,
        "workload.source": source,
        "workload.requests": requests,
        "workload.arrivals": arrivals,
        "workload.depths": depths,
        "repeats.blocks": blocks,
        "stages": stages,
        "device": device,
        "dtype": dtype,
        "weights": weights,
        "layers": layers,
        "out": out,
    }
    loaded, again = _configuration(config, earlier, overrides or (), flags)
    if _follows(loaded):
        return
    console = None if as_json else make_console()
    result, directory = measure(loaded, console, again, launches)
    if console is None:
        print_json(json.loads(to_json(result)))
    else:
        print_report(result, directory, console, full)
    if result.status == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if result.validity.verdict == "INVALID":
        raise typer.Exit(INVALID)


def _follows(config: RunConfig) -> bool:
    """Where torchrun started several processes, all but the first only help to answer."""
    if os.environ.get("RANK", "0") == "0":
        return False
    from cdbench.bench.benchmark import follow_benchmark

    follow_benchmark(config)
    return True


def _configuration(
    config: str | None, earlier: str | None, overrides: Sequence[str], flags: dict[str, Any]
) -> tuple[RunConfig, Again | None]:
    """What to run, and the earlier run that it repeats, if any."""
    from cdbench.bench.again import config_from
    from cdbench.config import load_config

    if earlier is None:
        return load_config(config, overrides, flags), None
    if config is not None:
        raise UsageError(f"--from {earlier}: beside the configuration {config}; give one of them")
    again = config_from(earlier)
    return again.config(overrides, flags), again


def measure(
    config: RunConfig, console: Console | None, again: Again | None = None, launches: bool = False
) -> tuple[Result, str]:
    """Run it; the result and where it was written. Without a console nothing is printed."""
    from cdbench.bench.benchmark import run_benchmark
    from cdbench.cli.progress import progress_on_stderr
    from cdbench.render.terminal import print_lines

    def announce(plan: Plan, work: TimedWork | None, started: Manifest) -> None:
        if console is not None:
            print_lines(console, *_card(plan, work, started))
            for difference in again.differences(started) if again is not None else ():
                tell(f"--from: {difference}")

    result, directory = run_benchmark(
        config,
        progress_on_stderr(sys.stderr, quiet=console is None),
        announce,
        again.mark if again is not None else None,
        launches=launches,
    )
    return result, str(directory)


def _card(plan: Plan, work: TimedWork | None, started: Manifest) -> list[str]:
    """The static facts, before any number is measured."""
    from cdbench.bench.rows import exit_settings
    from cdbench.bench.summary import model_facts
    from cdbench.render.run_report import exit_words, model_lines

    origin = plan.trace.origin if plan.trace is not None else None
    lines = model_lines(model_facts(plan), started, exit_words(exit_settings(plan.policy), origin))
    return lines + [f"note      {note}" for note in (work.notes if work is not None else ())]


def print_report(result: Result, directory: str, console: Console, full: bool) -> None:
    """Table, histogram and plain words; with ``full`` everything that was measured."""
    from cdbench.bench.again import repeated_lines
    from cdbench.render import run_report, verdict
    from cdbench.render.terminal import print_lines, print_table, print_whole

    if not result.modes:
        print_lines(console, "Nothing was measured before the interruption.")
        return
    print_lines(console, *run_report.work_lines(result.workload, run_report.signalled(result)), "")
    if result.validity.verdict == "INVALID":
        print_lines(console, "INVALID: quote no number of this run; the reasons stand below.", "")
    print_table(run_report.main_table(result), console)
    print_histogram(result, console)
    for table in _more_tables(result, full):
        print_lines(console, "")
        print_table(table, console)
    looks = [line] if (line := verdict.looks_line(result)) else []
    print_lines(
        console, "", *verdict.validity_lines(result), "", *verdict.sentences(result), *looks
    )
    if result.manifest.repeated is not None:
        print_lines(console, *repeated_lines(result.manifest.repeated))
    print_whole(console, f"Written to {directory}")


def _more_tables(result: Result, full: bool) -> list[Table]:
    """With ``full`` everything; else what was asked for, and latency where no ratio was formed.

    Ratios are formed unless requests arrived at times of their own; before the first whole block
    there are no percentiles either.
    """
    from cdbench.render.asked import asked_tables
    from cdbench.render.full_report import full_tables, latency_table
    from cdbench.render.tasks_report import shows_tasks, task_table

    if full:
        return full_tables(result)
    tasks = [task_table(result)] if shows_tasks(result) else []
    latencies = [] if result.comparisons else [latency_table(result)]
    return [*tasks, *asked_tables(result), *(table for table in latencies if table.rows)]


def print_histogram(result: Result, console: Console) -> None:
    """Executed depths of the first adaptive mode there is, as bars."""
    from cdbench.render.bars import depth_bars
    from cdbench.render.terminal import print_lines

    for label in ("cdb", "lockstep"):
        counts = result.modes[label].depth_histogram if label in result.modes else None
        if counts:
            where = "live pass" if result.modes[label].live else "replayed"
            title = f"loops per later token, {label} ({where}): share and number of tokens"
            width = min(60, console.width)
            bars = depth_bars(counts, width=width, encoding=console.encoding)
            print_lines(console, "", title, *bars)
            return

"""``cdbench record``."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cdbench.cli.config import ConfigArgument, JsonOption, SetOption
from cdbench.cli.options import (
    DeviceOption,
    DtypeOption,
    KvOption,
    LagOption,
    MaxLoopsOption,
    MinLoopsOption,
    ModelOption,
    ThresholdOption,
    WeightsOption,
)
from cdbench.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from cdbench.config import RunConfig
    from cdbench.schema.recording import Recording


def verb(
    config: ConfigArgument = None,
    model: ModelOption = None,
    exit_rule: Annotated[
        str | None,
        typer.Option("--exit", metavar="RULE", help="RULE[@THRESHOLD]; default: the model card's."),
    ] = None,
    threshold: ThresholdOption = None,
    min_loops: MinLoopsOption = None,
    max_loops: MaxLoopsOption = None,
    exit_lag: LagOption = None,
    kv: KvOption = None,
    requests: Annotated[int | None, typer.Option(help="How many requests are recorded.")] = None,
    tasks: Annotated[
        str | None, typer.Option(help="Tasks whose questions are asked, by commas.")
    ] = None,
    agreement: Annotated[
        str | None,
        typer.Option(
            metavar="X1,X2",
            help="Thresholds to compare derived depths with live runs at; none: no comparison. "
            "Default: quartiles of the signals.",
        ),
    ] = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    weights: WeightsOption = None,
    out: Annotated[
        str | None,
        typer.Option(help="Directory (default: results/runs/<date>-record-<model>)."),
    ] = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Record tokens, depths and exit signals, to be replayed at any threshold.

    The workload runs live in mode cdb; beyond its exit every token runs ghost loops that change
    nothing, so that the rule's signal is known at every loop. `--exit trace:DIR` replays the run,
    `--exit trace:DIR@X` with depths derived for threshold X, which live runs are compared with
    here. Exit codes: 0 recorded, 2 wrong input, 3 a request was refused, 130 interrupted (nothing
    is written).
    """
    from cdbench.config import load_config

    thresholds = _thresholds(agreement)
    loaded = load_config(
        config,
        overrides or (),
        {
            "model": model,
            "exit.rule": exit_rule,
            "exit.threshold": threshold,
            "exit.min_loops": min_loops,
            "exit.max_loops": max_loops,
            "exit.lag": exit_lag,
            "kv.layout": kv,
            "workload.requests": requests,
            "tasks": tasks,
            "device": device,
            "dtype": dtype,
            "weights": weights,
            "out": out,
            # One live pass over the timed requests, whatever else the file names.
            "work": "equal",
            "modes": "cdb",
        },
    )
    document, path = record(_no_interval(loaded), thresholds, quiet=as_json)
    _print(document, path, as_json)


def _no_interval(config: RunConfig) -> RunConfig:
    """Without an interval to wait for: a recording is one pass."""
    repeats = config.repeats.model_copy(update={"interval": None})
    return config.model_copy(update={"repeats": repeats})


def record(
    config: RunConfig, thresholds: tuple[float, ...] | None, quiet: bool
) -> tuple[Recording, Path]:
    """Record it; the document and where it was written."""
    from cdbench.bench.budget import check_budget
    from cdbench.bench.directory import RunDirectory
    from cdbench.bench.plan import make_plan
    from cdbench.bench.record import check_record, make_recording
    from cdbench.bench.workload import prepare
    from cdbench.cli.progress import progress_on_stderr
    from cdbench.workloads.recording_files import write_recording

    directory = RunDirectory.create(config.out, f"record-{config.model}")
    try:
        plan = make_plan(config)
        work = prepare(plan)
        assert work is not None, "the work is equal"
        check_record(plan, work, thresholds)
        check_budget(plan, work)
        with progress_on_stderr(sys.stderr, quiet) as progress:
            packed = make_recording(plan, work, thresholds, progress)
        document = packed.recorded.document
        return document, write_recording(directory.path, document, packed.signals_npz)
    finally:
        directory.close()


def _thresholds(text: str | None) -> tuple[float, ...] | None:
    """The thresholds of ``--agreement``; None leaves them to the signals."""
    if text is None:
        return None
    if text == "none":
        return ()
    from cdbench.grammar import split_commas

    try:
        found = tuple(float(part) for part in split_commas(text))
    except ValueError:
        raise UsageError(
            f"--agreement {text!r}: not all are numbers; write X1,X2 or none"
        ) from None
    if not found or not all(map(math.isfinite, found)):
        raise UsageError(f"--agreement {text!r}: no finite thresholds; write X1,X2 or none")
    if twice := [x for x in found if found.count(x) > 1]:
        raise UsageError(f"--agreement {text!r}: {twice[0]:g} is listed twice; name it once")
    return found


def _print(document: Recording, path: Path, as_json: bool) -> None:
    from cdbench.cli.output import print_json
    from cdbench.render.record_report import agreement_table, record_lines
    from cdbench.render.terminal import make_console, print_lines, print_table, print_whole
    from cdbench.schema import to_json

    if as_json:
        print_json(json.loads(to_json(document)))
        return
    console = make_console()
    print_lines(console, *record_lines(document))
    if document.agreement:
        print_lines(console, "")
        print_table(agreement_table(document), console)
    where = path.parent
    last = f"Written to {where}; replay it with --exit trace:{where}"
    print_lines(console, "")
    print_whole(console, last)

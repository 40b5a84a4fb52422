"""``cdbench predictor record|fit|judge``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdbench.cli.config import JsonOption, SetOption
from cdbench.cli.options import (
    DeviceOption,
    DtypeOption,
    KvOption,
    MaxLoopsOption,
    MinLoopsOption,
    WeightsOption,
)
from cdbench.cli.run_options import SourceOption
from cdbench.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console

    from cdbench.config import RunConfig
    from cdbench.schema.lookahead import GateDocument, GateJudgement, StateRecording

verb = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Demo name, checkpoint directory or hub id.")
]
RequestsOption = Annotated[int | None, typer.Option(help="How many requests are served.")]
TasksOption = Annotated[
    str | None, typer.Option(help="Tasks whose questions are asked, by commas.")
]
PreLoopOption = Annotated[
    bool, typer.Option("--pre-loop", help="Also a gate on the prelude's output, for depth 1.")
]
KINDS = ("linear", "mlp")


@verb.command("record")
def record(
    model: ModelArgument,
    out: Annotated[str, typer.Option(metavar="FILE", help="Recording to write (safetensors).")],
    exit_rule: Annotated[
        str | None,
        typer.Option("--exit", metavar="RULE", help="RULE[@THRESHOLD]; default: the model card's."),
    ] = None,
    min_loops: MinLoopsOption = None,
    max_loops: MaxLoopsOption = None,
    kv: KvOption = None,
    requests: RequestsOption = None,
    tasks: TasksOption = None,
    source: SourceOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    weights: WeightsOption = None,
    pre_loop: PreLoopOption = False,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Record what a gate is fitted on: states and exit signals after every loop.

    The workload runs live under the rule at lag 0 with a floor of at least 2 (not with --pre-loop),
    with ghost loops beyond each exit. Everything is written at the end, or nothing. Exit codes:
    0 recorded, 2 wrong input, 3 a request was refused, 130 interrupted.
    """
    flags = {
        "model": model,
        "exit.rule": exit_rule,
        "exit.min_loops": min_loops,
        "exit.max_loops": max_loops,
        "kv.layout": kv,
        "workload.requests": requests,
        "workload.source": source,
        "tasks": tasks,
        "device": device,
        "dtype": dtype,
        "weights": weights,
    }
    path = _writable(out)
    document = _record(_config(overrides, flags), path, pre_loop, quiet=as_json)
    if as_json:
        _print_json(document, without={"requests"})
        return
    from cdbench.render.predictor_report import recording_lines
    from cdbench.render.terminal import make_console, print_lines, print_whole

    console = make_console()
    print_lines(console, *recording_lines(document), "")
    fitting = f"cdbench predictor fit {out} --out DIR{' --pre-loop' if pre_loop else ''}"
    print_whole(console, f"Written to {out}; fit a gate with {fitting}")


@verb.command("fit")
def fit(
    recording: Annotated[str, typer.Argument(metavar="FILE", help="A recording.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="Directory of the gate.")],
    kind: Annotated[str, typer.Option(help="linear or mlp.")] = "linear",
    seed: Annotated[int, typer.Option(min=0, help="Of the split and of the weights.")] = 0,
    holdout: Annotated[
        float,
        typer.Option(help="Share of the requests held out; as many are calibrated on."),
    ] = 0.2,
    precision: Annotated[
        float, typer.Option(help="Least share of right calls on the calibrating requests.")
    ] = 0.9,
    pre_loop: PreLoopOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fit a gate to a recording, calibrate it and choose the probability it calls at.

    Exit codes: 0 written, 2 wrong input.
    """
    if kind not in KINDS:
        raise UsageError(f"--kind {kind!r}: unknown; use {' or '.join(KINDS)}")
    if not 0 < holdout < 0.5:
        raise UsageError(f"--holdout {holdout:g}: out of range; use a share above 0 and below 0.5")
    if not 0 < precision <= 1:
        raise UsageError(f"--precision {precision:g}: out of range; use a share above 0 to 1")
    options = {"seed": seed, "holdout": holdout, "least_precision": precision, "pre_loop": pre_loop}
    document = _fit(recording, out, kind, options)
    if as_json:
        _print_json(document)
        return
    from cdbench.render.predictor_report import figures_lines, figures_table, gate_lines
    from cdbench.render.terminal import make_console, print_lines, print_table, print_whole

    console = make_console()
    print_lines(console, *gate_lines(document), "")
    print_table(figures_table(document.held_out, "On held-out requests"), console)
    print_lines(console, "", *figures_lines(document.held_out), "")
    print_whole(console, f"Written to {out}; use it with --exit lookahead:{out} --exit-lag 1")


@verb.command("judge")
def judge(
    gate: Annotated[
        str,
        typer.Argument(metavar="GATE", help="A gate's directory, or a demo model that has one."),
    ],
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Default: the model it was trained on.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(metavar="X", help="Probability to call at; default: the gate's.")
    ] = None,
    min_loops: MinLoopsOption = None,
    requests: RequestsOption = None,
    tasks: TasksOption = None,
    source: SourceOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Also write the JSON document here.")
    ] = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve requests with a gate at lag 1, beside its rule at lag 0 and at lag 1.

    The text is the rule's own at lag 0, forced on the others; requests that the gate was fitted on
    are left out. Exit codes: 0 judged, 2 wrong input, 3 a request was refused.
    """
    path = None if out is None else _writable(out)
    flags = {
        "model": model,
        "exit.threshold": threshold,
        "exit.min_loops": min_loops,
        "workload.requests": requests,
        "workload.source": source,
        "tasks": tasks,
        "device": device,
        "dtype": dtype,
    }
    document = _judge(gate, flags, overrides, quiet=as_json)
    if path is not None:
        from cdbench.schema.files import write_document

        write_document(path, document)
    if as_json:
        _print_json(document)
        return
    from cdbench.render.terminal import make_console

    _show_judgement(document, make_console())


def _config(overrides: list[str] | None, flags: dict[str, Any]) -> RunConfig:
    """One live pass over the timed requests, whatever else the keys name."""
    from cdbench.config import load_config

    loaded = load_config(
        None,
        overrides or (),
        {"work": "equal", "modes": "cdb", **flags},
    )
    repeats = loaded.repeats.model_copy(update={"interval": None})
    return loaded.model_copy(update={"repeats": repeats})


def _record(config: RunConfig, path: Path, pre_loop: bool, quiet: bool) -> StateRecording:
    from cdbench.bench.budget import check_budget
    from cdbench.bench.plan import make_plan
    from cdbench.bench.workload import prepare
    from cdbench.cli.progress import progress_on_stderr
    from cdbench.predictor.recording import check_recordable, record_states
    from cdbench.predictor.recording_file import write_states

    plan = make_plan(config)
    work = prepare(plan)
    assert work is not None, "the work is equal"
    check_recordable(plan, work, pre_loop)
    check_budget(plan, work)
    with progress_on_stderr(sys.stderr, quiet) as progress:
        recorded = record_states(plan, work, progress, pre_loop)
    return write_states(path, recorded)


def _fit(recording: str, out: str, kind: str, options: dict[str, Any]) -> GateDocument:
    from cdbench.predictor.fit import FitOptions, fit
    from cdbench.predictor.gate_files import write_gate
    from cdbench.predictor.recording_file import read_states

    directory = Path(out)
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"--out {out}: is a file; name a directory")
    recorded = read_states(Path(recording))
    fitted = fit(recorded, FitOptions("mlp" if kind == "mlp" else "linear", **options))
    directory.mkdir(parents=True, exist_ok=True)
    return write_gate(directory, fitted.document, fitted.gate, fitted.before)


def _judge(
    gate: str, flags: dict[str, Any], overrides: list[str] | None, quiet: bool
) -> GateJudgement:
    from cdbench.bench.budget import check_budget
    from cdbench.bench.plan import make_plan
    from cdbench.bench.workload import prepare
    from cdbench.cli.progress import progress_on_stderr
    from cdbench.predictor.gate_files import read_gate
    from cdbench.predictor.judge import check_judgeable, judge, unseen

    stored = read_gate(gate)
    setting = stored.document.setting
    flags = {
        **flags,
        "model": flags["model"] or setting.model.name,
        "exit.rule": "lookahead",
        "exit.predictor": gate,
        "exit.lag": 1,
        "exit.max_loops": setting.max_loops,
        "kv.layout": setting.kv_layout,
        "weights": None if setting.weight_seed is None else f"random:{setting.weight_seed}",
    }
    config = _config(overrides, flags)
    wanted = config.workload.requests
    # Enough that as many are left once those it was fitted on are out.
    more = wanted + len(stored.document.trained_on.prompts)
    workload = config.workload.model_copy(update={"requests": more})
    plan = make_plan(config.model_copy(update={"workload": workload}))
    work = prepare(plan)
    assert work is not None, "the work is equal"
    check_judgeable(plan, work)
    check_budget(plan, work)
    left = unseen(work.requests, stored, wanted)
    with progress_on_stderr(sys.stderr, quiet) as progress:
        return judge(plan, stored, left, progress)


def _writable(out: str) -> Path:
    """A file that can be written once all has been done; UsageError before anything is."""
    path = Path(out)
    if path.is_dir():
        raise UsageError(f"--out {out}: is a directory; name a file")
    if not path.parent.is_dir():
        raise UsageError(f"--out {out}: no directory {path.parent}; make it first")
    return path


def _show_judgement(document: GateJudgement, console: Console) -> None:
    from cdbench.render.predictor_report import figures_table, judgement_lines, position_table
    from cdbench.render.terminal import print_lines, print_table

    print_lines(console, *judgement_lines(document), "")
    print_table(figures_table(document.figures, "By loop"), console)
    print_lines(console, "")
    print_table(position_table(document), console)


def _print_json(document: BaseModel, without: set[str] | None = None) -> None:
    from cdbench.cli.output import print_json

    print_json(json.loads(document.model_dump_json(exclude=without)))

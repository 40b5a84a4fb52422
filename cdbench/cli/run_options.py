"""Options of ``cdbench run`` that no other command has in this form."""

from __future__ import annotations

from typing import Annotated

import typer

DenseOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODELS",
        help="Dense models to compare with, by commas; default: demo-dense for a demo model.",
    ),
]
ModesOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODES",
        help="dense:NAME, static, static@D, static@auto, lockstep, cdb; by commas. Default: "
        "every dense model, static, static@auto, lockstep, cdb.",
    ),
]
TasksOption = Annotated[
    str | None,
    typer.Option(
        metavar="TASKS",
        help="Tasks to answer, by commas: shipped (`cdbench list tasks`) or lm-eval names, YAML "
        "files, directories; default: the model card's.",
    ),
]
LimitOption = Annotated[
    int | None, typer.Option(metavar="N", help="Questions per task; default: 150.")
]
FewshotOption = Annotated[
    int | None,
    typer.Option(
        "--num-fewshot", metavar="N", help="Examples before each question; default: the task's."
    ),
]
SamplesOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help='Documents to ask in place of --limit: a JSON file {"task": [ids]}, or the object.',
    ),
]
GenKwargsOption = Annotated[
    str | None,
    typer.Option(
        "--gen-kwargs",
        metavar="ARGS",
        help="Generation arguments over the tasks' own, as lm-eval takes them: "
        "max_gen_toks=N,do_sample=true,temperature=X,top_k=N,top_p=X.",
    ),
]
ExitOption = Annotated[
    str | None,
    typer.Option(
        "--exit",
        metavar="RULE",
        help="none, fixed:D, RULE[@X] (`cdbench list rules`), trace:FILE[@X] to replay a "
        "recording, or lookahead:PATH[@X] with --exit-lag 1; X: a threshold. Default: the model "
        "card's.",
    ),
]
WorkOption = Annotated[
    str | None,
    typer.Option(
        metavar="KINDS",
        help="live (each mode's own text: accuracy), equal (fixed work: speed); default: "
        "live,equal.",
    ),
]
EqualOption = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT",
        help="What all modes have alike: residents (default), or memory (one KV budget).",
    ),
]
SourceOption = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="Requests to time: demo (default: questions of the tasks), a json, jsonl, csv, "
        "parquet or txt file, hf:NAME, trace (those of --exit trace:FILE) or random.",
    ),
]
RequestsOption = Annotated[
    int | None, typer.Option(metavar="N", help="How many requests are timed; default: 224.")
]
ArrivalsOption = Annotated[
    str | None,
    typer.Option(
        metavar="PROCESS",
        help="all-at-once (default), closed-loop:CLIENTS, open-loop:RATE, ramp:RATE1-RATE2 or "
        "trace:FILE; rates in requests per second.",
    ),
]
DepthsOption = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="Depths of the timed work: recorded (default), or synthetic: full, shallow, "
        "bimodal, clustered, shallow-heavy, deep-heavy, serial:RHO.",
    ),
]
BlocksOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Timing blocks (every mode twice); an interval needs 6. Default: 6.",
    ),
]
StagesOption = Annotated[
    str | None,
    typer.Option(
        metavar="CURVES",
        help="Stage curves for time bounds and waterfall: measure (default), none, or a file "
        "of `cdbench stages`.",
    ),
]
OutOption = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="A new directory; default: results/runs/<date>-<name>."),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="RUN",
        help="Repeat an earlier run, named by its directory; flags and --set win.",
    ),
]
LaunchesOption = Annotated[
    bool,
    typer.Option("--launches", help="Also write every launch (trace.json) for a trace viewer."),
]
FullOption = Annotated[
    bool,
    typer.Option(
        "--full", help="Print also rates, latencies, launches, bounds, waterfall, exit depths."
    ),
]

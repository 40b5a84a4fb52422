"""Options of ``cdbench generate`` that no other command has in this form."""

from __future__ import annotations

from typing import Annotated

import typer

ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A demo name, a checkpoint's directory or a hub id."),
]
PromptOption = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="A prompt; may be repeated. -: one per line of stdin."),
]
IdsFileOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help='Lines {"prompt": [ids], "force": [ids], "max_new_tokens": n}; the last two may be '
        "left out. -: stdin.",
    ),
]
ModeOption = Annotated[
    str,
    typer.Option(
        metavar="MODE", help="cdb, lockstep, static, static@D; dense:NAME for a dense model."
    ),
]
ExitOption = Annotated[
    str | None,
    typer.Option(
        "--exit",
        metavar="RULE",
        help="none, fixed:D, RULE[@X] (`cdbench list rules`), or trace:FILE[@X] to replay a --json "
        "document or a recording; X: a threshold. Default: the model card's.",
    ),
]
TokensOption = Annotated[
    int,
    typer.Option(min=1, metavar="N", help="Most tokens of a continuation; a line of FILE wins."),
]
StopOption = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="End at this text; may be repeated.")
]
IgnoreOption = Annotated[
    bool, typer.Option("--ignore-eos", help="Do not end at the model's own stop ids.")
]
TemperatureOption = Annotated[
    float | None, typer.Option(metavar="T", help="Softmax temperature; default: 0, greedy.")
]
TopKOption = Annotated[
    int | None, typer.Option(metavar="K", help="Keep the K likeliest tokens; default: 0, all.")
]
TopPOption = Annotated[
    float | None,
    typer.Option(metavar="P", help="Keep the likeliest tokens up to this mass; default: 1, all."),
]
SeedOption = Annotated[
    int | None, typer.Option(metavar="N", help="Seed of the random stream; default: 0.")
]
FirstOption = Annotated[
    str | None,
    typer.Option(
        metavar="WHICH",
        help="Loop that a first token is read from: full (default: the last), or select (the one "
        "its rule picks).",
    ),
]
StateOption = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="State before loop 1: zero (default), or random (Huginn)."),
]
PrefixOption = Annotated[
    bool | None,
    typer.Option(help="Reuse the KV of equal prompt prefixes; default: yes.", show_default=False),
]
HostOption = Annotated[
    int | None,
    typer.Option(
        metavar="BYTES", help="Most host memory used under a KV budget; default: no limit."
    ),
]
WidthOption = Annotated[
    int | None,
    typer.Option(metavar="ROWS", help="Most decode rows of one launch; default: --max-residents."),
]
ResidentsOption = Annotated[
    int | None, typer.Option(metavar="N", help="Most requests served at once; default: 128.")
]
BudgetOption = Annotated[
    int | None, typer.Option(metavar="BYTES", help="Most KV in use at once; default: no limit.")
]
CodaOption = Annotated[
    str | None,
    typer.Option(metavar="ROWS", help="Exited tokens that a coda launch waits for; default: 1."),
]
PrefillOption = Annotated[
    int | None,
    typer.Option(metavar="TOKENS", help="Most prompt tokens of one launch; default: 512."),
]

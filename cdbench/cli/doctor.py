"""``cdbench doctor``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cdbench.cli.config import JsonOption
from cdbench.cli.options import DeviceOption, KvOption, WeightsOption
from cdbench.errors import InvalidRunError, UsageError

if TYPE_CHECKING:
    from cdbench.doctor.document import DoctorDocument

ModelOption = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="Demo name, checkpoint directory or hub id."),
]
ExitOption = Annotated[
    str | None,
    typer.Option(
        "--exit",
        metavar="RULE",
        help="none, fixed:D or RULE[@X], X: a threshold; default: the model card's.",
    ),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        metavar="DTYPE",
        help="float64, float32, bfloat16 or float16 for the checks; default: float64, where "
        "agreement is exact, for a model of up to 250 million parameters.",
    ),
]
PromptsOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help='Lines {"prompt": [ids], "force": [ids], "max_new_tokens": n}; the last two may be '
        "left out. -: stdin.",
    ),
]
RequestsOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="How many prompts are used; default: 8, or 4 if large."),
]
TokensOption = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Most tokens of a continuation; default: 20, or 8 if large."
    ),
]

MachineOption = Annotated[
    bool,
    typer.Option("--machine", help="What this machine can measure; without --model, nothing else."),
]


def verb(
    model: ModelOption = None,
    exit_rule: ExitOption = None,
    kv: KvOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    weights: WeightsOption = None,
    prompts: PromptsOption = None,
    requests: RequestsOption = None,
    max_new_tokens: TokensOption = None,
    machine_too: MachineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check a model on this machine: is it served as it computes by itself?

    Alone and in company, under every schedule, KV layout and memory pressure, a request must get
    the same tokens, depths and logprobs, and full depth must be the model's own forward. A table
    says what rounding changes per dtype. Without --model, or with --machine, it says what this
    machine can measure and what would spoil a run: that takes a few seconds, and warnings do not
    change the exit code. Exit codes: 0 every invariant holds, 2 wrong input, 3 a broken invariant.
    """
    from cdbench.config import load_config

    flags = {
        "model": model,
        "exit.rule": exit_rule,
        "kv.layout": kv,
        "dtype": dtype,
        "device": device,
        "weights": weights,
    }
    if model is None:
        given = [name for name, value in flags.items() if value is not None and name != "device"]
        if given or prompts is not None or requests is not None or max_new_tokens is not None:
            raise UsageError("doctor: no model is given to check; add --model MODEL")
    config = load_config(flags=flags)

    if model is None:
        from cdbench.doctor.measuring import examine_machine
        from cdbench.models.loading import resolve_device

        document = examine_machine(str(resolve_device(config.device)))
    else:
        from cdbench.cli.progress import progress_on_stderr
        from cdbench.doctor.examination import Asked, examine

        with progress_on_stderr(sys.stderr, quiet=False) as progress:
            asked = Asked(prompts, requests, max_new_tokens, machine_too)
            document = examine(config, asked, progress)
    _print(document, as_json)
    _refuse(document)


def _print(document: DoctorDocument, as_json: bool) -> None:
    from cdbench.cli.output import print_json
    from cdbench.doctor.report import print_report
    from cdbench.render.terminal import make_console
    from cdbench.schema import to_json

    if as_json:
        print_json(json.loads(to_json(document)))
    else:
        print_report(document, make_console())


def _refuse(document: DoctorDocument) -> None:
    failed = document.failed
    if failed:
        raise InvalidRunError(
            f"doctor: {len(failed)} of {len(document.checks)} checks failed: {failed[0].name}: "
            f"{failed[0].detail}; do not trust what this model gives on this machine"
        )

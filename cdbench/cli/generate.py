"""``cdbench generate``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import typer

from cdbench.cli.config import JsonOption
from cdbench.cli.generate_options import (
    BudgetOption,
    CodaOption,
    ExitOption,
    FirstOption,
    HostOption,
    IdsFileOption,
    IgnoreOption,
    ModelArgument,
    ModeOption,
    PrefillOption,
    PrefixOption,
    PromptOption,
    ResidentsOption,
    SeedOption,
    StateOption,
    StopOption,
    TemperatureOption,
    TokensOption,
    TopKOption,
    TopPOption,
    WidthOption,
)
from cdbench.cli.options import (
    DeviceOption,
    DtypeOption,
    KvOption,
    LagOption,
    LayersOption,
    MaxLoopsOption,
    MinLoopsOption,
    ThresholdOption,
    WeightsOption,
)
from cdbench.cli.streams import tell
from cdbench.errors import RequestRefused, UsageError

if TYPE_CHECKING:
    from cdbench.config import RunConfig
    from cdbench.render.continuation import Continuation
    from cdbench.runtime.core import RequestResult
    from cdbench.schema import GenerateDocument
    from cdbench.workloads.generation import Generation
    from cdbench.workloads.prompts import Prompt

KEYS = {
    "model": "model",
    "mode": "modes",
    "exit_rule": "exit.rule",
    "threshold": "exit.threshold",
    "min_loops": "exit.min_loops",
    "max_loops": "exit.max_loops",
    "exit_lag": "exit.lag",
    "kv": "kv.layout",
    "kv_budget_bytes": "kv.budget_bytes",
    "width": "engine.width",
    "max_residents": "engine.max_residents",
    "coda_min_rows": "engine.coda_min_rows",
    "prefill_tokens": "engine.prefill_tokens",
    "temperature": "sampling.temperature",
    "top_k": "sampling.top_k",
    "top_p": "sampling.top_p",
    "seed": "sampling.seed",
    "dtype": "dtype",
    "device": "device",
    "weights": "weights",
    "layers": "layers",
    "first_token": "first_token",
    "state_init": "state_init",
    "prefix_cache": "kv.prefix_cache",
    "kv_host_bytes": "kv.host_bytes",
}
"""Flag → configuration key: one set of defaults and checks, whatever the command."""


def verb(
    context: typer.Context,
    model: ModelArgument,
    prompt: PromptOption = None,
    ids_file: IdsFileOption = None,
    mode: ModeOption = "cdb",
    exit_rule: ExitOption = None,
    threshold: ThresholdOption = None,
    min_loops: MinLoopsOption = None,
    max_loops: MaxLoopsOption = None,
    exit_lag: LagOption = None,
    kv: KvOption = None,
    max_new_tokens: TokensOption = 64,
    stop: StopOption = None,
    ignore_eos: IgnoreOption = False,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    weights: WeightsOption = None,
    layers: LayersOption = None,
    first_token: FirstOption = None,
    state_init: StateOption = None,
    width: WidthOption = None,
    max_residents: ResidentsOption = None,
    kv_budget_bytes: BudgetOption = None,
    kv_host_bytes: HostOption = None,
    prefix_cache: PrefixOption = None,
    coda_min_rows: CodaOption = None,
    prefill_tokens: PrefillOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue prompts with one model in one mode, and show the depth of every token.

    Results appear as requests finish; with --json there is one document, in input order. Exit
    codes: 0 success, 2 wrong input (found before anything is printed), 3 a request was refused.
    """
    config = _config({name: context.params[name] for name in KEYS})
    prompts = _prompts(prompt or [], ids_file, config)
    from cdbench.workloads.generation import Ending, prepare

    batch = prepare(config, prompts, Ending(max_new_tokens, ignore_eos, tuple(stop or ())))
    for note in batch.notes:
        tell(note)
    results = _collect(batch) if as_json else _show(batch, prompts)
    if as_json:
        _print_document(batch.document(results))
    _refuse(results, prompts)


def _config(flags: dict[str, object]) -> RunConfig:
    from cdbench.config import load_config, parse_mode

    # A comma list would be several modes, and a batch is served in one.
    parse_mode(str(flags["mode"]))
    config = load_config(flags={KEYS[name]: value for name, value in flags.items()})
    if config.engine.coda_min_rows == "auto":
        raise UsageError(
            "--coda-min-rows auto: is chosen from stage curves, which only `cdbench run` measures; "
            "give a number"
        )
    return config


def _prompts(texts: list[str], ids_file: str | None, config: RunConfig) -> list[Prompt]:
    from cdbench.workloads.prompts import read_ids_file, text_prompts

    if texts and ids_file is not None:
        raise UsageError("--prompt: given beside --ids-file; give one of them")
    if ids_file is not None:
        return read_ids_file(ids_file)
    if not texts and config.exit.trace_file is not None:
        return _recorded_prompts(config)
    if not texts:
        raise UsageError("generate: no prompt is given; add --prompt TEXT or --ids-file FILE")
    return text_prompts(texts)


def _recorded_prompts(config: RunConfig) -> list[Prompt]:
    """Those of the trace itself, where it kept them."""
    from cdbench.runtime.core import ExitPolicy
    from cdbench.workloads.exit_trace import load_exit_trace, own_requests
    from cdbench.workloads.prompts import Prompt

    assert config.exit.spec is not None
    trace = load_exit_trace(config.exit.spec)
    return [
        Prompt(f"{trace.file}: request {request.id!r}", ids=tuple(request.prompt))
        for request in own_requests(trace, ExitPolicy())
    ]


def _collect(batch: Generation) -> dict[int, RequestResult]:
    return dict(batch.results())


def _show(batch: Generation, prompts: list[Prompt]) -> dict[int, RequestResult]:
    """Print each request as it finishes."""
    from cdbench.render.continuation import Printer
    from cdbench.render.terminal import make_console

    setup, loops = batch.settings, batch.engine.max_loops
    printer = Printer(make_console(), loops)
    printer.heading(
        [
            f"{batch.model.name} · {setup['mode']} · exit {setup['exit']} · kv {setup['kv']} · "
            f"{setup['dtype']} on {setup['device']} · {loops} loop{'s' if loops > 1 else ''}",
            *batch.marks,
        ]
    )
    results = {}
    for index, result in batch.results():
        results[index] = result
        printer.continuation(_continuation(batch, index, result, prompts[index]))
        sys.stdout.flush()
    return results


def _continuation(
    batch: Generation, index: int, result: RequestResult, prompt: Prompt
) -> Continuation:
    from cdbench.render.continuation import Continuation, id_pieces, text_pieces

    if result.text is None:
        pieces = id_pieces(result.tokens)
    else:
        pieces = text_pieces(result.tokens, batch.model.decode, result.text)
    return Continuation(
        index=index,
        prompt=" ".join(map(str, prompt.ids)) if prompt.text is None else prompt.text,
        pieces=pieces,
        depths=result.executed_depths,
        finish_reason=result.finish_reason.value,
        error=result.error,
    )


def _print_document(document: GenerateDocument) -> None:
    """Write the document in one piece, so that an interrupt leaves all of it or nothing."""
    from cdbench.render.formats import can_print
    from cdbench.schema import to_json

    text = to_json(document)
    if not can_print(text, sys.stdout.encoding):
        text = json.dumps(json.loads(text), indent=2)
    sys.stdout.write(text + "\n")


def _refuse(results: dict[int, RequestResult], prompts: list[Prompt]) -> None:
    refused = [index for index in sorted(results) if results[index].error is not None]
    if refused:
        first = refused[0]
        raise RequestRefused(
            f"{len(refused)} of {len(results)} requests refused: {prompts[first].where} "
            f"{results[first].error}"
        )

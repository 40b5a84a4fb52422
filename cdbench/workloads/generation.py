"""From settings and prompts to a batch that is checked, submitted and ready to be served.

Everything that can be wrong is found by ``prepare``, before a first token: settings, the model's
files, every prompt. What it leaves is one engine that holds all requests, and the settings as they
were resolved, for the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from cdbench.config import RunConfig
from cdbench.errors import UsageError
from cdbench.grammar import Mode, check_exit
from cdbench.models.loading import LoadedModel, load_model
from cdbench.runtime.core import ExitPolicy, Request, RequestResult
from cdbench.runtime.engine import Engine
from cdbench.runtime.exit_checks import check_policy
from cdbench.runtime.exits import RULES
from cdbench.schema import GenerateDocument
from cdbench.workloads import generation_record as record
from cdbench.workloads.exit_trace import load_exit_trace, replayed
from cdbench.workloads.prompts import Prompt
from cdbench.workloads.resolve import (
    engine_config,
    exit_policy,
    full_depth,
    kv_budget_bytes,
    kv_layout,
    sampling,
    stops,
)
from cdbench.workloads.trace_fit import check_trace

DEFAULT_NEW_TOKENS = 64


@dataclass(frozen=True)
class Ending:
    """When a continuation ends, where its prompt does not say."""

    max_new_tokens: int = DEFAULT_NEW_TOKENS
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Generation:
    """A batch about to be served.

    ``settings`` is the ``config`` of the document; ``marks`` say what in the output is not the
    model's own doing; ``notes`` say what a person may not expect.
    """

    model: LoadedModel
    engine: Engine
    requests: tuple[Request, ...]
    settings: dict[str, JsonValue]
    marks: tuple[str, ...]
    notes: tuple[str, ...]

    def results(self) -> Iterator[tuple[int, RequestResult]]:
        """Serve all requests; yields each one's place in the input and its result as it ends."""
        for result in self.engine.run():
            yield int(result.id), result

    def document(self, results: dict[int, RequestResult]) -> GenerateDocument:
        """The document of a finished batch, in input order."""
        records = [record.request(index, results[index]) for index in range(len(self.requests))]
        return GenerateDocument(model=self.model.name, config=self.settings, requests=records)


def prepare(config: RunConfig, prompts: Sequence[Prompt], ending: Ending) -> Generation:
    """Load the model, check everything and submit all requests; UsageError for what is wrong.

    ``config`` names exactly one mode. A KV budget that a request can never fit is no error here: it
    ends that request alone.
    """
    (mode,) = config.resolved_modes
    asked = config.exit.spec
    trace = load_exit_trace(asked) if asked is not None and asked.rule == "trace" else None
    if trace is not None:
        _refuse_endings(ending)
    elif asked is not None:
        check_exit(asked.rule, asked.threshold, RULES)
    model = load_model(
        config.model,
        dtype=config.dtype,
        device=config.device,
        weight_seed=config.weight_seed,
        layers=config.layers,
    )
    _refuse_dense_on_looped(mode, model)
    max_loops = full_depth(config, model)
    if trace is not None:
        check_trace(trace, config, model, max_loops, mode.adaptive)
    policy = exit_policy(config, model, trace)
    check_policy(policy, model.network.dims, max_loops)
    engine = _engine(config, mode, model, max_loops, len(prompts))
    requests = _requests(config, model, policy, prompts, ending)
    where = [prompt.where for prompt in prompts]
    if trace is not None:
        requests = replayed(trace, requests, where)
    for request, name in zip(requests, where, strict=True):
        _submit(engine, request, name)
    forced = [i for i, prompt in enumerate(prompts) if prompt.force is not None]
    live = policy if mode.adaptive else ExitPolicy()
    return Generation(
        model=model,
        engine=engine,
        requests=tuple(requests),
        settings={
            **record.settings(config, model, engine, live),
            "max_new_tokens": ending.max_new_tokens if trace is None else None,
            "ignore_eos": ending.ignore_eos,
            "stop": list(ending.stop),
            "forced": list(forced),
            "replay": None if trace is None else trace.file,
        },
        marks=tuple(record.marks(config, model, mode, trace, forced)),
        notes=tuple(record.notes(config, model, mode, trace, policy)),
    )


def _engine(
    config: RunConfig, mode: Mode, model: LoadedModel, max_loops: int, requests: int
) -> Engine:
    # Places beyond the requests would only take memory.
    residents = min(config.engine.max_residents, requests)
    budget = kv_budget_bytes(config, model)
    settings = engine_config(config, mode, kv_layout(config, model), max_loops, residents, budget)
    detokenize = None if model.tokenizer is None else model.decode
    return Engine(model.network, settings, detokenize=detokenize)


def _refuse_dense_on_looped(mode: Mode, model: LoadedModel) -> None:
    loops = model.network.dims.max_loops
    if mode.kind == "dense" and loops > 1:
        raise UsageError(
            f"mode '{mode}': {model.name} runs {loops} loops; use static, lockstep or cdb"
        )


def _refuse_endings(ending: Ending) -> None:
    """Raise UsageError where a flag would end what a trace has ended already."""
    flags = {
        "--max-new-tokens": ending.max_new_tokens != DEFAULT_NEW_TOKENS,
        "--ignore-eos": ending.ignore_eos,
        "--stop": bool(ending.stop),
    }
    for flag in (flag for flag, given in flags.items() if given):
        raise UsageError(
            f"{flag}: means nothing beside a trace, whose tokens are replayed; drop it"
        )


def _requests(
    config: RunConfig,
    model: LoadedModel,
    policy: ExitPolicy,
    prompts: Sequence[Prompt],
    ending: Ending,
) -> list[Request]:
    chosen = sampling(config)
    stop_ids, stop_strings = _stops(model, ending)
    return [
        Request(
            # The place is the name: it keys the request's random stream.
            id=str(index),
            prompt=prompt.ids if prompt.text is None else model.encode(prompt.text),
            max_new_tokens=prompt.max_new_tokens or ending.max_new_tokens,
            exit=policy,
            sampling=chosen,
            stop_ids=stop_ids,
            stop_strings=stop_strings,
            force=prompt.force,
        )
        for index, prompt in enumerate(prompts)
    ]


def _stops(model: LoadedModel, ending: Ending) -> tuple[frozenset[int], tuple[str, ...]]:
    """Stop ids and strings. A special token never shows in the text, so it stops as an id."""
    if ending.stop and model.tokenizer is None:
        raise UsageError(f"--stop: {model.name} has no tokenizer.json to make text with; drop it")
    if "" in ending.stop:
        raise UsageError("--stop: a stop string is empty; drop it")
    ids, strings = stops(model, ending.stop)
    return (ids if ending.ignore_eos else ids | model.stop_ids), strings


def _submit(engine: Engine, request: Request, where: str) -> None:
    try:
        engine.submit(request)
    except UsageError as error:
        # A person knows the line or the flag, not the number that the engine saw.
        raise UsageError(str(error).replace(f"request {request.id!r}", where, 1)) from None

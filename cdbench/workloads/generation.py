"""From settings and prompts to a batch that is checked, submitted and ready to be served.

Everything that can be wrong is found by ``prepare``, before a first token: settings, the model's
files, every prompt. What it leaves is one engine that holds all requests, and the settings as they
were resolved, for the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from cdbench.config import RunConfig
from cdbench.errors import UsageError
from cdbench.grammar import ExitSpec, Mode, check_exit, parse_exit, parse_kv
from cdbench.models.loading import LoadedModel, load_model
from cdbench.runtime.core import ExitPolicy, Request, RequestResult, SamplingParams
from cdbench.runtime.engine import Engine, EngineConfig
from cdbench.runtime.exits import RULES, check_policy
from cdbench.schema import GenerateDocument
from cdbench.workloads import generation_record as record
from cdbench.workloads.exit_trace import ExitTrace, load_exit_trace, replayed
from cdbench.workloads.prompts import Prompt

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
    if asked is not None and trace is None:
        check_exit(asked.rule, asked.threshold, RULES)
    model = load_model(
        config.model, dtype=config.dtype, device=config.device, weight_seed=config.weight_seed
    )
    max_loops = _full_depth(config, mode, model)
    policy = exit_policy(config, model, trace)
    check_policy(policy, model.network.dims, max_loops)
    engine = _engine(config, mode, model, max_loops, len(prompts))
    if trace is not None and mode.adaptive and trace.max_loops != engine.max_loops:
        raise UsageError(
            f"trace {trace.file}: was recorded at {trace.max_loops} loops, this batch runs "
            f"{engine.max_loops}; set --max-loops {trace.max_loops}"
        )
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
            "max_new_tokens": ending.max_new_tokens,
            "ignore_eos": ending.ignore_eos,
            "stop": list(ending.stop),
            "forced": list(forced),
            "replay": None if trace is None else trace.file,
        },
        marks=tuple(record.marks(model, mode, trace, forced)),
        notes=tuple(record.notes(config, model, mode, trace, policy)),
    )


def exit_policy(config: RunConfig, model: LoadedModel, trace: ExitTrace | None) -> ExitPolicy:
    """The rule asked for, else the one that was recorded, else the one on the model's card."""
    asked = config.exit
    spec = asked.spec if trace is None else trace.spec
    if spec is None:
        spec = _card_exit(model, asked.threshold)
    threshold = spec.threshold
    if threshold is None and spec.rule in RULES:
        threshold = RULES[spec.rule].default_threshold
    min_loops: int = asked.min_loops
    lag: int = asked.lag
    if trace is not None:
        given = asked.model_fields_set
        min_loops = min_loops if "min_loops" in given else trace.min_loops
        lag = lag if "lag" in given else trace.lag
    return ExitPolicy(spec.rule, threshold, min_loops, lag, spec.depth)


def _card_exit(model: LoadedModel, threshold: float | None) -> ExitSpec:
    spec = parse_exit(model.card.exit)
    if threshold is None:
        return spec
    if spec.rule == "none":
        raise UsageError(
            f"exit.threshold: {threshold:g} is given, but {model.name} has no exit rule of its "
            f"own; write --exit RULE@{threshold:g}"
        )
    check_exit(spec.rule, threshold, RULES)
    return replace(spec, threshold=threshold)


def _full_depth(config: RunConfig, mode: Mode, model: LoadedModel) -> int:
    own = model.network.dims.max_loops
    if mode.kind == "dense" and own > 1:
        raise UsageError(
            f"mode '{mode}': {model.name} runs {own} loops; use static, lockstep or cdb"
        )
    asked = config.exit.max_loops or own
    if asked > own:
        raise UsageError(
            f"exit.max_loops: {asked} is above what {model.name} runs, {own}; lower it"
        )
    return asked


def _engine(
    config: RunConfig, mode: Mode, model: LoadedModel, max_loops: int, requests: int
) -> Engine:
    sizes = config.engine
    assert isinstance(sizes.coda_min_rows, int), "auto is refused by the configuration"
    settings = EngineConfig(
        mode=str(mode),
        # Places beyond the requests would only take memory.
        max_residents=min(sizes.max_residents, requests),
        width=sizes.width,
        kv_layout=_layout(config, model),
        kv_budget_bytes=config.kv.budget_bytes,
        max_loops=max_loops,
        prefill_tokens=sizes.prefill_tokens,
        coda_min_rows=sizes.coda_min_rows,
        min_free_residents=sizes.min_free_residents,
    )
    detokenize = None if model.tokenizer is None else model.decode
    return Engine(model.network, settings, detokenize=detokenize)


def _layout(config: RunConfig, model: LoadedModel) -> str:
    given = "layout" in config.kv.model_fields_set
    return config.kv.layout if given else parse_kv(model.card.kv)


def _requests(
    config: RunConfig,
    model: LoadedModel,
    policy: ExitPolicy,
    prompts: Sequence[Prompt],
    ending: Ending,
) -> list[Request]:
    chosen = config.sampling
    stop_ids, stop_strings = _stops(model, ending)
    return [
        Request(
            # The place is the name: it keys the request's random stream.
            id=str(index),
            prompt=prompt.ids if prompt.text is None else model.encode(prompt.text),
            max_new_tokens=prompt.max_new_tokens or ending.max_new_tokens,
            exit=policy,
            sampling=SamplingParams(chosen.temperature, chosen.top_k, chosen.top_p, chosen.seed),
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
    ids = set() if ending.ignore_eos else set(model.stop_ids)
    special: dict[str, int] = {}
    if ending.stop and model.tokenizer is not None:
        added = model.tokenizer.get_added_tokens_decoder()
        special = {token.content: i for i, token in added.items() if token.special}
    ids.update(special[text] for text in ending.stop if text in special)
    return frozenset(ids), tuple(text for text in ending.stop if text not in special)


def _submit(engine: Engine, request: Request, where: str) -> None:
    try:
        engine.submit(request)
    except UsageError as error:
        # A person knows the line or the flag, not the number that the engine saw.
        raise UsageError(str(error).replace(f"request {request.id!r}", where, 1)) from None

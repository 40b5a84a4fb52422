"""What a configuration means for one model: exit policy, full depth, KV layout, engine, stops.

Used alike by ``run`` and ``generate``, so that the same keys never mean two things.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import psutil
import torch

from cdbench.config import RunConfig
from cdbench.errors import UsageError
from cdbench.grammar import ExitSpec, Mode, check_exit, parse_exit, parse_kv
from cdbench.models.loading import LoadedModel
from cdbench.runtime.core import ExitPolicy, SamplingParams
from cdbench.runtime.engine import EngineConfig
from cdbench.runtime.exits import RULES
from cdbench.workloads.exit_trace import ExitTrace


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
        _check_derived(trace, min_loops if "min_loops" in given else None, "min_loops")
        _check_derived(trace, lag if "lag" in given else None, "lag")
        min_loops = min_loops if "min_loops" in given else trace.min_loops
        lag = lag if "lag" in given else trace.lag
    return ExitPolicy(spec.rule, threshold, min_loops, lag, spec.depth)


def _check_derived(trace: ExitTrace, asked: int | None, key: Literal["min_loops", "lag"]) -> None:
    """Raise UsageError where derived depths would be those of another floor or lag."""
    recorded = getattr(trace, key)
    if trace.derived_from is not None and asked not in (None, recorded):
        raise UsageError(
            f"exit.{key}: {asked} is given, but the depths of {trace.spec} follow from "
            f"{trace.file}, which has {recorded}; drop it"
        )


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


def sampling(config: RunConfig) -> SamplingParams:
    """How tokens are chosen, per request."""
    chosen = config.sampling
    return SamplingParams(chosen.temperature, chosen.top_k, chosen.top_p, chosen.seed)


def full_depth(config: RunConfig, model: LoadedModel) -> int:
    """R of this run; UsageError where more is asked for than the model runs."""
    own = model.network.dims.max_loops
    asked = config.exit.max_loops or own
    if asked > own:
        raise UsageError(
            f"exit.max_loops: {asked} is above what {model.name} runs, {own}; lower it"
        )
    return asked


def check_trace_depth(trace: ExitTrace, max_loops: int) -> None:
    """Raise UsageError where recorded depths do not belong to this full depth."""
    if trace.max_loops != max_loops:
        raise UsageError(
            f"trace {trace.file}: was recorded at {trace.max_loops} loops, this run has "
            f"{max_loops}; set --max-loops {trace.max_loops}"
        )


def kv_layout(config: RunConfig, model: LoadedModel) -> str:
    """The layout asked for, else the one on the model's card."""
    given = "layout" in config.kv.model_fields_set
    return config.kv.layout if given else parse_kv(model.card.kv)


def kv_budget_bytes(config: RunConfig, model: LoadedModel, engines: int = 1) -> int | None:
    """The KV budget of each of so many engines held at once; None without one."""
    if config.kv.budget_fraction is None:
        return config.kv.budget_bytes
    share = config.kv.budget_fraction / engines
    return max(1, int(share * free_bytes(model.network.device)))


def free_bytes(device: torch.device) -> int:
    """Memory of a device that nothing holds now, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def engine_config(
    config: RunConfig,
    mode: Mode,
    layout: str,
    max_loops: int | None,
    max_residents: int,
    kv_budget: int | None,
    cache_prefixes: bool = False,
) -> EngineConfig:
    """The sizes of an engine: the same for every mode of one run.

    ``cache_prefixes`` says whether prompt prefixes are reused where the configuration leaves it
    open.
    """
    sizes, reuse = config.engine, config.kv.prefix_cache
    # A dense model beside a looped one has no state to draw.
    own = mode.dense in (None, "unrolled")
    state_init = config.state_init if own else "zero"
    if reuse is None:
        reuse = cache_prefixes and state_init == "zero"
    assert isinstance(sizes.coda_min_rows, int), "auto is refused by the configuration"
    return EngineConfig(
        mode=str(mode),
        max_residents=max_residents,
        width=sizes.width,
        kv_layout=layout,
        kv_budget_bytes=kv_budget,
        kv_host_bytes=config.kv.host_bytes,
        prefix_cache=reuse,
        max_loops=max_loops,
        prefill_tokens=sizes.prefill_tokens,
        coda_min_rows=sizes.coda_min_rows,
        min_free_residents=sizes.min_free_residents,
        first_token=config.first_token,
        state_init=state_init,
    )


def stops(model: LoadedModel, texts: Sequence[str]) -> tuple[frozenset[int], tuple[str, ...]]:
    """Texts that stop, as ids and strings. A special token never shows in the text: it is an id."""
    special: dict[str, int] = {}
    if texts and model.tokenizer is not None:
        added = model.tokenizer.get_added_tokens_decoder()
        special = {token.content: i for i, token in added.items() if token.special}
    ids = frozenset(special[text] for text in texts if text in special)
    return ids, tuple(text for text in texts if text not in special)

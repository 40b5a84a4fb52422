"""What a configuration means for one model: exit policy, full depth, KV layout, engine, stops.

Used alike by ``run`` and ``generate``, so that the same keys never mean two things.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import psutil
import torch

from cdbench.config import RunConfig
from cdbench.errors import UsageError
from cdbench.grammar import LOOKAHEAD, ExitSpec, Mode, check_exit, parse_exit, parse_kv
from cdbench.models.loading import LoadedModel
from cdbench.predictor.gate_files import gate_for
from cdbench.runtime.core import ExitPolicy, SamplingParams
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.exits import RULES
from cdbench.workloads.trace_fit import check_kept
from cdbench.workloads.traced import ExitTrace


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
        given = {key: getattr(asked, key) for key in asked.model_fields_set}
        check_kept(trace, given)
        min_loops, lag = trace.min_loops, trace.lag
    if spec.rule == LOOKAHEAD:
        gate = gate_for(spec, model, full_depth(config, model), kv_layout(config, model))
        return ExitPolicy(gate.rule, gate.rule_threshold, min_loops, lag, lookahead=gate)
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


def kv_layout(config: RunConfig, model: LoadedModel) -> str:
    """The layout asked for, else the one on the model's card."""
    given = "layout" in config.kv.model_fields_set
    return config.kv.layout if given else parse_kv(model.card.kv)


def kv_budget_bytes(config: RunConfig, model: LoadedModel, engines: int = 1) -> int | None:
    """The KV budget of each of so many engines held at once; None without one.

    UsageError where the device has not that much memory left.
    """
    if config.kv.budget_fraction is not None:
        share = config.kv.budget_fraction / engines
        return max(1, int(share * free_bytes(model.network.device)))
    budget = config.kv.budget_bytes
    if budget is not None and budget * engines > (free := free_bytes(model.network.device)):
        raise UsageError(
            f"kv.budget_bytes: {budget:,} bytes for each of {engines} modes are more than the "
            f"{free:,} free on {model.network.device}; lower it, or use kv.budget_fraction"
        )
    return budget


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
        max_itl_s=sizes.max_itl_s,
        ride=sizes.ride,
        first_token=config.first_token,
        state_init=state_init,
        attention=sizes.attention,
        compile=sizes.compile,
        graphs=sizes.graphs,
    )


def stops(model: LoadedModel, texts: Sequence[str]) -> tuple[frozenset[int], tuple[str, ...]]:
    """Texts that stop, as ids and strings. A special token never shows in the text: it is an id."""
    special: dict[str, int] = {}
    if texts and model.tokenizer is not None:
        added = model.tokenizer.get_added_tokens_decoder()
        special = {token.content: i for i, token in added.items() if token.special}
    ids = frozenset(special[text] for text in texts if text in special)
    return ids, tuple(text for text in texts if text not in special)

"""What a batch leaves behind: its settings, its results, and what a reader must be told of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from cdbench.config import RunConfig
from cdbench.grammar import LOOKAHEAD, ExitSpec, Mode
from cdbench.models.base import dtype_name
from cdbench.models.loading import LoadedModel
from cdbench.runtime.core import ExitPolicy, RequestResult
from cdbench.runtime.engine import Engine
from cdbench.schema import GeneratedRequest
from cdbench.workloads.trace_fit import trace_notes
from cdbench.workloads.traced import ExitTrace


def settings(
    config: RunConfig, model: LoadedModel, engine: Engine, live: ExitPolicy
) -> dict[str, JsonValue]:
    """The settings as they were resolved. ``live`` is the rule that runs, R the full depth."""
    sizes, sampling = config.engine, config.sampling
    return {
        "mode": str(engine.mode),
        "exit": _exit_text(live),
        "min_loops": live.min_loops,
        "exit_lag": live.lag,
        "R": engine.max_loops,
        "kv": engine.config.kv_layout,
        "kv_budget_bytes": config.kv.budget_bytes,
        "dtype": dtype_name(model.network.dtype),
        "device": model.network.device.type,
        "width": sizes.width,
        "max_residents": sizes.max_residents,
        "coda_min_rows": sizes.coda_min_rows,
        "prefill_tokens": sizes.prefill_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "weights": config.weights,
        "layers": config.layers,
        "first_token": config.first_token,
        "state_init": config.state_init,
    }


def _exit_text(live: ExitPolicy) -> str:
    """The policy as ``--exit`` has it."""
    gate = live.lookahead
    if gate is not None:
        return str(ExitSpec(LOOKAHEAD, gate.threshold, predictor=gate.source))
    return str(ExitSpec(live.rule, live.threshold, live.depth))


def request(index: int, result: RequestResult) -> GeneratedRequest:
    """One result as the document has it."""
    return GeneratedRequest(
        index=index,
        prompt_tokens=result.prompt_tokens,
        tokens=result.tokens,
        depths=result.executed_depths,
        logprobs=result.logprobs,
        text=result.text,
        finish_reason=result.finish_reason.value,
        error=result.error,
    )


def marks(
    config: RunConfig,
    model: LoadedModel,
    mode: Mode,
    trace: ExitTrace | None,
    forced: Sequence[int],
) -> Iterator[str]:
    """What in the output is not the model's own doing."""
    if model.weight_seed is not None:
        yield f"random weights (seed {model.weight_seed}): the text means nothing"
    if model.layers is not None:
        yield f"layers {model.layers} in place of the model's own: for timing only"
    if config.state_init == "random":
        yield f"initial states are random (seed {config.sampling.seed})"
    if config.first_token == "select":
        yield "first tokens are read from the loop their rule selects; no loop is saved"
    if trace is not None:
        if trace.derived_from is not None and mode.adaptive:
            yield f"replayed: tokens are those recorded in {trace.file}, depths are {trace.origin}"
        else:
            what = "tokens and depths" if mode.adaptive else "tokens"
            yield f"replayed: {what} are those recorded in {trace.file}"
    elif forced:
        yield f"forced: the tokens of {len(forced)} of the requests were given"


def notes(
    config: RunConfig,
    model: LoadedModel,
    mode: Mode,
    trace: ExitTrace | None,
    policy: ExitPolicy,
) -> Iterator[str]:
    """What a person may not expect of these settings."""
    if not mode.adaptive:
        if config.exit.rule not in (None, "none"):
            yield f"mode {mode} runs every token at full depth; --exit has no effect in it"
    elif config.exit.rule is None and policy.rule == "none" and model.network.dims.max_loops > 1:
        yield (
            "no exit rule was given and the model's card names none: nothing exits early; "
            "choose one with --exit"
        )
    if trace is not None:
        yield from trace_notes(trace, model)

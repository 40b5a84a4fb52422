"""What a reader must know of a run before its numbers: how it differs from a plain one."""

from __future__ import annotations

from collections.abc import Iterator

from cdbench.bench.once import Once, model_key
from cdbench.config import RunConfig
from cdbench.grammar import parse_depths
from cdbench.models.loading import LoadedModel
from cdbench.runtime.core import ExitPolicy
from cdbench.workloads.exit_trace import ExitTrace
from cdbench.workloads.synthetic_depths import mark
from cdbench.workloads.trace_fit import trace_notes


def run_notes(
    config: RunConfig,
    model: LoadedModel,
    policy: ExitPolicy,
    trace: ExitTrace | None,
    once: Once,
) -> tuple[str, ...]:
    """What the configuration, the model and a trace have about them."""
    notes = []
    if config.exit.spec is None and policy.rule == "none":
        notes.append(f"no exit rule was given and {model.name} names none: nothing exits early")
    if config.sampling.temperature > 0 and (trace is None or "live" in config.work):
        chosen = config.sampling
        notes.append(
            f"sampled, not greedy: temperature {chosen.temperature:g}, top_k {chosen.top_k}, "
            f"top_p {chosen.top_p:g}, seed {chosen.seed}"
        )
    if model.layers is not None:
        notes.append(f"layers {model.layers} in place of the model's own: for timing only")
    if config.first_token == "select":
        notes.append("first tokens are read from the loop their rule selects; no loop is saved")
    if config.engine.ride:
        notes.append(
            "prompt chunks share core launches with decode rows; the stage curves tell their share"
        )
    if config.engine.max_itl_s is not None:
        notes.append(
            f"prompts give way where a gap between tokens would pass {config.engine.max_itl_s:g} s"
        )
    if config.engine.attention == "triton" and model.network.device.type == "cpu":
        notes.append("attention runs in Triton's interpreter: a test, whose times mean nothing")
    if config.engine.compile:
        notes.append("stages are compiled with torch.compile")
    if config.state_init == "random":
        notes.append(f"initial states are random (seed {config.sampling.seed})")
    if trace is not None:
        key = ("trace notes", trace.file, str(trace.spec), model_key(config))
        notes += once(key, lambda: list(trace_notes(trace, model)))
        if trace.derived_from is not None:
            notes.append(f"depths are {trace.origin}")
    depths = parse_depths(config.workload.depths)
    if depths.synthetic:
        notes.append(mark(depths, config.workload.seed))
    return tuple(notes)


def memory_notes(config: RunConfig, budget_bytes: int | None) -> Iterator[str]:
    """The KV budget, and which sizes do not count where the residents follow from it."""
    if budget_bytes is None:
        return
    yield f"KV budget of each mode: {budget_bytes:,} bytes"
    sizes = [key for key in ("max_residents", "width") if key in config.engine.model_fields_set]
    if config.equal == "memory" and sizes:
        names = " and ".join(f"engine.{key}" for key in sizes)
        yield f"equal: memory: the budget decides what timed modes hold, not {names}"

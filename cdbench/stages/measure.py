"""Stage curves by themselves: what ``cdbench stages`` does, and what a sweep over them repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdbench.bench.measurements import Progress
from cdbench.bench.once import WORK, Once, anew, work_key
from cdbench.bench.plan import Plan, make_plan
from cdbench.bench.workload import prepare
from cdbench.config import RunConfig
from cdbench.runtime.core import Request
from cdbench.schema.stages import StageCurves
from cdbench.stages.grid import checked_contexts, grid_contexts, later_contexts
from cdbench.stages.meter import StageMeter

DEFAULT_PASSES = 5


@dataclass(frozen=True)
class Asked:
    """What to measure: passes over the grid, and contexts (None: the workload's own)."""

    passes: int = DEFAULT_PASSES
    contexts: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Ground:
    """What curves are measured on: the requests whose texts are cut up, and the contexts.

    ``later`` are the contexts of the requests' later tokens; empty where contexts are asked for.
    """

    plan: Plan
    requests: Sequence[Request]
    contexts: tuple[int, ...]
    later: tuple[int, ...] = ()


def sound_ground(config: RunConfig, asked: Asked, once: Once = anew) -> Ground:
    """What the curves of a configuration are measured on, found sound before anything is timed.

    ``once`` may keep what is loaded for the next configuration to be checked. Raises UsageError.
    """
    timed = _timed_only(config)
    plan = make_plan(timed, once)
    work = once((WORK, work_key(timed)), lambda: prepare(plan))
    assert work is not None, "the plan has equal work"
    if asked.contexts is not None:
        return Ground(plan, work.requests, checked_contexts(plan, asked.contexts))
    # Outputs as long as they may become: no run has said how long they are.
    later = later_contexts((len(r.prompt), r.new_tokens) for r in work.requests)
    contexts = grid_contexts(later, plan.model.network.dims.max_positions)
    return Ground(plan, work.requests, checked_contexts(plan, contexts), later)


def measure_stages(config: RunConfig, asked: Asked, progress: Progress) -> StageCurves:
    """Load the model, make the passes, and answer with the document.

    Prompts are cut from the texts of the configuration's workload. At its own contexts the rows of
    a launch are ragged as its requests are; at contexts that are asked for, all rows are equal.
    Raises UsageError before anything is timed where something is wrong.
    """
    ground = sound_ground(config, asked)
    lengths = sorted(len(request.prompt) for request in ground.requests)
    meter = StageMeter(
        ground.plan,
        ground.contexts,
        [request.prompt for request in ground.requests],
        later_contexts=ground.later,
        prompt_tokens=lengths[len(lengths) // 2],
    )
    progress.phase("measuring stages", asked.passes)
    for _ in range(asked.passes):
        meter.one_pass()
        progress.advance(1)
    return meter.curves()


def _timed_only(config: RunConfig) -> RunConfig:
    """The configuration without what no launch depends on: nothing of it need be loaded."""
    return config.model_copy(update={"work": ("equal",), "modes": ("static", "cdb"), "dense": ()})

"""Stage curves by themselves: what ``cdbench stages`` does, and what a sweep over them repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cdbench.bench.plan import Plan, make_plan
from cdbench.bench.workload import prepare
from cdbench.config import RunConfig
from cdbench.runtime.core import Request
from cdbench.schema.stages import StageCurves
from cdbench.stages.grid import grid_contexts, later_contexts
from cdbench.stages.meter import StageMeter

DEFAULT_PASSES = 5


class Progress(Protocol):
    """Told what is going on; never inside a timed region."""

    def phase(self, name: str, units: int) -> None: ...

    def advance(self, units: int) -> None: ...


@dataclass(frozen=True)
class Asked:
    """What to measure: passes over the grid, and contexts (None: the workload's own)."""

    passes: int = DEFAULT_PASSES
    contexts: tuple[int, ...] | None = None


def measure_stages(config: RunConfig, asked: Asked, progress: Progress) -> StageCurves:
    """Load the model, make the passes, and answer with the document.

    Prompts are cut from the texts of the configuration's workload. At its own contexts the rows of
    a launch are ragged as its requests are; at contexts that are asked for, all rows are equal.
    Raises UsageError before anything is timed where something is wrong.
    """
    plan = make_plan(_timed_only(config))
    requests = _requests(plan)
    lengths = sorted(len(request.prompt) for request in requests)
    later: tuple[int, ...] = ()
    contexts = asked.contexts
    if contexts is None:
        # Outputs as long as they may become: no run has said how long they are.
        later = later_contexts((len(r.prompt), r.new_tokens) for r in requests)
        contexts = grid_contexts(later, plan.model.network.dims.max_positions)
    meter = StageMeter(
        plan,
        contexts,
        [request.prompt for request in requests],
        later_contexts=later,
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


def _requests(plan: Plan) -> Sequence[Request]:
    work = prepare(plan)
    assert work is not None, "the plan has equal work"
    return work.requests

"""What the raw records keep of a mode, so that bounds and waterfall can be made without its model.

The one place where live models and rules are turned into such facts.
"""

from __future__ import annotations

from dataclasses import asdict

from cdbench.bench.plan import Subject
from cdbench.metrics.work import ModelWork
from cdbench.models.base import StageCost, StagedModel
from cdbench.runtime.exit_rule import Needs
from cdbench.runtime.exits import RULES
from cdbench.runtime.lookahead import FIRST_CALLED
from cdbench.schema.repeats import ModeFacts


def facts_of(subject: Subject) -> ModeFacts:
    """The facts of one row."""
    needs = RULES[subject.policy.rule].needs if subject.adaptive else Needs.NOTHING
    network = subject.model.network
    return ModeFacts(
        adaptive=subject.adaptive,
        dense=subject.mode.dense is not None,
        rule_computes=needs is not Needs.NOTHING,
        readout_every_loop=needs is Needs.LOGITS,
        work=asdict(model_work(network, subject.max_loops, stage_costs(subject))),
    )


def stage_costs(subject: Subject) -> StageCost:
    """F_p, F_c and F_k of a row; a gate that looks ahead is part of every loop.

    A pre-loop gate is part of the prelude.
    """
    costs, gate = subject.model.network.flops_per_token(), subject.policy.lookahead
    if gate is None or not subject.adaptive:
        return costs
    before = 0.0 if gate.pre_loop is None else gate.pre_loop.gate.flops_per_row
    return costs._replace(prelude=costs.prelude + before, core=costs.core + gate.gate.flops_per_row)


def earliest_call(subject: Subject) -> int:
    """The earliest depth that a row's gate could call: 2 where it has no pre-loop gate, or none."""
    gate = subject.policy.lookahead
    return FIRST_CALLED if gate is None else gate.earliest


def model_work(model: StagedModel, max_loops: int, costs: StageCost | None = None) -> ModelWork:
    """A model's costs as plain numbers, at ``max_loops`` loops; ``costs`` default to its own."""
    dims, costs = model.dims, costs or model.flops_per_token()
    # Without layers the coda runs for the last positions of prompts alone, as the head does.
    head = 2.0 * dims.hidden_size * dims.vocab_size if dims.coda_layers else costs.coda
    return ModelWork(
        prelude=costs.prelude,
        core=costs.core,
        coda_body=costs.coda - head,
        head=head,
        prelude_layers=dims.prelude_layers,
        core_layers=dims.core_layers,
        coda_layers=dims.coda_layers,
        attention=model.attention_flops(1),
        max_loops=max_loops,
    )

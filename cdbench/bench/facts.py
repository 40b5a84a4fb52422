"""What the raw records keep of a mode, so that bounds and waterfall can be made without its model.

The one place where live models and rules are turned into such facts.
"""

from __future__ import annotations

from dataclasses import asdict

from cdbench.bench.bounds import model_work
from cdbench.bench.plan import Subject
from cdbench.runtime.exits import RULES, Needs
from cdbench.schema.repeats import ModeFacts


def facts_of(subject: Subject) -> ModeFacts:
    """The facts of one row."""
    needs = RULES[subject.policy.rule].needs if subject.adaptive else Needs.NOTHING
    return ModeFacts(
        adaptive=subject.adaptive,
        dense=subject.mode.dense is not None,
        rule_computes=needs is not Needs.NOTHING,
        readout_every_loop=needs is Needs.LOGITS,
        work=asdict(model_work(subject.model.network, subject.max_loops)),
    )

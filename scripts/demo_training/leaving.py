"""Who leaves when, in a training batch: rows that are right already, or a real exit rule."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cdbench.models.base import StagedModel
from cdbench.models.layers import at_least_float32
from cdbench.runtime.exit_rule import Evidence, Needs
from cdbench.runtime.exits import RULES


@dataclass(frozen=True)
class Seen:
    """The completion rows after a loop, nothing of it with a gradient."""

    before_ND: Tensor
    state_ND: Tensor
    logits_NV: Tensor
    losses_N: Tensor
    mass_N: Tensor | None


Leaving = Callable[[Seen], Tensor]
"""Called after every loop, in order: which rows ``[N]`` would leave now."""


def once_confident(rng: random.Random) -> Leaving:
    """Leave once the target's probability passes a level between 0.5 and 1 drawn for each row."""
    draw = torch.Generator().manual_seed(rng.randrange(2**31))
    nats: list[Tensor] = []

    def leaving(seen: Seen) -> Tensor:
        if not nats:
            level = torch.rand(len(seen.losses_N), generator=draw) * 0.5 + 0.5
            nats.append(-level.log().to(seen.losses_N.device))
        return seen.losses_N < nats[0]

    return leaving


def by_rule(model: StagedModel, name: str, threshold: float) -> Leaving:
    """Leave when the runtime's own rule says so."""
    rule = RULES[name]
    memory: list[Tensor] = []

    def leaving(seen: Seen) -> Tensor:
        rows, device = len(seen.losses_N), seen.losses_N.device
        if not memory:
            start = rule.memory_start(model.dims).float().to(device)
            memory.append(start.expand(rows, -1).clone())
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            signal = rule.signal(_evidence(model, rule.needs, seen), memory[0])
            return rule.met(signal.double(), torch.full_like(signal, threshold).double())

    return leaving


def _evidence(model: StagedModel, needs: Needs, seen: Seen) -> Evidence:
    if needs is Needs.GATE:
        return (model.exit_logit(at_least_float32(seen.state_ND)),)
    if needs is Needs.STATES:
        return (seen.state_ND, seen.before_ND)
    if needs is Needs.HALTING:
        assert seen.mass_N is not None
        return (seen.mass_N,)
    return (seen.logits_NV,)


def log_uniform(rng: random.Random, low: float, high: float) -> float:
    """A number drawn evenly in its logarithm."""
    return low * (high / low) ** rng.random()

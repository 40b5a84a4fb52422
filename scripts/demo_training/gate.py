"""The exit gate of ``demo-ouro``: trained alone, on when another loop is needless."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cdbench.models.base import StagedModel
from scripts.demo_training.batches import Batch, BatchStream
from scripts.demo_training.leaving import Seen, by_rule
from scripts.demo_training.loops import (
    attention_kernel,
    logits_of,
    loops_with_exits,
    mixed_precision,
)
from scripts.demo_training.losses import SETTLED_NATS, exit_unit_loss, gain_of_looping
from scripts.demo_training.trunk import log


@dataclass(frozen=True)
class GateStage:
    """The batches and the rate of the gate's training; the rate falls linearly to zero."""

    batches: int
    lr: float
    log_every: int


def train_gate(model: StagedModel, stage: GateStage, stream: BatchStream) -> None:
    """Train the gate anew, on rows that its own exits let reach each loop."""
    gate = {n: p for n, p in model.named_parameters() if n.startswith("gate")}
    optimiser = torch.optim.Adam(gate.values(), lr=stage.lr)
    with torch.no_grad():
        gate["gate.weight"].zero_()
        gate["gate.bias"].fill_(-3.0)
    # Batches of another seed: the trunk has learnt its own.
    for step, batch in enumerate(stream.batches(0, stage.batches, seed=stream.seed + 1)):
        rng = random.Random(step)
        states, losses, running = _gate_rows(model, batch, 0.5 + 0.49 * rng.random())
        logits = torch.stack([model.exit_logit(state) for state in states[:-1]])
        loss = exit_unit_loss(logits, losses, running)
        loss.backward()
        for group in optimiser.param_groups:
            group["lr"] = stage.lr * (1 - step / stage.batches)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if (step + 1) % stage.log_every == 0:
            told = ((logits > 0) == (gain_of_looping(losses) <= SETTLED_NATS)).float()
            share = (told * running).sum(1) / running.sum(1).clamp(min=1)
            log(f"gate {step + 1} loss {loss.item():.4f} right by loop {share.tolist()}")


@torch.no_grad()
def _gate_rows(
    model: StagedModel, batch: Batch, threshold: float
) -> tuple[list[Tensor], Tensor, Tensor]:
    """States and losses of the later rows per loop, and which still run at loops 1 … R−1."""
    rows, targets = batch.rows_N[batch.later_N], batch.targets_N[batch.later_N]
    leave = by_rule(model, "cdf", threshold)
    gone = torch.zeros_like(targets, dtype=torch.bool)
    states: list[Tensor] = []
    losses: list[Tensor] = []
    running: list[Tensor] = []
    with mixed_precision(rows.device), attention_kernel(rows.device):
        for loop in loops_with_exits(model, batch.ids_BT):
            logits = logits_of(model, loop.onward, loop, rows)
            hidden = loop.onward.index_select(0, rows).float()
            states.append(hidden)
            losses.append(F.cross_entropy(logits, targets, reduction="none"))
            running.append((~gone).float())
            gone = gone | leave(Seen(hidden, hidden, logits, losses[-1], None))
            loop.leave(rows, gone)
    return states, torch.stack(losses), torch.stack(running[:-1])

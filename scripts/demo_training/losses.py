"""What a training batch is asked for.

Every model: cross-entropy of the completion's words after the last loop, at what each row has left
with, weight 1; and, for the rows still running, of its state after every loop before, at a smaller
weight. Two families are asked for more:

- *Huginn* (``settle``). So that the change of the state says whether a token is done, a row whose
  loss no later loop lowers any more is held still, and one that is not done is kept moving.
- *Universal Transformer* (``halting``, ``guide``, ``ponder``). Left to itself from the start, its
  halting unit ends everything after the first loop, before there is anything to loop for. So the
  states are read out plainly at first, while the unit learns, without a say, which states are
  settled. Then its mean is the output, and the ponder cost of adaptive computation time counts:
  loops plus remainder, whose only gradient is that of the halting mass before the last loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cdbench.models.base import StagedModel
from cdbench.runtime.request_lines import FULL_MASS
from scripts.demo_training.batches import Batch
from scripts.demo_training.leaving import Leaving, Seen
from scripts.demo_training.loops import (
    Loop,
    attention_kernel,
    logits_of,
    loops_with_exits,
    mixed_precision,
)

#: A token is settled when no later loop lowers its loss by more than this (nats).
SETTLED_NATS = 0.05
#: How much worse than a needless loop it is to leave with a loss that later loops lower by one nat.
EARLY_EXIT_COST = 4.0
#: A row that is not settled is pushed to change by this share of its state in a loop.
MOVING = 0.4


@dataclass(frozen=True)
class Asked:
    """The weights of a model's loss."""

    loop: float = 0.3
    exit: float = 1.0
    """Of the loss of a row that has left, at the state it left with."""
    settle: float = 0.0
    halting: bool = False
    """The output is the halting mean, not the last state."""
    guide: float = 0.0
    ponder: float = 0.0
    halt_at: float = FULL_MASS
    """The halting mass at which a later token's output is complete, while exits are in force."""


@dataclass(frozen=True)
class Told:
    """A batch's loss and what to print of it; tensors, so that a device need not be waited for."""

    loss: Tensor
    right_R: Tensor
    """The share of completion words right after each loop; at the last, of the output."""
    losses_N: Tensor
    """Of what each completion row has left with."""
    depths_N: Tensor
    """The loop that each of them has left after."""
    later_N: Tensor

    def depth_shares(self) -> list[float]:
        """The share of later tokens that left after each loop."""
        depths = self.depths_N[self.later_N].tolist()
        return [depths.count(d + 1) / len(depths) for d in range(len(self.right_R))]


@dataclass(frozen=True)
class Rows:
    """The completion rows after one loop: ``[N]`` each."""

    losses: Tensor
    """Without a gradient."""
    move: Tensor | None = None
    """‖s_k − s_{k−1}‖² / ‖s_k‖²."""
    halting_logit: Tensor | None = None


def batch_loss(model: StagedModel, batch: Batch, asked: Asked, leave: Leaving | None) -> Told:
    """The loss of one batch. With ``leave``, later rows exit and their keys freeze."""
    loops = model.dims.max_loops
    device = batch.ids_BT.device
    rows, targets, later = batch.rows_N, batch.targets_N, batch.later_N
    gone = torch.zeros_like(later)
    total = torch.zeros((), device=device)
    right: list[Tensor] = []
    depths = torch.full_like(rows, loops)
    seen: list[Rows] = []
    pondering = Pondering()
    halt_at = _halt_at(model, batch, asked.halt_at if leave is not None else FULL_MASS)
    with mixed_precision(device), attention_kernel(device):
        for loop in loops_with_exits(model, batch.ids_BT, halt_at):
            last = loop.number == loops
            logits = logits_of(model, loop.state, loop, rows)
            losses = F.cross_entropy(logits, targets, reduction="none")
            seen.append(_rows(model, loop, rows, losses, asked))
            if asked.halting and halt_at is not None:
                pondering.add(loop, rows, halt_at)
                if last:
                    logits = logits_of(model, loop.output, loop, rows)
                    losses = F.cross_entropy(logits, targets, reduction="none")
            right.append((logits.detach().argmax(-1) == targets).float().mean())
            if last:
                total = total + (losses * torch.where(gone, asked.exit, 1.0)).mean()
                continue
            if leave is not None:
                leaving = later & ~gone & leave(_seen(loop, rows, logits, losses))
                depths = torch.where(leaving, loop.number, depths)
                gone = gone | leaving
                loop.leave(rows, gone)
            total = total + asked.loop * (losses * ~gone).mean()
    # Where rows leave, what a later loop would have done for them is not known.
    if asked.settle and leave is None:
        total = total + asked.settle * settling_loss(seen)
    if asked.guide and leave is None:
        total = total + asked.guide * guiding_loss(seen)
    if asked.ponder:
        total = total + asked.ponder * pondering.loss()
    return Told(total, torch.stack(right), losses.detach(), depths, later)


def _halt_at(model: StagedModel, batch: Batch, later_mass: float) -> Tensor | None:
    """The halting mass that completes each of the ``[B·T]`` rows' outputs."""
    if not model.dims.has_halting:
        return None
    full = torch.full((batch.ids_BT.numel(),), FULL_MASS, device=batch.ids_BT.device)
    mass = torch.where(batch.later_N, later_mass, FULL_MASS)
    return full.index_copy(0, batch.rows_N, mass)


@torch.no_grad()
def _seen(loop: Loop, rows: Tensor, logits: Tensor, losses: Tensor) -> Seen:
    return Seen(
        loop.before.index_select(0, rows),
        loop.state.index_select(0, rows),
        logits,
        losses,
        None if loop.mass is None else loop.mass.index_select(0, rows),
    )


def _rows(model: StagedModel, loop: Loop, rows: Tensor, losses: Tensor, asked: Asked) -> Rows:
    move = logit = None
    state = loop.state.index_select(0, rows).float()
    if asked.settle:
        before = loop.before.index_select(0, rows).float()
        move = (state - before).square().sum(-1) / state.square().sum(-1)
    if asked.guide:
        with torch.autocast(state.device.type, enabled=False):
            logit = model.exit_logit(state.detach())
    return Rows(losses.detach(), move, logit)


def gain_of_looping(losses_KN: Tensor) -> Tensor:
    """``[K−1, N]``: by how many nats the best later loop lowers the loss of row n after loop k."""
    best_later = losses_KN.flip(0).cummin(0).values.flip(0)[1:]
    return (losses_KN[:-1] - best_later).clamp(min=0)


def settling_loss(seen: list[Rows]) -> Tensor:
    """Settled rows still, the others moving: the mean over loops 2 … R."""
    settled = gain_of_looping(torch.stack([x.losses for x in seen])) <= SETTLED_NATS
    move = torch.stack([x.move for x in seen[1:] if x.move is not None])
    # Settled one loop before: another loop should find nothing to change.
    still = settled.float() * move
    # Not settled even after this loop: it must not look as if it were.
    unsettled = torch.cat([~settled[1:], torch.zeros_like(settled[:1])]).float()
    moving = unsettled * (MOVING - (move + 1e-6).sqrt()).clamp(min=0).square()
    return (still + moving).mean()


def exit_unit_loss(
    logits_KN: Tensor, losses_RN: Tensor, running_KN: Tensor | None = None
) -> Tensor:
    """Teaches a gate or halting unit, at loops 1 … R−1, to tell whether a row is settled."""
    gain = gain_of_looping(losses_RN)
    # One wrong word spoils an answer, one needless loop costs a loop: weigh by what is lost.
    running = torch.ones_like(logits_KN) if running_KN is None else running_KN
    weight = running * (1 + EARLY_EXIT_COST * gain)
    labels = (gain <= SETTLED_NATS).float()
    loss = F.binary_cross_entropy_with_logits(logits_KN, labels, weight, reduction="sum")
    return loss / running.sum()


def guiding_loss(seen: list[Rows]) -> Tensor:
    """``exit_unit_loss`` of a halting unit, on states that it does not change."""
    logits = torch.stack([x.halting_logit for x in seen[:-1] if x.halting_logit is not None])
    return exit_unit_loss(logits, torch.stack([x.losses for x in seen]))


class Pondering:
    """The halting mass before the loop at which each row's output is complete."""

    def __init__(self) -> None:
        self._before: Tensor | None = None

    def add(self, loop: Loop, rows: Tensor, halt_at: Tensor) -> None:
        assert loop.mass_before is not None
        before = loop.mass_before.index_select(0, rows)
        if self._before is not None:
            complete = before >= halt_at.index_select(0, rows)
            before = torch.where(complete, self._before, before)
        self._before = before

    def loss(self) -> Tensor:
        """Loops + remainder but for a constant: the count of loops has no gradient."""
        assert self._before is not None, "the output is not the halting mean"
        return -self._before.mean()

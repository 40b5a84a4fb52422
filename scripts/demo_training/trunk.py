"""Training everything but an exit gate, in one stage or several, each resumable.

A stage is as long as it has batches, or as long as it has time: with a limit in seconds, the
learning rate and the phases follow the larger of the two shares that are spent, so that a run that
is cut short by its limit ends annealed all the same. Such a run depends on the machine's speed; how
many batches it came to is part of its result.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from cdbench.models.base import StagedModel
from scripts.demo_training.batches import BatchStream
from scripts.demo_training.leaving import Leaving
from scripts.demo_training.losses import Asked, Told, batch_loss

WARM_UP = 50


@dataclass(frozen=True)
class Plan:
    """What one step of a stage does: its weights, and who leaves (None: nobody)."""

    asked: Asked
    leave: Leaving | None = None


#: The share of the stage that is spent, and a generator of its own for this step → what to do.
Planner = Callable[[int, float, random.Random], Plan]


@dataclass(frozen=True)
class Stage:
    """``batches`` batches from number ``first`` on, at a rate that falls to zero at the end."""

    name: str
    batches: int
    plan: Planner
    lr: float
    first: int = 0
    decay_share: float = 0.35
    """The share of the stage over which the rate falls to zero; it is constant before."""
    warm_up: int = WARM_UP
    weight_decay: float = 0.05
    max_seconds: float | None = None

    def rate(self, step: int, share: float) -> float:
        warm = (step + 1) / self.warm_up if self.warm_up else 1.0
        return self.lr * max(0.0, min(1.0, warm, (1 - share) / self.decay_share))


@dataclass(frozen=True)
class Keeping:
    """Where checkpoints go, how often, and how often a line is printed."""

    directory: Path
    name: str
    save_every: int
    log_every: int
    fresh: bool

    def path(self, stage: str) -> Path:
        return self.directory / f"{self.name}-{stage}.pt"


def trunk_of(model: StagedModel) -> list[torch.nn.Parameter]:
    """Every parameter that is trained, but an exit gate's."""
    named = model.named_parameters()
    return [p for n, p in named if p.requires_grad and not n.startswith("gate")]


def train_trunk(model: StagedModel, stage: Stage, stream: BatchStream, keeping: Keeping) -> int:
    """Run one stage, resuming from its last checkpoint; the batches it came to."""
    trunk = trunk_of(model)
    optimiser = torch.optim.AdamW(
        trunk, lr=stage.lr, betas=(0.9, 0.98), weight_decay=stage.weight_decay, fused=True
    )
    store = keeping.path(stage.name)
    step, before_s = (0, 0.0) if keeping.fresh else _resume(store, model, optimiser, stage)
    started, first = time.monotonic() - before_s, step
    lines = StageLog(stage.name, keeping.log_every)
    for batch in stream.batches(stage.first + step, stage.batches - step):
        elapsed = time.monotonic() - started
        share = step / stage.batches
        if stage.max_seconds is not None:
            share = max(share, elapsed / stage.max_seconds)
        if share >= 1:
            break
        plan = stage.plan(step, share, random.Random(f"{stage.name}/{step}"))
        told = batch_loss(model, batch, plan.asked, plan.leave)
        told.loss.backward()
        torch.nn.utils.clip_grad_norm_(trunk, 1.0)
        for group in optimiser.param_groups:
            group["lr"] = stage.rate(step, share)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        step += 1
        seconds = (elapsed - before_s) / max(1, step - first)
        lines.add(step, share, told, plan.leave is not None, seconds)
        if step % keeping.save_every == 0:
            _save(store, model, optimiser, step, stage, elapsed)
    _save(store, model, optimiser, step, stage, time.monotonic() - started)
    return step


def _save(
    store: Path,
    model: StagedModel,
    optimiser: torch.optim.Optimizer,
    step: int,
    stage: Stage,
    elapsed_s: float,
) -> None:
    store.parent.mkdir(parents=True, exist_ok=True)
    partial = store.with_suffix(".tmp")
    saved = {
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "batch": step,
        "batches": stage.batches,
        "elapsed_s": elapsed_s,
    }
    torch.save(saved, partial)
    partial.replace(store)


def _resume(
    store: Path, model: StagedModel, optimiser: torch.optim.Optimizer, stage: Stage
) -> tuple[int, float]:
    """Load the stage's last checkpoint; the batches and seconds it had behind it (0 where none)."""
    if not store.exists():
        return 0, 0.0
    saved = torch.load(store, weights_only=True, map_location=model.device)
    if saved["batches"] != stage.batches:
        length = saved["batches"]
        raise SystemExit(f"{store}: of {length} batches; use --fresh or --batches {length}")
    model.load_state_dict(saved["model"])
    optimiser.load_state_dict(saved["optimiser"])
    log(f"resumed {store.name} at batch {saved['batch']}")
    return int(saved["batch"]), float(saved["elapsed_s"])


class StageLog:
    """A line every so many batches; the device is waited for only then."""

    def __init__(self, name: str, every: int) -> None:
        self.name, self.every = name, every
        self._losses: list[torch.Tensor] = []
        self._full: Told | None = None
        self._exits: Told | None = None

    def add(self, step: int, share: float, told: Told, exits: bool, seconds: float) -> None:
        self._losses.append(told.loss.detach())
        if exits:
            self._exits = told
        else:
            self._full = told
        if step % self.every == 0:
            log(self._line(step, share, seconds))
            self._losses = []

    def _line(self, step: int, share: float, seconds: float) -> str:
        loss = torch.stack(self._losses).mean().item()
        line = f"{self.name} {step} ({share:.0%}) loss {loss:.4f}"
        if self._full is not None:
            line += " right " + " ".join(f"{x:.3f}" for x in self._full.right_R.tolist())
        if self._exits is not None:
            line += f", with exits {self._exits.right_R[-1].item():.3f} at"
            line += "".join(f" {100 * x:.0f}" for x in self._exits.depth_shares()) + " %"
        return f"{line}, {seconds:.3f} s/batch"


def log(line: str) -> None:
    """One progress line on stderr, with the time of day."""
    print(time.strftime("%H:%M:%S"), line, file=sys.stderr, flush=True)

"""Looking one loop ahead: a small gate whose late decisions are on time.

With exit lag 1 a plain rule ends every token one loop late. A gate that has seen the state after
loop k *calls* an exit where it expects the rule to be met at loop k + 1, so that the late decision
ends the token after that very loop; the earliest exit is depth 2. A gate may have a second one
beside it, a *pre-loop gate* on what the prelude gave, whose call ends the token after loop 1. The
rule's own signal is computed all the same and known one loop later: it ends, still one loop late,
what the gate has missed, and says which calls were right. ``foresight.py`` keeps account of that.

Letters: T rows of a launch, D hidden size, K loops at which a gate may call, F = D + 1 inputs, H
hidden units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cdbench.models.layers import at_least_float32
from cdbench.runtime.core import IntArray
from cdbench.runtime.readback import to_device

GateKind = Literal["linear", "mlp"]

FIRST_CALLED = 2
"""The earliest depth that a gate on the state after a loop can call."""
FIRST_LOOP = 1
"""The depth that a pre-loop gate can call."""
LEAST_LOOPS = 3
"""R below which no exit can be called: the last loop ends every token by itself."""
MOST_CLOSENESS = 1e6
"""Signals are held to at least its inverse, and at most itself, before their logarithm is taken."""

WINDOW_CALLS = 32
LEAST_CALLS = 8
PRECISION_FLOOR = 0.6
"""Defaults of ``Watch``. Were calls independent, a gate that is right in nine of ten would be given
up in 1 % of requests of 60 calls; one that is right in half of them in nearly all, most of them
after their first 8."""


@dataclass(frozen=True)
class Watch:
    """When a request stops trusting its gate.

    After each call whose outcome is known: at least ``least_calls`` of its last ``window`` calls
    must be known, and the share that was right below ``floor``.
    """

    window: int = WINDOW_CALLS
    floor: float = PRECISION_FLOOR
    least_calls: int = LEAST_CALLS


def closeness(signal_T: Tensor, falls: bool) -> Tensor:
    """How near a rule's signal is to asking for an exit, on a log scale; larger is nearer.

    −log of the signal where it falls to its threshold, −log(1 − signal) where it rises to it: the
    signals of rules that a gate looks ahead for lie in 0 to 1, or at 0 and above.
    """
    left = signal_T if falls else 1 - signal_T
    return -left.clamp(1 / MOST_CLOSENESS, MOST_CLOSENESS).log()


@dataclass(frozen=True, eq=False)
class Gate:
    """The weights of a gate, and its score.

    ``linear``: ``weight`` ``[K, F]`` and ``bias`` ``[K]``, a line for each loop. ``mlp``:
    ``hidden`` ``[H, F]`` shared by the loops, ``hidden_bias`` ``[K, H]``, ``out`` ``[H]``, ``bias``
    ``[K]``. Inputs are the state after the loop and the closeness of the rule's signal.
    """

    kind: GateKind
    weights: dict[str, Tensor]
    falls: bool

    @property
    def inputs(self) -> int:
        """F: the state's size and one, or that alone in a pre-loop gate."""
        return int(self.weights["weight" if self.kind == "linear" else "hidden"].shape[1])

    @property
    def loops(self) -> int:
        """K: it may call at loops 1 to K."""
        return int(self.weights["bias"].shape[0])

    @property
    def flops_per_row(self) -> float:
        """Two FLOPs per weight that a row is multiplied by."""
        if self.kind == "linear":
            return 2.0 * self.inputs
        hidden = int(self.weights["hidden"].shape[0])
        return 2.0 * hidden * (self.inputs + 1)

    def score(self, state_TD: Tensor, signal_T: Tensor, loops: IntArray) -> Tensor:
        """The calibrated logit per row ``[T]`` after ``loops``, in the precision of the signal.

        A row's score depends on that row alone. NaN among the inputs makes NaN.
        """
        near_T1 = closeness(signal_T, self.falls)[:, None]
        x_TF = torch.cat([state_TD.to(signal_T.dtype), near_T1], dim=-1)
        at = np.minimum(loops, self.loops) - 1
        return self.logit(x_TF, to_device(at, x_TF.device))

    def logit(self, x_TF: Tensor, at_T: Tensor) -> Tensor:
        """The same from all inputs, by the lines ``at_T`` of weights."""
        weights = {name: w.to(x_TF) for name, w in self.weights.items()}
        bias_T = weights["bias"].index_select(0, at_T)
        if self.kind == "linear":
            return (x_TF * weights["weight"].index_select(0, at_T)).sum(-1) + bias_T
        own_TH = weights["hidden_bias"].index_select(0, at_T)
        hidden_TH = F.silu(x_TF @ weights["hidden"].T + own_TH)
        return (hidden_TH * weights["out"]).sum(-1) + bias_T


@dataclass(frozen=True, eq=False)
class PreLoopGate:
    """A gate of one loop on what the prelude gave: the injection, or the state where it has none.

    It calls an exit after loop 1 where its probability is at least ``threshold``.
    """

    gate: Gate
    threshold: float

    def probability(self, prelude_TD: Tensor) -> Tensor:
        """``[T]``, in float32 or better; a row's depends on that row alone."""
        x_TD = at_least_float32(prelude_TD)
        at_T = torch.zeros(len(x_TD), dtype=torch.int64, device=x_TD.device)
        return torch.sigmoid(self.gate.logit(x_TD, at_T))

    def calls(self, prelude_TD: Tensor) -> Tensor:
        """Whether an exit after loop 1 is called, ``[T]`` bool; a NaN calls nothing."""
        return self.probability(prelude_TD).double() >= self.threshold


@dataclass(frozen=True, eq=False)
class Lookahead:
    """A gate with what it was trained for: part of a request's ``ExitPolicy``.

    It calls where its probability is at least ``threshold``. ``rule`` at ``rule_threshold`` is what
    it looks ahead for, over ``max_loops`` loops; ``source`` says where it came from,
    ``sha256`` is of its weights' file.
    """

    gate: Gate
    threshold: float
    rule: str
    rule_threshold: float
    max_loops: int
    source: str = "memory"
    sha256: str | None = None
    watch: Watch = Watch()
    pre_loop: PreLoopGate | None = None

    def __str__(self) -> str:
        text = f"lookahead:{self.source}@{self.threshold:g}"
        if self.pre_loop is None:
            return text
        return f"{text} (before loop 1 @{self.pre_loop.threshold:g})"

    @property
    def earliest(self) -> int:
        """The earliest depth that it can call."""
        return FIRST_CALLED if self.pre_loop is None else FIRST_LOOP

    def calls(self, state_TD: Tensor, signal_T: Tensor, loops: IntArray) -> Tensor:
        """Whether an exit after the next loop is called, ``[T]`` bool; a NaN calls nothing."""
        score_T = self.gate.score(state_TD, signal_T, loops)
        return torch.sigmoid(score_T).double() >= self.threshold

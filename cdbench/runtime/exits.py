"""Exit rules: a signal per row and loop, and the test that ends a token's looping.

A rule is one class. It says what it needs (the exit gate, the states, the halting mass, or logits
read out through the coda at every loop), keeps whatever it must remember between loops in a tensor
with one line per resident, and computes its signal in float32 or better, whatever the model's
dtype: a bfloat16 sum of exit probabilities rounds to 1 too early. A NaN signal never satisfies a
test, so it never exits.

Formulas: ``cdf`` from Ouro (arXiv 2510.25741); ``latent-diff``, ``cosine``, ``entropy-diff``,
``kl``, ``minp-kl`` and ``argmax-stability`` as Huginn's code defines them (arXiv 2502.05171);
``act`` from the Universal Transformer (arXiv 1807.03819); ``confidence`` and ``margin`` from CALM
(arXiv 2207.07061). k counts loops from 1, s_k is the core's output, p_k the softmax of its readout.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cdbench.models.base import ModelDims
from cdbench.models.layers import at_least_float32
from cdbench.runtime.exit_rule import PROBABILITY, Evidence, ExitRule, Falling, Needs
from cdbench.runtime.readout_rules import (
    ArgmaxStability,
    Confidence,
    EntropyDifference,
    KLDivergence,
    Margin,
    MinPKLDivergence,
)


class ScriptedRule(ExitRule):
    """A rule whose depths are known beforehand, so that it computes nothing."""

    needs = Needs.NOTHING

    def signal(self, evidence: Evidence, memory_TM: Tensor) -> Tensor:
        raise AssertionError(f"rule {self.name} has no signal")


class NoExit(ScriptedRule):
    name = "none"
    summary = "every token runs all loops"


class FixedDepth(ScriptedRule):
    name = "fixed"
    summary = "later tokens run exactly D loops (fixed:D)"


class TraceDepth(ScriptedRule):
    name = "trace"
    summary = "recorded tokens at their recorded depths (trace:FILE)"


class LookaheadCalls(ScriptedRule):
    """A name alone: what runs is the rule that a gate looks ahead for (``lookahead.py``)."""

    name = "lookahead"
    summary = "a gate says one loop ahead that its rule will be met (lookahead:PATH), at lag 1"


class CumulativeExit(ExitRule):
    """Ouro's rule: leave once the exit probabilities so far add up to the threshold.

    p_k = λ_k·Π_{j<k}(1 − λ_j) with λ = σ(gate logit).
    """

    name = "cdf"
    summary = "sum of the gate's exit probabilities reaches the threshold"
    needs = Needs.GATE
    default_threshold = 0.5
    threshold_range = PROBABILITY

    def memory_start(self, dims: ModelDims) -> Tensor:
        return torch.tensor([1.0, 0.0])

    def signal(self, evidence: Evidence, memory_TM: Tensor) -> Tensor:
        survival, total = memory_TM.unbind(-1)
        exit_now = torch.sigmoid(evidence[0])
        total += exit_now * survival
        survival *= 1 - exit_now
        return total


class HaltingMass(ExitRule):
    """Adaptive computation time: leave once the halting probabilities add up to 1 − ε."""

    name = "act"
    summary = "sum of the halting probabilities reaches the threshold 1 - epsilon"
    needs = Needs.HALTING
    default_threshold = 0.99
    threshold_range = PROBABILITY

    def signal(self, evidence: Evidence, memory_TM: Tensor) -> Tensor:
        return evidence[0]


class LatentDifference(Falling):
    """‖s_k − s_{k−1}‖ / ‖s_k‖; s_0 is the initial state."""

    name = "latent-diff"
    summary = "relative change of the state falls below the threshold"
    needs = Needs.STATES
    default_threshold = 0.03

    def signal(self, evidence: Evidence, memory_TM: Tensor) -> Tensor:
        state, before = (at_least_float32(x) for x in evidence)
        change: Tensor = (state - before).norm(dim=-1)
        size: Tensor = state.norm(dim=-1)
        return change / size


class CosineChange(Falling):
    """1 − cos(s_k, s_{k−1}); 1 where a state is zero."""

    name = "cosine"
    summary = "one minus the cosine of two states in a row falls below the threshold"
    needs = Needs.STATES
    default_threshold = 1e-3

    def signal(self, evidence: Evidence, memory_TM: Tensor) -> Tensor:
        state, before = (at_least_float32(x) for x in evidence)
        return 1 - F.cosine_similarity(state, before, dim=-1)


RULES: dict[str, ExitRule] = {
    rule.name: rule
    for rule in (
        NoExit(),
        FixedDepth(),
        TraceDepth(),
        CumulativeExit(),
        LatentDifference(),
        CosineChange(),
        EntropyDifference(),
        KLDivergence(),
        MinPKLDivergence(),
        ArgmaxStability(),
        HaltingMass(),
        Confidence(),
        Margin(),
        LookaheadCalls(),
    )
}

LACKS: dict[Needs, tuple[Callable[[ModelDims], bool], str]] = {
    Needs.GATE: (lambda dims: dims.has_exit_gate, "an exit gate"),
    Needs.HALTING: (lambda dims: dims.has_halting, "a halting mean as its output (ACT)"),
}
"""What a model must have for a rule, and how to call it where it has not."""


def suits(rule: ExitRule, dims: ModelDims) -> bool:
    """Whether a model has what a rule needs."""
    return rule.needs not in LACKS or LACKS[rule.needs][0](dims)

"""Exit rules: a signal per row and loop, and the test that ends a token's looping.

A rule is one class. It says what it needs (nothing, the exit gate, or logits read out through the
coda at every loop), keeps whatever it must remember between loops in a tensor with one line per
resident, and computes its signal in float32 or better, whatever the model's dtype: a bfloat16 sum
of exit probabilities rounds to 1 too early. A NaN signal never satisfies a test, so it never exits.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from cdbench.errors import UsageError
from cdbench.models.base import ModelDims
from cdbench.models.layers import at_least_float32
from cdbench.runtime.core import ExitPolicy


class Needs(StrEnum):
    """What a rule's signal is computed from, beyond the loop count."""

    NOTHING = "nothing"
    GATE = "gate"
    LOGITS = "logits"


@dataclass(frozen=True)
class ThresholdRange:
    """Accepted thresholds, both ends included."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


class ExitRule(ABC):
    """One way to decide that a token has looped enough."""

    name: str
    summary: str
    needs: Needs
    default_threshold: float | None = None
    threshold_range: ThresholdRange | None = None
    memory_values = 0
    """Numbers remembered per resident between loops; they start at ``memory_start``."""
    memory_start: tuple[float, ...] = ()

    @abstractmethod
    def signal(self, evidence_T: Tensor, memory_TM: Tensor) -> Tensor:
        """The signal per row ``[T]``; ``memory_TM`` is updated in place.

        ``evidence_T`` is the gate logit ``[T]`` or the logits ``[T, V]``, by ``needs``.
        """

    def met(self, signal_T: Tensor, threshold_T: Tensor) -> Tensor:
        """Whether the token may leave, ``[T]`` bool; thresholds are float64."""
        return signal_T >= threshold_T


class ScriptedRule(ExitRule):
    """A rule whose depths are known beforehand, so that it computes nothing."""

    needs = Needs.NOTHING

    def signal(self, evidence_T: Tensor, memory_TM: Tensor) -> Tensor:
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


class CumulativeExit(ExitRule):
    """Ouro's rule: leave once the exit probabilities so far add up to the threshold.

    p_k = λ_k·Π_{j<k}(1 − λ_j) with λ = σ(gate logit); arXiv 2510.25741.
    """

    name = "cdf"
    summary = "sum of the gate's exit probabilities reaches the threshold"
    needs = Needs.GATE
    default_threshold = 0.5
    threshold_range = ThresholdRange(0.0, 1.0)
    memory_values = 2
    memory_start = (1.0, 0.0)

    def signal(self, evidence_T: Tensor, memory_TM: Tensor) -> Tensor:
        survival, total = memory_TM.unbind(-1)
        exit_now = torch.sigmoid(evidence_T)
        total += exit_now * survival
        survival *= 1 - exit_now
        return total


class Confidence(ExitRule):
    """CALM's baseline on the readout (arXiv 2207.07061)."""

    name = "confidence"
    summary = "largest next-token probability reaches the threshold"
    needs = Needs.LOGITS
    default_threshold = 0.9
    threshold_range = ThresholdRange(0.0, 1.0)

    def signal(self, evidence_T: Tensor, memory_TM: Tensor) -> Tensor:
        return at_least_float32(evidence_T).softmax(-1).amax(-1)


class Margin(ExitRule):
    """CALM's softmax response: how far the best token leads (arXiv 2207.07061)."""

    name = "margin"
    summary = "largest minus second largest probability reaches the threshold"
    needs = Needs.LOGITS
    default_threshold = 0.9
    threshold_range = ThresholdRange(0.0, 1.0)

    def signal(self, evidence_T: Tensor, memory_TM: Tensor) -> Tensor:
        best = at_least_float32(evidence_T).softmax(-1).topk(2, dim=-1).values
        return best[:, 0] - best[:, 1]


RULES: dict[str, ExitRule] = {
    rule.name: rule
    for rule in (NoExit(), FixedDepth(), TraceDepth(), CumulativeExit(), Confidence(), Margin())
}


def check_policy(policy: ExitPolicy, dims: ModelDims, max_loops: int) -> None:
    """Raise UsageError where this rule, threshold or floor cannot be had on this model."""
    rule = RULES.get(policy.rule)
    if rule is None:
        near = difflib.get_close_matches(policy.rule, RULES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(RULES)}"
        raise UsageError(f"exit rule {policy.rule!r}: unknown; {hint}")
    if rule.needs is Needs.GATE and not dims.has_exit_gate:
        raise UsageError(
            f"exit rule {rule.name!r}: needs an exit gate, which a {dims.model_type} model lacks; "
            f"choose one of {', '.join(n for n, r in RULES.items() if r.needs is not Needs.GATE)}"
        )
    _check_threshold(rule, policy.threshold)
    _check_loops(policy, max_loops)


def _check_threshold(rule: ExitRule, threshold: float | None) -> None:
    allowed = rule.threshold_range
    if allowed is None:
        if threshold is not None:
            raise UsageError(f"exit rule {rule.name!r}: takes no threshold; drop it")
    elif threshold is None or threshold not in allowed:
        raise UsageError(
            f"exit rule {rule.name!r}: threshold {threshold} is out of range; use {allowed}"
        )


def _check_loops(policy: ExitPolicy, max_loops: int) -> None:
    if policy.lag not in (0, 1):
        raise UsageError(f"exit lag {policy.lag}: not available; use 0 or 1")
    if not 1 <= policy.min_loops <= max_loops:
        raise UsageError(f"min_loops {policy.min_loops}: out of range; use 1 to {max_loops} loops")
    if policy.rule == "fixed" and not (policy.depth and 1 <= policy.depth <= max_loops):
        raise UsageError(f"exit rule 'fixed:{policy.depth}': use a depth of 1 to {max_loops} loops")

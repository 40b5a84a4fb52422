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

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from cdbench.errors import UsageError
from cdbench.models.base import ModelDims
from cdbench.models.layers import at_least_float32
from cdbench.runtime.core import ExitPolicy

Evidence = tuple[Tensor, ...]


class Needs(StrEnum):
    """What a rule's signal is computed from, beyond the loop count; and what its evidence holds."""

    NOTHING = "nothing"
    GATE = "gate"
    """The gate's logit ``[T]``."""
    STATES = "states"
    """The state after this loop and the one before it, ``[T, D]`` each."""
    HALTING = "halting"
    """The halting mass so far ``[T]``, of a model that reads out a halting mean."""
    LOGITS = "logits"
    """This loop's logits ``[T, V]``, read out through the coda."""


NEEDS_COST: dict[Needs, str] = {
    Needs.NOTHING: "nothing",
    Needs.GATE: "one dot product per row and loop",
    Needs.STATES: "a pass over two states per row and loop",
    Needs.HALTING: "one dot product and a running mean of the state per row and loop",
    Needs.LOGITS: "a coda launch and a pass over the vocabulary at every loop",
}


@dataclass(frozen=True)
class ThresholdRange:
    """Accepted thresholds, both ends included."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"{self.low:g} or more"
        return f"{self.low:g} to {self.high:g}"


PROBABILITY = ThresholdRange(0.0, 1.0)
AT_LEAST_ZERO = ThresholdRange(0.0, math.inf)


class ExitRule(ABC):
    """One way to decide that a token has looped enough."""

    name: str
    summary: str
    needs: Needs
    default_threshold: float | None = None
    threshold_range: ThresholdRange | None = None

    def memory_start(self, dims: ModelDims) -> Tensor:
        """``[M]``: what is remembered per resident between loops, as it stands before loop 1."""
        return torch.empty(0)

    @abstractmethod
    def signal(self, evidence: Evidence, memory_TM: Tensor) -> Tensor:
        """The signal per row ``[T]``; ``memory_TM`` is updated in place."""

    def met(self, signal_T: Tensor, threshold_T: Tensor) -> Tensor:
        """Whether the token may leave, ``[T]`` bool; thresholds are float64."""
        return signal_T >= threshold_T


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


class Falling(ExitRule):
    """A rule that ends a token once its signal has fallen below the threshold, strictly."""

    threshold_range = AT_LEAST_ZERO

    def met(self, signal_T: Tensor, threshold_T: Tensor) -> Tensor:
        return signal_T < threshold_T


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


class EntropyDifference(Falling):
    """|H_k − H_{k−1}| in nats, with H = −Σ p·log(p + 1e-10) and H_0 = 100."""

    name = "entropy-diff"
    summary = "change of the next-token entropy (nats) falls below the threshold"
    needs = Needs.LOGITS
    default_threshold = 1e-3

    def memory_start(self, dims: ModelDims) -> Tensor:
        return torch.tensor([100.0])

    def signal(self, evidence: Evidence, memory_TM: Tensor) -> Tensor:
        probs = probabilities(evidence)
        entropy = -(probs * (probs + 1e-10).log()).sum(-1)
        change = (entropy - memory_TM[:, 0]).abs()
        memory_TM[:, 0] = entropy
        return change


class KLDivergence(Falling):
    """Σ p_{k−1}·(log p_{k−1} − log p_k), with p_0 uniform."""

    name = "kl"
    summary = "KL divergence of two readouts in a row falls below the threshold"
    needs = Needs.LOGITS
    default_threshold = 1e-3

    def memory_start(self, dims: ModelDims) -> Tensor:
        return torch.full((dims.vocab_size,), -math.log(dims.vocab_size), dtype=torch.float64)

    def signal(self, evidence: Evidence, memory_TM: Tensor) -> Tensor:
        now = self.log_probabilities(evidence)
        divergence = (memory_TM.exp() * (memory_TM - now)).sum(-1)
        memory_TM.copy_(now)
        return divergence

    def log_probabilities(self, evidence: Evidence) -> Tensor:
        """``[T, V]``."""
        return at_least_float32(evidence[0]).log_softmax(-1)


class MinPKLDivergence(KLDivergence):
    """The same after every probability below a tenth of the largest is set to 1/V."""

    name = "minp-kl"
    summary = "kl after setting probabilities below 0.1 of the largest to 1/V"
    default_threshold = 1e-5

    def log_probabilities(self, evidence: Evidence) -> Tensor:
        probs = probabilities(evidence)
        small = probs < 0.1 * probs.amax(-1, keepdim=True)
        cut = probs.masked_fill(small, 1 / probs.shape[-1])
        return (cut / cut.sum(-1, keepdim=True)).log()


class ArgmaxStability(ExitRule):
    """How many times in a row the likeliest token has stayed the same; 0 at loop 1."""

    name = "argmax-stability"
    summary = "repeats in a row of the likeliest token reach the threshold"
    needs = Needs.LOGITS
    default_threshold = 5
    threshold_range = AT_LEAST_ZERO

    def memory_start(self, dims: ModelDims) -> Tensor:
        return torch.tensor([-1.0, 0.0])

    def signal(self, evidence: Evidence, memory_TM: Tensor) -> Tensor:
        last, repeats = memory_TM.unbind(-1)
        height, best = evidence[0].max(-1)
        repeats.copy_((repeats + 1) * (best == last))
        last.copy_(best)
        return repeats.masked_fill(height.isnan(), math.nan)


class Confidence(ExitRule):
    """CALM's baseline on the readout."""

    name = "confidence"
    summary = "largest next-token probability reaches the threshold"
    needs = Needs.LOGITS
    default_threshold = 0.9
    threshold_range = PROBABILITY

    def signal(self, evidence: Evidence, memory_TM: Tensor) -> Tensor:
        return probabilities(evidence).amax(-1)


class Margin(ExitRule):
    """CALM's softmax response: how far the best token leads."""

    name = "margin"
    summary = "largest minus second largest probability reaches the threshold"
    needs = Needs.LOGITS
    default_threshold = 0.9
    threshold_range = PROBABILITY

    def signal(self, evidence: Evidence, memory_TM: Tensor) -> Tensor:
        best = probabilities(evidence).topk(2, dim=-1).values
        return best[:, 0] - best[:, 1]


def probabilities(evidence: Evidence) -> Tensor:
    """Next-token probabilities ``[T, V]`` of a readout, in float32 or better."""
    return at_least_float32(evidence[0]).softmax(-1)


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


def check_policy(policy: ExitPolicy, dims: ModelDims, max_loops: int) -> None:
    """Raise UsageError where this rule, threshold or floor cannot be had on this model."""
    rule = RULES.get(policy.rule)
    if rule is None:
        near = difflib.get_close_matches(policy.rule, RULES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(RULES)}"
        raise UsageError(f"exit rule {policy.rule!r}: unknown; {hint}")
    if not suits(rule, dims):
        raise UsageError(
            f"exit rule {rule.name!r}: needs {LACKS[rule.needs][1]}, which a {dims.model_type} "
            f"model lacks; choose one of {', '.join(n for n, r in RULES.items() if suits(r, dims))}"
        )
    _check_threshold(rule, policy.threshold)
    _check_loops(policy, max_loops)
    _check_lookahead(policy, dims, max_loops)


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


def check_looks_ahead(rule: str) -> None:
    """Raise UsageError where no gate can look ahead for this rule."""
    needs = RULES[rule].needs
    if needs is Needs.NOTHING:
        raise UsageError(
            f"exit rule {rule!r}: has no signal to look ahead for; name one with a threshold"
        )
    if needs is Needs.LOGITS:
        raise UsageError(
            f"exit rule {rule!r}: reads out at every loop, which costs more than the late exit "
            "that looking ahead saves; use a rule on the gate, the states or the halting mass"
        )


def _check_lookahead(policy: ExitPolicy, dims: ModelDims, max_loops: int) -> None:
    gate = policy.lookahead
    if gate is None:
        if policy.rule == LookaheadCalls.name:
            raise UsageError(
                "exit rule 'lookahead': needs the gate that looks ahead; write lookahead:PATH"
            )
        return
    where = f"lookahead {gate.source}"
    check_looks_ahead(policy.rule)
    if policy.lag != 1:
        raise UsageError(
            f"{where}: at exit lag 0 the rule's own decision is on time and earlier than the "
            f"gate's; use --exit-lag 1, or --exit {policy.rule}@{policy.threshold:g}"
        )
    for what, trained, has in (
        ("rule", f"{gate.rule}@{gate.rule_threshold:g}", f"{policy.rule}@{policy.threshold:g}"),
        ("R", gate.max_loops, max_loops),
        ("state size", gate.gate.inputs - 1, dims.hidden_size),
    ):
        if trained != has:
            raise UsageError(
                f"{where}: {what} is {has} here, the gate was trained for {trained}; "
                "fit another with `cdbench predictor`"
            )

"""Exit rules on the logits of every loop's readout. ``exits.py`` has where each comes from.

They go over the vocabulary by chunks (``vocabulary.py``): no probability is kept of every token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from cdbench.models.base import ModelDims
from cdbench.models.layers import at_least_float32
from cdbench.runtime.exit_rule import (
    AT_LEAST_ZERO,
    PROBABILITY,
    Evidence,
    ExitRule,
    Falling,
    Needs,
)
from cdbench.runtime.vocabulary import highest, likeliest, log_probabilities, log_total, mass


class EntropyDifference(Falling):
    """|H_k − H_{k−1}| in nats, with H = −Σ p·log(p + 1e-10) and H_0 = 100."""

    name = "entropy-diff"
    summary = "change of the next-token entropy (nats) falls below the threshold"
    needs = Needs.LOGITS
    default_threshold = 1e-3

    def memory_start(self, dims: ModelDims) -> Tensor:
        return torch.tensor([100.0])

    def signal(self, evidence: Evidence, memory_TM: Tensor) -> Tensor:
        entropy = torch.zeros_like(memory_TM[:, 0])
        for part_TC in log_probabilities(evidence[0]):
            probs_TC = part_TC.exp_()
            entropy -= (probs_TC * (probs_TC + 1e-10).log_()).sum(-1)
        change = (entropy - memory_TM[:, 0]).abs()
        memory_TM[:, 0] = entropy
        return change


class KLDivergence(Falling):
    """Σ p_{k−1}·(log p_{k−1} − log p_k), with p_0 uniform.

    The readout before is remembered as its logits: in a model's own dtype they are the same, and
    equal ones stand for p_0.
    """

    name = "kl"
    summary = "KL divergence of two readouts in a row falls below the threshold"
    needs = Needs.LOGITS
    default_threshold = 1e-3
    remembers_logits = True

    def memory_start(self, dims: ModelDims) -> Tensor:
        return torch.zeros(dims.vocab_size)

    def signal(self, evidence: Evidence, memory_TM: Tensor) -> Tensor:
        logits_TV = evidence[0]
        divergence = torch.zeros_like(highest(logits_TV)[:, 0])
        both = zip(self.by_chunks(memory_TM), self.by_chunks(logits_TV), strict=True)
        for before_TC, now_TC in both:
            change_TC = before_TC - now_TC
            divergence += before_TC.exp_().mul_(change_TC).sum(-1)
        memory_TM.copy_(logits_TV)
        return divergence

    def by_chunks(self, logits_TV: Tensor) -> Iterator[Tensor]:
        """log p of every token, in parts ``[T, C]``."""
        return log_probabilities(logits_TV)


class MinPKLDivergence(KLDivergence):
    """The same after every probability below a tenth of the largest is set to 1/V."""

    name = "minp-kl"
    summary = "kl after setting probabilities below 0.1 of the largest to 1/V"
    default_threshold = 1e-5

    def by_chunks(self, logits_TV: Tensor) -> Iterator[Tensor]:
        size = logits_TV.shape[-1]
        least_T1 = math.log(0.1) + highest(logits_TV) - log_total(logits_TV)[:, None]
        left_T1 = torch.zeros_like(least_T1)
        for part_TC in log_probabilities(logits_TV):
            left_T1 += cut(part_TC, least_T1, size).exp_().sum(-1, keepdim=True)
        for part_TC in log_probabilities(logits_TV):
            yield cut(part_TC, least_T1, size).sub_(left_T1.log())


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
        best = likeliest(evidence[0])
        height = evidence[0].gather(-1, best[:, None])[:, 0]
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
        return 1 / mass(evidence[0], highest(evidence[0]))


class Margin(ExitRule):
    """CALM's softmax response: how far the best token leads."""

    name = "margin"
    summary = "largest minus second largest probability reaches the threshold"
    needs = Needs.LOGITS
    default_threshold = 0.9
    threshold_range = PROBABILITY

    def signal(self, evidence: Evidence, memory_TM: Tensor) -> Tensor:
        best_T2 = at_least_float32(evidence[0].topk(2, dim=-1).values)
        behind_T = (best_T2[:, 1] - best_T2[:, 0]).exp()
        return (1 - behind_T) / mass(evidence[0], best_T2[:, :1])


def cut(log_TC: Tensor, least_T1: Tensor, size: int) -> Tensor:
    """log p, in place, with what lies below the least set to -log V."""
    return log_TC.masked_fill_(log_TC < least_T1, -math.log(size))

"""What an exit rule is: its evidence, its thresholds, its signal and its test."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from cdbench.models.base import ModelDims

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
    remembers_logits: bool = False
    """Whether what it remembers is a readout, to be kept in the model's own dtype."""

    def memory_start(self, dims: ModelDims) -> Tensor:
        """``[M]``: what is remembered per resident between loops, as it stands before loop 1."""
        return torch.empty(0)

    @abstractmethod
    def signal(self, evidence: Evidence, memory_TM: Tensor) -> Tensor:
        """The signal per row ``[T]``; ``memory_TM`` is updated in place."""

    def met(self, signal_T: Tensor, threshold_T: Tensor) -> Tensor:
        """Whether the token may leave, ``[T]`` bool; thresholds are float64."""
        return signal_T >= threshold_T


class Falling(ExitRule):
    """A rule that ends a token once its signal has fallen below the threshold, strictly."""

    threshold_range = AT_LEAST_ZERO

    def met(self, signal_T: Tensor, threshold_T: Tensor) -> Tensor:
        return signal_T < threshold_T

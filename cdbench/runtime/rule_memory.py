"""What exit rules remember of each resident between loops, on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from cdbench.models.base import ModelDims, StagedModel
from cdbench.models.layers import at_least_float32
from cdbench.runtime.exit_rule import Evidence, ExitRule
from cdbench.runtime.exits import RULES

RULE_LIST: list[ExitRule] = list(RULES.values())
RULE_INDEX = {rule.name: i for i, rule in enumerate(RULE_LIST)}


def signal_dtype(model: StagedModel) -> torch.dtype:
    """The precision exit signals are kept in: float32, or float64 for a float64 model."""
    return at_least_float32(torch.empty(0, dtype=model.dtype)).dtype


class RuleMemory:
    """A line per resident for each rule that remembers anything, by the rule's index."""

    def __init__(
        self,
        capacity: int,
        dims: ModelDims,
        device: torch.device,
        dtype: torch.dtype,
        logits_dtype: torch.dtype,
    ) -> None:
        self.capacity, self.dims, self.device = capacity, dims, device
        self.dtype, self.logits_dtype = dtype, logits_dtype
        self.by_rule: dict[int, Tensor] = {}
        """Made when a rule first comes."""
        self._starts: dict[int, Tensor] = {}
        self._nothing = torch.empty(0, dtype=dtype, device=device)

    def hold(self, index: int) -> None:
        """Make room for what a rule remembers, the first time that one of its requests comes."""
        if index in self.by_rule:
            return
        rule = RULE_LIST[index]
        start = rule.memory_start(self.dims)
        # Every request comes by here: a copy to a GPU would wait for all that it has to do.
        if start.numel():
            dtype = self.logits_dtype if rule.remembers_logits else self.dtype
            self._starts[index] = start.to(self.device, dtype)
            self.by_rule[index] = self._starts[index].repeat(self.capacity, 1)

    def forget(self, residents_T: Tensor) -> None:
        """Put these residents' lines back to how they stand before loop 1."""
        for index, memory in self.by_rule.items():
            memory[residents_T] = self._starts[index]

    def signal(self, index: int, evidence: Evidence, residents_T: Tensor) -> Tensor:
        """A rule's signal, with what it remembers of these residents brought up to date."""
        held = self.by_rule.get(index)
        if held is None:
            return RULE_LIST[index].signal(evidence, self._nothing)
        memory = held.index_select(0, residents_T)
        signal = RULE_LIST[index].signal(evidence, memory)
        held.index_copy_(0, residents_T, memory)
        return signal

    def save(self, resident: int, index: int) -> Tensor | None:
        """A copy, in host memory, of a resident's line of its rule."""
        held = self.by_rule.get(index)
        return None if held is None else held[resident].to("cpu", copy=True)

    def restore(self, resident: int, index: int, saved: Tensor | None) -> None:
        if saved is not None:
            self.by_rule[index][resident] = saved.to(self.device)

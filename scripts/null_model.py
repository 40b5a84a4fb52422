"""A looped model whose stages cost next to nothing: what is left of a launch is the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cdbench.models.base import ModelDims, StageContext, StagedModel, WeightSlot

MOST_ROWS = 8192
"""Rows of the longest launch that it can answer."""
DIMS = ModelDims(
    model_type="null",
    hidden_size=8,
    heads=1,
    kv_heads=1,
    head_dim=8,
    prelude_layers=1,
    core_layers=1,
    coda_layers=1,
    max_loops=4,
    vocab_size=16,
    max_positions=4096,
    has_exit_gate=True,
    has_injection=True,
)


class NullModel(StagedModel):
    """Every stage has a layer, so that its rows are kept, and none of them attends.

    States, gates and logits are all the same, slices of what was made beforehand.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dims = DIMS
        self.weight = nn.Parameter(torch.zeros(DIMS.hidden_size, 1), requires_grad=False)
        self._states = torch.zeros(MOST_ROWS, DIMS.hidden_size)
        self._gates = torch.zeros(MOST_ROWS)
        self._logits = torch.zeros(MOST_ROWS, DIMS.vocab_size)

    def prelude(self, ids_T: Tensor, ctx: StageContext) -> tuple[Tensor, Tensor | None]:
        states = self._states[: ids_T.shape[0]]
        return states, states

    def core(self, state_TD: Tensor, injection_TD: Tensor | None, ctx: StageContext) -> Tensor:
        return state_TD

    def coda(self, state_TD: Tensor, ctx: StageContext) -> Tensor:
        return state_TD

    def head(self, hidden_TD: Tensor) -> Tensor:
        return self._logits[: hidden_TD.shape[0]]

    def exit_logit(self, state_TD: Tensor) -> Tensor:
        return self._gates[: state_TD.shape[0]]

    def weight_map(self) -> dict[str, WeightSlot]:
        return {}

    def stage_parameters(self) -> dict[str, list[Tensor]]:
        return {stage: [self.weight] for stage in ("prelude", "core", "coda")}


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: tensors this small are not worth two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

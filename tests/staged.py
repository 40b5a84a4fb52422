"""A small random model with layers in every stage and an injection, as the Huginn family has.

One prelude layer, two core layers behind an adapter that joins state and injection, one coda layer.
The core also reads the loop number, so that a row served at the wrong loop shows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cdbench.models.base import ModelDims, StageContext, StagedModel, WeightSlot
from cdbench.models.layers import Rotary, matrix_parameters
from cdbench.models.llama import LayerShape, LlamaLayer

DIMS = ModelDims(
    model_type="staged",
    hidden_size=16,
    heads=4,
    kv_heads=2,
    head_dim=4,
    prelude_layers=1,
    core_layers=2,
    coda_layers=1,
    max_loops=4,
    vocab_size=23,
    max_positions=64,
    has_exit_gate=True,
    has_injection=True,
)


class Staged(StagedModel):
    """Prelude and coda layers, an injection into every loop, and an exit gate."""

    def __init__(self) -> None:
        super().__init__()
        self.dims = DIMS
        hidden = DIMS.hidden_size
        self.embedding = nn.Embedding(DIMS.vocab_size, hidden)
        self.loop_embedding = nn.Embedding(DIMS.max_loops + 1, hidden)
        self.prelude_block, self.core_block, self.coda_block = (
            nn.ModuleList(_layer() for _ in range(count))
            for count in (DIMS.prelude_layers, DIMS.core_layers, DIMS.coda_layers)
        )
        self.adapter = nn.Linear(2 * hidden, hidden, bias=False)
        self.gate = nn.Linear(hidden, 1)
        self.lm_head = nn.Linear(hidden, DIMS.vocab_size, bias=False)
        self.rotary = Rotary(DIMS.head_dim, 10000.0, DIMS.max_positions)

    def prelude(self, ids_T: Tensor, ctx: StageContext) -> tuple[Tensor, Tensor | None]:
        injection_TD = self._run(self.prelude_block, self.embedding(ids_T), ctx)
        return torch.zeros_like(injection_TD), injection_TD

    def core(self, state_TD: Tensor, injection_TD: Tensor | None, ctx: StageContext) -> Tensor:
        assert injection_TD is not None
        joined_TD = self.adapter(torch.cat([state_TD, injection_TD], dim=-1))
        joined_TD = joined_TD + self.loop_embedding(ctx.loops)
        return torch.tanh(self._run(self.core_block, joined_TD, ctx))

    def coda(self, state_TD: Tensor, ctx: StageContext) -> Tensor:
        return self._run(self.coda_block, state_TD, ctx)

    def head(self, hidden_TD: Tensor) -> Tensor:
        return self.lm_head(hidden_TD)

    def exit_logit(self, state_TD: Tensor) -> Tensor:
        return self.gate(state_TD)[:, 0]

    def weight_map(self) -> dict[str, WeightSlot]:
        return {name: WeightSlot(name) for name, _ in self.named_parameters()}

    def stage_parameters(self) -> dict[str, list[Tensor]]:
        return {
            "prelude": matrix_parameters(self.prelude_block),
            "core": matrix_parameters(self.core_block),
            "coda": matrix_parameters(self.coda_block),
        }

    def _run(self, block: nn.ModuleList, h_TD: Tensor, ctx: StageContext) -> Tensor:
        rope = self.rotary.at(ctx.positions, h_TD.dtype)
        for index, layer in enumerate(block):
            h_TD = layer(h_TD, rope, index, ctx)
        return h_TD


def _layer() -> LlamaLayer:
    return LlamaLayer(DIMS, LayerShape(intermediate=32, eps=1e-6))


def staged(dtype: torch.dtype = torch.float64, seed: int = 3) -> StagedModel:
    """The model with normal weights large enough for varied tokens, gates and readouts."""
    torch.manual_seed(seed)
    model = Staged().to(dtype)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            nn.init.normal_(parameter, std=0.4)
    return model.requires_grad_(False)

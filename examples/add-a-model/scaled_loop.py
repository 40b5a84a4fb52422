"""A looped model in one file: a block of pre-norm layers whose loops have scales of their own.

Loop k turns the state s into s + scale_k · (block(s) − s), with one learned scale a loop and
channel. An exit gate reads the state after every loop; the head reads the normed last state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cdbench.models.base import StageContext, StagedModel, WeightSlot
from cdbench.models.config_reader import ConfigReader, core_layers_only
from cdbench.models.layers import RMSNorm, Rotary, at_least_float32, matrix_parameters
from cdbench.models.llama import LayerShape, LlamaLayer


class ScaledLoop(StagedModel):
    """Built from a ``config.json`` with Llama's keys and ``max_loops``."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        # Every look-up is checked: a key that is missing or wrong is named to the user.
        read = ConfigReader(config, "scaled_loop")
        self.dims = read.decoder_dims(read.positive_int("max_loops"), has_exit_gate=True)
        read.require_choice("hidden_act", "silu")
        read.require_plain_rope()
        shape = LayerShape(
            read.positive_int("intermediate_size"), read.positive_float("rms_norm_eps")
        )
        hidden, vocab = self.dims.hidden_size, self.dims.vocab_size
        self.embedding = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(
            LlamaLayer(self.dims, shape) for _ in range(self.dims.core_layers)
        )
        self.scales = nn.Embedding(self.dims.max_loops, hidden)
        self.norm = RMSNorm(hidden, shape.eps)
        self.gate = nn.Linear(hidden, 1)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        self.rotary = Rotary(self.dims.head_dim, read.rope_theta(), self.dims.max_positions)

    # Stages: tensors are flat, [tokens, …]. What a row needs to know of itself is in ``ctx``.

    def prelude(self, ids_T: Tensor, ctx: StageContext) -> tuple[Tensor, Tensor | None]:
        return self.embedding(ids_T), None  # no injection into the loops

    def core(self, state_TD: Tensor, injection_TD: Tensor | None, ctx: StageContext) -> Tensor:
        rope = self.rotary.at(ctx.positions, state_TD.dtype)
        h_TD = state_TD
        for index, layer in enumerate(self.layers):
            h_TD = layer(h_TD, rope, index, ctx)  # hands its q, k and v to ctx.attend
        # Rows of one launch are at different loops: never ask "which loop is this?", index by it.
        return torch.lerp(state_TD, h_TD, self.scales(ctx.loops - 1))

    def coda(self, state_TD: Tensor, ctx: StageContext) -> Tensor:
        return self.norm(state_TD)

    def head(self, hidden_TD: Tensor) -> Tensor:
        return self.lm_head(hidden_TD)

    def exit_logit(self, state_TD: Tensor) -> Tensor:
        state = at_least_float32(state_TD)
        return state @ self.gate.weight[0].to(state.dtype) + self.gate.bias.to(state.dtype)

    # Costs and files.

    def stage_parameters(self) -> dict[str, list[Tensor]]:
        return {
            "prelude": [],
            "core": [*matrix_parameters(self.layers), self.gate.weight],
            "coda": [self.lm_head.weight],
        }

    def weight_map(self) -> dict[str, WeightSlot]:
        slots = {
            "model.embed_tokens.weight": WeightSlot("embedding.weight"),
            "model.loop_scales": WeightSlot("scales.weight"),
            "model.norm.weight": WeightSlot("norm.weight"),
            "model.gate.weight": WeightSlot("gate.weight"),
            "model.gate.bias": WeightSlot("gate.bias"),
            "lm_head.weight": WeightSlot("lm_head.weight"),
        }
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, LlamaLayer)
            slots |= layer.weight_map(f"layers.{i}", f"model.layers.{i}")
        return slots

    # Optional: how ``layers: PRELUDE-CORE-CODA`` changes a configuration.
    with_layers = staticmethod(core_layers_only)

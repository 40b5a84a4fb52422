"""Ouro (arXiv 2510.25741): one block of layers looped R times, with a learned exit gate.

Prelude: the token embedding. One loop: every layer, then the final norm, whose output is both the
next loop's input and what the head and the gate read. There is no injection and no loop embedding.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from torch import Tensor, nn

from cdbench.models.base import ModelDims, StageContext, StagedModel, WeightSlot
from cdbench.models.config_reader import ConfigReader
from cdbench.models.layers import (
    Attention,
    GatedMLP,
    RMSNorm,
    Rotary,
    gate_logit,
    matrix_parameters,
)


class OuroLayer(nn.Module):
    """A sandwich-norm decoder layer: each branch is normed before and after."""

    def __init__(self, dims: ModelDims, intermediate: int, eps: float) -> None:
        super().__init__()
        self.attention = Attention(dims.hidden_size, dims.heads, dims.kv_heads, dims.head_dim)
        self.mlp = GatedMLP(dims.hidden_size, intermediate)
        self.attention_norm = RMSNorm(dims.hidden_size, eps)
        self.attention_norm_out = RMSNorm(dims.hidden_size, eps)
        self.mlp_norm = RMSNorm(dims.hidden_size, eps)
        self.mlp_norm_out = RMSNorm(dims.hidden_size, eps)

    def forward(
        self, h_TD: Tensor, rope: tuple[Tensor, Tensor], layer: int, ctx: StageContext
    ) -> Tensor:
        attended = self.attention(self.attention_norm(h_TD), rope, layer, ctx)
        h_TD = h_TD + self.attention_norm_out(attended)
        return h_TD + self.mlp_norm_out(self.mlp(self.mlp_norm(h_TD)))


class Ouro(StagedModel):
    """Built from an official ``config.json``; weights by ``weight_map``."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        read = ConfigReader(config, "ouro")
        self.tied = bool(config.get("tie_word_embeddings", False))
        self.dims = read.decoder_dims(
            max_loops=read.positive_int("total_ut_steps"), has_exit_gate=True
        )
        hidden = self.dims.hidden_size
        read.require_choice("hidden_act", "silu")
        read.require_plain_rope()
        eps = read.positive_float("rms_norm_eps")
        intermediate = read.positive_int("intermediate_size")
        self.embedding = nn.Embedding(self.dims.vocab_size, hidden)
        self.layers = nn.ModuleList(
            OuroLayer(self.dims, intermediate, eps) for _ in range(self.dims.core_layers)
        )
        self.norm = RMSNorm(hidden, eps)
        self.gate = nn.Linear(hidden, 1)
        self.lm_head = nn.Linear(hidden, self.dims.vocab_size, bias=False)
        if self.tied:
            self.lm_head.weight = self.embedding.weight
        self.rotary = Rotary(self.dims.head_dim, read.rope_theta(), self.dims.max_positions)

    def prelude(self, ids_T: Tensor, ctx: StageContext) -> tuple[Tensor, Tensor | None]:
        return self.embedding(ids_T), None

    def core(self, state_TD: Tensor, injection_TD: Tensor | None, ctx: StageContext) -> Tensor:
        rope = self.rotary.at(ctx.positions, state_TD.dtype)
        for index, layer in enumerate(self.layers):
            state_TD = layer(state_TD, rope, index, ctx)
        return self.norm(state_TD)

    def coda(self, state_TD: Tensor, ctx: StageContext) -> Tensor:
        return state_TD

    def head(self, hidden_TD: Tensor) -> Tensor:
        return self.lm_head(hidden_TD)

    def exit_logit(self, state_TD: Tensor) -> Tensor:
        return gate_logit(self.gate, state_TD)

    def stage_parameters(self) -> dict[str, list[Tensor]]:
        return {
            "prelude": [],
            "core": [*matrix_parameters(self.layers), self.gate.weight],
            "coda": [self.lm_head.weight],
        }

    def weight_map(self) -> dict[str, WeightSlot]:
        slots = {
            "model.embed_tokens.weight": WeightSlot("embedding.weight"),
            "model.norm.weight": WeightSlot("norm.weight"),
            "model.early_exit_gate.weight": WeightSlot("gate.weight"),
            "model.early_exit_gate.bias": WeightSlot("gate.bias"),
        }
        if not self.tied:
            slots["lm_head.weight"] = WeightSlot("lm_head.weight")
        norms = {
            "input_layernorm": "attention_norm",
            "input_layernorm_2": "attention_norm_out",
            "post_attention_layernorm": "mlp_norm",
            "post_attention_layernorm_2": "mlp_norm_out",
        }
        for i, layer in enumerate(cast("Iterable[OuroLayer]", self.layers)):
            ours, official = f"layers.{i}", f"model.layers.{i}"
            slots |= layer.attention.weight_map(f"{ours}.attention", f"{official}.self_attn")
            slots |= layer.mlp.weight_map(f"{ours}.mlp", f"{official}.mlp")
            for theirs, name in norms.items():
                slots[f"{official}.{theirs}.weight"] = WeightSlot(f"{ours}.{name}.weight")
        return slots

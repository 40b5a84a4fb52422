"""A dense decoder of the Llama family, served as a looped model with one loop.

The core is every layer once; the coda is the final norm and the head. It is the answer to "what
would an ordinary model cost?", on the same cache, attention and scheduler as the looped ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from torch import Tensor, nn

from cdbench.models.base import ModelDims, StageContext, StagedModel, WeightSlot
from cdbench.models.checkpoint import ConfigReader
from cdbench.models.layers import Attention, GatedMLP, RMSNorm, Rotary, matrix_parameters


class LlamaLayer(nn.Module):
    """A pre-norm decoder layer."""

    def __init__(
        self, dims: ModelDims, intermediate: int, eps: float, attention_bias: bool, mlp_bias: bool
    ) -> None:
        super().__init__()
        self.attention = Attention(
            dims.hidden_size, dims.heads, dims.kv_heads, dims.head_dim, attention_bias
        )
        self.mlp = GatedMLP(dims.hidden_size, intermediate, mlp_bias)
        self.attention_norm = RMSNorm(dims.hidden_size, eps)
        self.mlp_norm = RMSNorm(dims.hidden_size, eps)

    def forward(
        self, h_TD: Tensor, rope: tuple[Tensor, Tensor], layer: int, ctx: StageContext
    ) -> Tensor:
        h_TD = h_TD + self.attention(self.attention_norm(h_TD), rope, layer, ctx)
        return h_TD + self.mlp(self.mlp_norm(h_TD))


class Llama(StagedModel):
    """Built from an official ``config.json`` with ``model_type: llama``."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        read = ConfigReader(config, "llama")
        self.tied = bool(config.get("tie_word_embeddings", False))
        self.dims = read.decoder_dims(max_loops=1)
        hidden = self.dims.hidden_size
        read.require_choice("hidden_act", "silu")
        read.require_plain_rope()
        eps = read.positive_float("rms_norm_eps")
        intermediate = read.positive_int("intermediate_size")
        biases = (bool(config.get("attention_bias")), bool(config.get("mlp_bias")))
        self.embedding = nn.Embedding(self.dims.vocab_size, hidden)
        self.layers = nn.ModuleList(
            LlamaLayer(self.dims, intermediate, eps, *biases) for _ in range(self.dims.core_layers)
        )
        self.norm = RMSNorm(hidden, eps)
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
        return state_TD

    def coda(self, state_TD: Tensor, ctx: StageContext) -> Tensor:
        return self.norm(state_TD)

    def head(self, hidden_TD: Tensor) -> Tensor:
        return self.lm_head(hidden_TD)

    def stage_parameters(self) -> dict[str, list[Tensor]]:
        return {
            "prelude": [],
            "core": matrix_parameters(self.layers),
            "coda": [self.lm_head.weight],
        }

    def weight_map(self) -> dict[str, WeightSlot]:
        slots = {
            "model.embed_tokens.weight": WeightSlot("embedding.weight"),
            "model.norm.weight": WeightSlot("norm.weight"),
        }
        if not self.tied:
            slots["lm_head.weight"] = WeightSlot("lm_head.weight")
        for i, layer in enumerate(cast("Iterable[LlamaLayer]", self.layers)):
            ours, official = f"layers.{i}", f"model.layers.{i}"
            slots |= layer.attention.weight_map(f"{ours}.attention", f"{official}.self_attn")
            slots |= layer.mlp.weight_map(f"{ours}.mlp", f"{official}.mlp")
            slots[f"{official}.input_layernorm.weight"] = WeightSlot(
                f"{ours}.attention_norm.weight"
            )
            slots[f"{official}.post_attention_layernorm.weight"] = WeightSlot(
                f"{ours}.mlp_norm.weight"
            )
        return slots

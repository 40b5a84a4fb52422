"""Decoders of the Llama family, served as looped models with one loop.

The core is every layer once; the coda is the final norm and the head. It is the answer to "what
would an ordinary model cost?", on the same cache, attention and scheduler as the looped ones.
``LlamaStages`` is what a dense decoder shares with the looped ones of ``looped_llama.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from cdbench.models.base import ModelDims, StageContext, StagedModel, WeightSlot
from cdbench.models.config_reader import ConfigReader
from cdbench.models.layers import Attention, GatedMLP, RMSNorm, Rotary, matrix_parameters

DENSE_THETA = 10000.0
"""The rotary base of the dense families where the configuration does not give one."""


@dataclass(frozen=True)
class LayerShape:
    """What all layers of one model have in common beside the sizes in its ``ModelDims``."""

    intermediate: int
    eps: float
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """Every query and key head is normed before its rotation (Qwen3)."""


class LlamaLayer(nn.Module):
    """A pre-norm decoder layer."""

    def __init__(self, dims: ModelDims, shape: LayerShape) -> None:
        super().__init__()
        self.attention = Attention(
            dims.hidden_size,
            dims.heads,
            dims.kv_heads,
            dims.head_dim,
            qkv_bias=shape.qkv_bias,
            out_bias=shape.out_bias,
            qk_norm_eps=shape.eps if shape.qk_norm else None,
        )
        self.mlp = GatedMLP(dims.hidden_size, shape.intermediate, shape.mlp_bias)
        self.attention_norm = RMSNorm(dims.hidden_size, shape.eps)
        self.mlp_norm = RMSNorm(dims.hidden_size, shape.eps)

    def forward(
        self, h_TD: Tensor, rope: tuple[Tensor, Tensor], layer: int, ctx: StageContext
    ) -> Tensor:
        h_TD = h_TD + self.attention(self.attention_norm(h_TD), rope, layer, ctx)
        return h_TD + self.mlp(self.mlp_norm(h_TD))

    def weight_map(self, ours: str, official: str) -> dict[str, WeightSlot]:
        norms = {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"}
        return {
            **self.attention.weight_map(f"{ours}.attention", f"{official}.self_attn"),
            **self.mlp.weight_map(f"{ours}.mlp", f"{official}.mlp"),
            **{
                f"{official}.{theirs}.weight": WeightSlot(f"{ours}.{name}.weight")
                for theirs, name in norms.items()
            },
        }


class LlamaStages(StagedModel):
    """Embedding, Llama layers in up to three stages, final norm and head."""

    BLOCKS = (
        ("prelude_layers", "model.prelude"),
        ("layers", "model.layers"),
        ("coda_layers", "model.coda"),
    )
    """Each stage's layers: our name, and theirs in a checkpoint. ``layers`` are the core."""

    def __init__(
        self, read: ConfigReader, dims: ModelDims, shape: LayerShape, rope_theta: float
    ) -> None:
        super().__init__()
        self.dims = dims
        read.require_choice("hidden_act", "silu")
        read.require_full_attention()
        self.tied = read.flag("tie_word_embeddings")

        def layers(count: int) -> nn.ModuleList:
            return nn.ModuleList(LlamaLayer(dims, shape) for _ in range(count))

        self.embedding = nn.Embedding(dims.vocab_size, dims.hidden_size)
        self.prelude_layers = layers(dims.prelude_layers)
        self.layers = layers(dims.core_layers)
        self.coda_layers = layers(dims.coda_layers)
        self.norm = RMSNorm(dims.hidden_size, shape.eps)
        self.lm_head = nn.Linear(dims.hidden_size, dims.vocab_size, bias=False)
        if self.tied:
            self.lm_head.weight = self.embedding.weight
        self.rotary = Rotary(dims.head_dim, rope_theta, dims.max_positions, read.rope_scaling())

    def prelude(self, ids_T: Tensor, ctx: StageContext) -> tuple[Tensor, Tensor | None]:
        return self._run(self.prelude_layers, self.embedding(ids_T), ctx), None

    def core(self, state_TD: Tensor, injection_TD: Tensor | None, ctx: StageContext) -> Tensor:
        return self._run(self.layers, state_TD, ctx)

    def coda(self, state_TD: Tensor, ctx: StageContext) -> Tensor:
        return self.norm(self._run(self.coda_layers, state_TD, ctx))

    def head(self, hidden_TD: Tensor) -> Tensor:
        return self.lm_head(hidden_TD)

    def stage_parameters(self) -> dict[str, list[Tensor]]:
        return {
            "prelude": matrix_parameters(self.prelude_layers),
            "core": matrix_parameters(self.layers),
            "coda": [*matrix_parameters(self.coda_layers), self.lm_head.weight],
        }

    def weight_map(self) -> dict[str, WeightSlot]:
        slots = {
            "model.embed_tokens.weight": WeightSlot("embedding.weight"),
            "model.norm.weight": WeightSlot("norm.weight"),
        }
        if not self.tied:
            slots["lm_head.weight"] = WeightSlot("lm_head.weight")
        for ours, official in self.BLOCKS:
            for i, layer in enumerate(cast("Iterable[LlamaLayer]", getattr(self, ours))):
                slots |= layer.weight_map(f"{ours}.{i}", f"{official}.{i}")
        return slots

    def _run(self, layers: nn.ModuleList, h_TD: Tensor, ctx: StageContext) -> Tensor:
        if not len(layers):
            return h_TD
        rope = self.rotary.at(ctx.positions, h_TD.dtype)
        for index, layer in enumerate(layers):
            h_TD = layer(h_TD, rope, index, ctx)
        return h_TD


class Llama(LlamaStages):
    """A dense decoder, from the official ``config.json`` of a Llama, Mistral, Qwen2 or Qwen3."""

    def __init__(self, config: dict[str, Any]) -> None:
        read = ConfigReader(config, str(config.get("model_type", "llama")))
        dims, theta = read.decoder_dims(max_loops=1), read.rope_theta(DENSE_THETA)
        super().__init__(read, dims, _dense_shape(read), theta)


def _dense_shape(read: ConfigReader) -> LayerShape:
    """Where the dense families differ: biases, and norms of queries and keys."""
    intermediate, eps = read.positive_int("intermediate_size"), read.positive_float("rms_norm_eps")
    if read.model_type == "mistral":
        return LayerShape(intermediate, eps)
    if read.model_type == "qwen2":
        return LayerShape(intermediate, eps, qkv_bias=True)
    biased = read.flag("attention_bias")
    if read.model_type == "qwen3":
        return LayerShape(intermediate, eps, qkv_bias=biased, out_bias=biased, qk_norm=True)
    return LayerShape(intermediate, eps, biased, biased, read.flag("mlp_bias"))

"""Huginn (arXiv 2502.05171): unshared layers around a block looped R times on an injected prompt.

Prelude: the scaled embedding, then the prelude layers; their output e is injected into every loop,
and the state s starts at zero, or at random. One loop: ``s = adapter(concat[s, e])``, then the core
layers. Coda: the final norm, the coda layers, the same final norm again, the tied head. Norms come
*after* the residual sum, so a layer's output has the scale of its norm's weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from cdbench.models.base import ModelDims, StageContext, StagedModel, WeightSlot
from cdbench.models.config_reader import ConfigReader
from cdbench.models.layers import GatedMLP, RMSNorm, Rotary, matrix_parameters

MODEL_TYPE = "huginn_raven"
LAYER_KEYS = ("n_layers_in_prelude", "n_layers_in_recurrent_block", "n_layers_in_coda")
STAGES = {"prelude": "prelude_layers", "core_block": "core_layers", "coda": "coda_layers"}
"""Official name of a block of layers → its name here."""
NORMS = ("attention_norm", "attention_norm_out", "mlp_norm", "mlp_norm_out")
"""The official ``norm_1`` … ``norm_4``."""
TRUNCATED_AT = 3.0
"""Standard deviations at which the initial state's normal distribution is cut."""


class InterleavedRotary(Rotary):
    """Position embedding on the pairs (2i, 2i+1)."""

    def _spread(self, angles: Tensor) -> tuple[Tensor, Tensor]:
        sign = angles.new_tensor([-1.0, 1.0]).repeat(self.head_dim // 2)
        return angles.repeat_interleave(2, dim=-1), sign


def rotate_interleaved(x_THE: Tensor, cos_T1E: Tensor, sin_T1E: Tensor) -> Tensor:
    """Apply ``InterleavedRotary.at`` to query or key rows, in the tables' precision."""
    swapped = x_THE.reshape(*x_THE.shape[:-1], -1, 2).flip(-1).flatten(-2)
    return (x_THE * cos_T1E + swapped * sin_T1E).to(x_THE.dtype)


class HuginnAttention(nn.Module):
    """Attention with fused q, k, v rows (in that order) and a bias on q and k before rotary."""

    def __init__(self, hidden: int, heads: int, head_dim: int, qk_bias: bool) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.qkv = nn.Linear(hidden, 3 * heads * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, hidden, bias=False)
        self.qk_bias = nn.Parameter(torch.zeros(2, 1, heads, head_dim)) if qk_bias else None

    def forward(
        self, x_TD: Tensor, rope: tuple[Tensor, Tensor], layer: int, ctx: StageContext
    ) -> Tensor:
        qkv = self.qkv(x_TD).unflatten(-1, (-1, self.head_dim))
        qk = qkv[:, : 2 * self.heads]
        if self.qk_bias is not None:
            qk = qk + self.qk_bias.flatten(0, 2)
        qk = rotate_interleaved(qk, *rope)
        q_THE, k_THE, v_THE = qk[:, : self.heads], qk[:, self.heads :], qkv[:, 2 * self.heads :]
        return self.out(ctx.attend(layer, q_THE, k_THE, v_THE).flatten(-2))


class HuginnLayer(nn.Module):
    """A decoder layer that norms each branch's input and then the residual sum."""

    def __init__(self, dims: ModelDims, intermediate: int, eps: float, qk_bias: bool) -> None:
        super().__init__()
        self.attention = HuginnAttention(dims.hidden_size, dims.heads, dims.head_dim, qk_bias)
        self.mlp = GatedMLP(dims.hidden_size, intermediate)
        self.attention_norm = RMSNorm(dims.hidden_size, eps)
        self.attention_norm_out = RMSNorm(dims.hidden_size, eps)
        self.mlp_norm = RMSNorm(dims.hidden_size, eps)
        self.mlp_norm_out = RMSNorm(dims.hidden_size, eps)

    def forward(
        self, x_TD: Tensor, rope: tuple[Tensor, Tensor], layer: int, ctx: StageContext
    ) -> Tensor:
        attended = self.attention(self.attention_norm(x_TD), rope, layer, ctx)
        x_TD = self.attention_norm_out(attended + x_TD)
        return self.mlp_norm_out(self.mlp(self.mlp_norm(x_TD)) + x_TD)

    def weight_map(self, ours: str, official: str) -> dict[str, WeightSlot]:
        slots = {
            f"{official}.attn.Wqkv.weight": WeightSlot(f"{ours}.attention.qkv.weight"),
            f"{official}.attn.proj.weight": WeightSlot(f"{ours}.attention.out.weight"),
            f"{official}.mlp.fc.weight": WeightSlot(f"{ours}.mlp.gate_up.weight"),
            f"{official}.mlp.proj.weight": WeightSlot(f"{ours}.mlp.down.weight"),
        }
        if self.attention.qk_bias is not None:
            slots[f"{official}.attn.qk_bias"] = WeightSlot(f"{ours}.attention.qk_bias")
        for number, name in enumerate(NORMS, start=1):
            slots[f"{official}.norm_{number}.weight"] = WeightSlot(f"{ours}.{name}.weight")
        return slots


class Huginn(StagedModel):
    """Built from an official ``config.json``; weights by ``weight_map``."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        read = ConfigReader(config, MODEL_TYPE)
        self.dims = _dims(read)
        self.tied = bool(config.get("tie_embeddings", True))
        hidden, vocab = self.dims.hidden_size, self.dims.vocab_size
        intermediate = read.positive_int("intermediate_size")
        eps = read.positive_float("norm_eps")
        qk_bias = read.flag("qk_bias")

        def layers(count: int) -> nn.ModuleList:
            return nn.ModuleList(
                HuginnLayer(self.dims, intermediate, eps, qk_bias) for _ in range(count)
            )

        self.embedding = nn.Embedding(vocab, hidden)
        self.prelude_layers = layers(self.dims.prelude_layers)
        self.adapter = nn.Linear(2 * hidden, hidden, bias=False)
        self.core_layers = layers(self.dims.core_layers)
        self.coda_layers = layers(self.dims.coda_layers)
        self.norm = RMSNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        if self.tied:
            self.lm_head.weight = self.embedding.weight
        self.rotary = InterleavedRotary(
            self.dims.head_dim, read.positive_float("rope_base"), self.dims.max_positions
        )

    def prelude(self, ids_T: Tensor, ctx: StageContext) -> tuple[Tensor, Tensor | None]:
        embedded_TD = self.embedding(ids_T) * math.sqrt(self.dims.hidden_size)
        injection_TD = self._run(self.prelude_layers, embedded_TD, ctx)
        return torch.zeros_like(injection_TD), injection_TD

    def core(self, state_TD: Tensor, injection_TD: Tensor | None, ctx: StageContext) -> Tensor:
        if injection_TD is None:
            raise TypeError("Huginn's core needs the prelude's injection")
        joined_TD = self.adapter(torch.cat([state_TD, injection_TD], dim=-1))
        return self._run(self.core_layers, joined_TD, ctx)

    def coda(self, state_TD: Tensor, ctx: StageContext) -> Tensor:
        return self.norm(self._run(self.coda_layers, self.norm(state_TD), ctx))

    def head(self, hidden_TD: Tensor) -> Tensor:
        return self.lm_head(hidden_TD)

    def random_state(self, keys_T: Tensor) -> Tensor:
        """The published ``like-init`` state, a function of each token's key and nothing else.

        Normal with std √(2/(5·D)) cut at ±3 std, times the embedding scale √D: the inverse CDF of
        one uniform a number.
        """
        size = self.dims.hidden_size
        inside = math.erf(TRUNCATED_AT / math.sqrt(2.0))
        normal_TD = math.sqrt(2.0) * torch.erfinv((2.0 * uniforms(keys_T, size) - 1.0) * inside)
        scale = math.sqrt(2.0 / (5.0 * size)) * math.sqrt(size)
        return (scale * normal_TD).to(self.dtype)

    def stage_parameters(self) -> dict[str, list[Tensor]]:
        return {
            "prelude": matrix_parameters(self.prelude_layers),
            "core": [self.adapter.weight, *matrix_parameters(self.core_layers)],
            "coda": [*matrix_parameters(self.coda_layers), self.lm_head.weight],
        }

    def weight_map(self) -> dict[str, WeightSlot]:
        slots = {
            "transformer.wte.weight": WeightSlot("embedding.weight"),
            "transformer.adapter.weight": WeightSlot("adapter.weight"),
            "transformer.ln_f.weight": WeightSlot("norm.weight"),
        }
        if not self.tied:
            slots["lm_head.weight"] = WeightSlot("lm_head.weight")
        for official, ours in STAGES.items():
            for i, layer in enumerate(cast("Iterable[HuginnLayer]", getattr(self, ours))):
                slots |= layer.weight_map(f"{ours}.{i}", f"transformer.{official}.{i}")
        return slots

    @classmethod
    def with_layers(
        cls, config: dict[str, Any], prelude: int, core: int, coda: int
    ) -> dict[str, Any]:
        """``config`` with other numbers of layers: another model, good for timing only."""
        changed = {**config, **dict(zip(LAYER_KEYS, (prelude, core, coda), strict=True))}
        _layer_counts(ConfigReader(changed, MODEL_TYPE))
        return changed

    def _run(self, layers: nn.ModuleList, x_TD: Tensor, ctx: StageContext) -> Tensor:
        rope = self.rotary.at(ctx.positions, x_TD.dtype)
        for index, layer in enumerate(layers):
            x_TD = layer(x_TD, rope, index, ctx)
        return x_TD


def uniforms(keys_T: Tensor, columns: int) -> Tensor:
    """Float64 uniforms in (0, 1), ``[T, columns]``: SplitMix64 of (key, column), on its device.

    Every number depends on its own key and column alone, so a row is the same in any batch.
    """
    golden = _signed(0x9E3779B97F4A7C15)
    counters = (torch.arange(columns, device=keys_T.device) + 1) * golden
    # The key is mixed before the columns are counted on: neighbouring keys share no stream.
    mixed = _mix(_mix(keys_T.to(torch.int64) + golden)[:, None] + counters)
    # 52 bits and a half step are exact in float64, and neither 0 nor 1.
    return (_logical_right(mixed, 12).to(torch.float64) + 0.5) * 2.0**-52


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser; int64 arithmetic wraps as the unsigned one it stands for."""
    z = (z ^ _logical_right(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _logical_right(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _logical_right(z, 31)


def _logical_right(z: Tensor, bits: int) -> Tensor:
    # Shifting a negative int64 drags its sign along; the mask takes it off again.
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """The int64 with the bits of an unsigned 64-bit number."""
    return value - (1 << 64) if value >> 63 else value


def _dims(read: ConfigReader) -> ModelDims:
    """Sizes from the official keys, refusing what would be computed wrongly."""
    read.require_choice("injection_type", "linear")
    for key in ("bias", "test_time_noise"):
        if read.config.get(key):
            raise read.bad(key, f"is {read.config[key]!r}; only models without it are implemented")
    hidden, heads = read.positive_int("n_embd"), read.positive_int("n_heads")
    kv_heads = read.positive_int("num_key_value_heads", heads)
    if kv_heads != heads:
        raise read.bad("num_key_value_heads", f"is {kv_heads}; it must equal `n_heads`, {heads}")
    if hidden % (2 * heads):
        raise read.bad("n_heads", f"is {heads}; it must split `n_embd`, {hidden}, into even sizes")
    prelude, core, coda = _layer_counts(read)
    multiple = read.positive_int("padding_multiple", 1)
    return ModelDims(
        model_type=MODEL_TYPE,
        hidden_size=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        prelude_layers=prelude,
        core_layers=core,
        coda_layers=coda,
        max_loops=read.positive_int("mean_recurrence"),
        # As in the official code, the padding rows take part in the softmax.
        vocab_size=math.ceil(read.positive_int("vocab_size") / multiple) * multiple,
        max_positions=read.positive_int("block_size"),
        has_injection=True,
        has_random_state=True,
    )


def _layer_counts(read: ConfigReader) -> tuple[int, int, int]:
    """Prelude, core and coda layers; only the core cannot do without."""
    prelude, core, coda = LAYER_KEYS
    return read.whole_number(prelude), read.positive_int(core), read.whole_number(coda)

"""A decoder-only Universal Transformer (arXiv 1807.03819) with adaptive computation time (ACT).

No public checkpoint has this shape, so the format is this project's own. One small block of layers
is applied up to R times. Every loop first adds the paper's position-and-loop embedding, then runs
pre-norm layers with causal attention; the state is the raw residual stream, and an earlier token
that has halted is read at its deepest slot, as for any looped model here.

**Output.** After loop k the halting unit gives h_k = σ(w·s_k + b). A token's output is the mean of
its states weighted by h_1, h_2, …, where its last weight is the remainder 1 − Σ h: taken at the
loop where Σ h reaches ``halt_at`` (1 − ε for the rule ``act``, else 1), or at the loop it leaves.
Loops run after that change nothing. The final norm and the head read that mean.

**Readout memory** (``[T, 2 + D]``, float32 or better): column 0 is the halting mass Σ h_j, which
keeps growing; column 1 the leftover, the weight that this loop's state still gets if the token
leaves now; the rest Σ w_j·s_j so far.

**Checkpoint.** ``config.json``: ``model_type: universal_transformer``, ``hidden_size``,
``intermediate_size``, ``num_attention_heads``, ``num_key_value_heads``, ``head_dim``,
``num_hidden_layers`` (of the shared block, normally 1), ``max_loops``, ``vocab_size``,
``max_position_embeddings``, ``rms_norm_eps``, ``rope_theta`` (null or absent: no rotary),
``act_epsilon`` (0.01), ``tie_word_embeddings``. ``model.safetensors``:
``model.embed_tokens.weight``, ``model.layers.{i}.self_attn.{q,k,v,o}_proj.weight``,
``model.layers.{i}.mlp.{gate,up,down}_proj.weight``,
``model.layers.{i}.{input_layernorm,post_attention_layernorm}.weight``,
``model.halting.weight [1, D]``, ``model.halting.bias [1]``, ``model.norm.weight``, and
``lm_head.weight`` unless the head is tied.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from cdbench.errors import UsageError
from cdbench.models.base import ModelDims, StageContext, StagedModel, WeightSlot
from cdbench.models.config_reader import ROPE_TABLES, ConfigReader
from cdbench.models.layers import (
    Attention,
    GatedMLP,
    RMSNorm,
    Rotary,
    gate_logit,
    matrix_parameters,
)

MODEL_TYPE = "universal_transformer"
ACT_EPSILON = 0.01
MASS, LEFTOVER, MEAN = 0, 1, 2
"""Columns of the readout memory; the mean starts at ``MEAN``."""


class CoordinateEmbedding:
    """The paper's sinusoids of position plus loop, tabulated once per device and precision.

    Channel 2j is ``sin(i / 10000^(2j/D)) + sin(t / 10000^(2j/D))`` at position i (0-based) and loop
    t (1-based), channel 2j + 1 the same with cosines.
    """

    def __init__(self, hidden: int, entries: int) -> None:
        self.hidden = hidden
        self.entries = entries
        self._tables: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def add_to(self, state_TD: Tensor, ctx: StageContext) -> Tensor:
        """The state with its rows' coordinates, summed in float32 or better, in its own dtype."""
        precise = torch.float64 if state_TD.dtype == torch.float64 else torch.float32
        key = (state_TD.device, precise)
        if key not in self._tables:
            self._tables[key] = self._build().to(device=key[0], dtype=precise)
        table = self._tables[key]
        return (state_TD + (table[ctx.positions] + table[ctx.loops])).to(state_TD.dtype)

    def _build(self) -> Tensor:
        exponents = torch.arange(0, self.hidden, 2, dtype=torch.float64) / self.hidden
        angles = torch.outer(torch.arange(self.entries, dtype=torch.float64), 10000.0**-exponents)
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[:, : self.hidden]


class UniversalLayer(nn.Module):
    """A pre-norm decoder layer, with or without rotary positions."""

    def __init__(self, dims: ModelDims, intermediate: int, eps: float) -> None:
        super().__init__()
        self.attention = Attention(dims.hidden_size, dims.heads, dims.kv_heads, dims.head_dim)
        self.mlp = GatedMLP(dims.hidden_size, intermediate)
        self.attention_norm = RMSNorm(dims.hidden_size, eps)
        self.mlp_norm = RMSNorm(dims.hidden_size, eps)

    def forward(
        self, h_TD: Tensor, rope: tuple[Tensor, Tensor], layer: int, ctx: StageContext
    ) -> Tensor:
        h_TD = h_TD + self.attention(self.attention_norm(h_TD), rope, layer, ctx)
        return h_TD + self.mlp(self.mlp_norm(h_TD))

    def weight_map(self, ours: str, official: str) -> dict[str, WeightSlot]:
        return {
            **self.attention.weight_map(f"{ours}.attention", f"{official}.self_attn"),
            **self.mlp.weight_map(f"{ours}.mlp", f"{official}.mlp"),
            f"{official}.input_layernorm.weight": WeightSlot(f"{ours}.attention_norm.weight"),
            f"{official}.post_attention_layernorm.weight": WeightSlot(f"{ours}.mlp_norm.weight"),
        }


class UniversalTransformer(StagedModel):
    """Built from a ``config.json`` as the module describes; weights by ``weight_map``."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        read = ConfigReader(config, MODEL_TYPE)
        self.tied = read.flag("tie_word_embeddings")
        dims = read.decoder_dims(max_loops=read.positive_int("max_loops"), has_exit_gate=True)
        self.dims = dataclasses.replace(dims, readout_values=MEAN + dims.hidden_size)
        self.act_epsilon = _act_epsilon(read)
        hidden = self.dims.hidden_size
        read.require_choice("hidden_act", "silu")
        read.require_plain_rope()
        eps = read.positive_float("rms_norm_eps")
        intermediate = read.positive_int("intermediate_size")
        self.embedding = nn.Embedding(self.dims.vocab_size, hidden)
        self.layers = nn.ModuleList(
            UniversalLayer(self.dims, intermediate, eps) for _ in range(self.dims.core_layers)
        )
        self.halting = nn.Linear(hidden, 1)
        self.norm = RMSNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, self.dims.vocab_size, bias=False)
        if self.tied:
            self.lm_head.weight = self.embedding.weight
        entries = max(self.dims.max_positions, self.dims.max_loops + 1)
        self.coordinates = CoordinateEmbedding(hidden, entries)
        self.rotary = _rotary(read, self.dims)

    def prelude(self, ids_T: Tensor, ctx: StageContext) -> tuple[Tensor, Tensor | None]:
        return self.embedding(ids_T) * math.sqrt(self.dims.hidden_size), None

    def core(self, state_TD: Tensor, injection_TD: Tensor | None, ctx: StageContext) -> Tensor:
        state_TD = self.coordinates.add_to(state_TD, ctx)
        rope = self._rope(state_TD, ctx)
        for index, layer in enumerate(self.layers):
            state_TD = layer(state_TD, rope, index, ctx)
        return state_TD

    def coda(self, state_TD: Tensor, ctx: StageContext) -> Tensor:
        return self.norm(state_TD)

    def head(self, hidden_TD: Tensor) -> Tensor:
        return self.lm_head(hidden_TD)

    def exit_logit(self, state_TD: Tensor) -> Tensor:
        """The halting unit w·s + b, whose sigmoid is this loop's halting probability."""
        return gate_logit(self.halting, state_TD)

    def absorb(self, state_TD: Tensor, readout_TM: Tensor, halt_at_T: Tensor) -> Tensor:
        halting_T = torch.sigmoid(self.exit_logit(state_TD))
        before_T = readout_TM[:, MASS]
        mass_T = before_T + halting_T
        halted_T = mass_T >= halt_at_T
        # The remainder at the loop that halts; nothing once an earlier one has.
        weight_T = torch.where(halted_T, 1.0 - before_T, halting_T)
        weight_T = weight_T.masked_fill(before_T >= halt_at_T, 0.0)
        leftover_T = (1.0 - mass_T).masked_fill(halted_T, 0.0)
        mean_TD = readout_TM[:, MEAN:] + weight_T[:, None] * state_TD
        return torch.cat([mass_T[:, None], leftover_T[:, None], mean_TD], dim=-1)

    def readout(self, state_TD: Tensor, readout_TM: Tensor) -> Tensor:
        leftover_T1 = readout_TM[:, LEFTOVER : LEFTOVER + 1]
        return (readout_TM[:, MEAN:] + leftover_T1 * state_TD).to(state_TD.dtype)

    def stage_parameters(self) -> dict[str, list[Tensor]]:
        return {
            "prelude": [],
            "core": [*matrix_parameters(self.layers), self.halting.weight],
            "coda": [self.lm_head.weight],
        }

    def weight_map(self) -> dict[str, WeightSlot]:
        slots = {
            "model.embed_tokens.weight": WeightSlot("embedding.weight"),
            "model.norm.weight": WeightSlot("norm.weight"),
            "model.halting.weight": WeightSlot("halting.weight"),
            "model.halting.bias": WeightSlot("halting.bias"),
        }
        if not self.tied:
            slots["lm_head.weight"] = WeightSlot("lm_head.weight")
        for i, layer in enumerate(cast("Iterable[UniversalLayer]", self.layers)):
            slots |= layer.weight_map(f"layers.{i}", f"model.layers.{i}")
        return slots

    @classmethod
    def with_layers(
        cls, config: dict[str, Any], prelude: int, core: int, coda: int
    ) -> dict[str, Any]:
        """``config`` with ``core`` layers: another model, good for timing only.

        UsageError for prelude or coda layers, which this family has none of.
        """
        if prelude or coda:
            raise UsageError(
                f"layers {prelude}-{core}-{coda}: {MODEL_TYPE} has core layers only; "
                f"give 0-{core}-0"
            )
        changed = {**config, "num_hidden_layers": core}
        ConfigReader(changed, MODEL_TYPE).positive_int("num_hidden_layers")
        return changed

    def _rope(self, state_TD: Tensor, ctx: StageContext) -> tuple[Tensor, Tensor]:
        if self.rotary is not None:
            return self.rotary.at(ctx.positions, state_TD.dtype)
        still = torch.ones(1, 1, 1, dtype=state_TD.dtype, device=state_TD.device)
        return still, torch.zeros_like(still)


def _rotary(read: ConfigReader, dims: ModelDims) -> Rotary | None:
    if all(read.config.get(key) is None for key in ("rope_theta", *ROPE_TABLES)):
        return None
    return Rotary(dims.head_dim, read.rope_theta(), dims.max_positions)


def _act_epsilon(read: ConfigReader) -> float:
    epsilon = read.positive_float("act_epsilon", ACT_EPSILON)
    if epsilon >= 1.0:
        raise read.bad("act_epsilon", f"is {epsilon!r}, expected a number below 1")
    return epsilon

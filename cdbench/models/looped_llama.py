"""Any looped model of Llama layers, by configuration: ``model_type: looped_llama``.

Prelude: the embedding and ``prelude_layers`` layers. One loop: ``core_layers`` layers, run up to
``max_loops`` times. Coda: ``coda_layers`` layers, the final norm and the head. Where a loop begins
two things may happen, in this order:

- ``norm_between_loops`` norms the state that enters loops 2 … R: ``none`` (default), ``shared``
  (the final norm's weights), or ``own`` (``model.loop_norm``).
- ``injection`` brings in the prelude's output e: ``none`` (default; the state of loop 1 is e),
  ``add`` (state + e), or ``concat`` (``model.adapter`` on [state, e], 2·D → D, no bias). With an
  injection the state before loop 1 is zero.

The other keys are those of a Llama ``config.json``, where ``core_layers`` stands in the place of
``num_hidden_layers``, with ``qkv_bias`` (q, k and v alone) and ``qk_norm`` beside
``attention_bias`` (q, k, v and o) and ``mlp_bias``. Tensors have a Llama's names; the core's layers
are ``model.layers.{i}``, the others ``model.prelude.{i}`` and ``model.coda.{i}``. A checkpoint with
other names is served through a ``cdbench.json`` (``checkpoint.py``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cdbench.models.base import StageContext, WeightSlot
from cdbench.models.config_reader import ConfigReader
from cdbench.models.layers import RMSNorm
from cdbench.models.llama import LayerShape, LlamaStages

MODEL_TYPE = "looped_llama"
NORMS = ("none", "shared", "own")
INJECTIONS = ("none", "add", "concat")


class LoopedLlama(LlamaStages):
    """Built from a ``config.json`` as the module describes; weights by ``weight_map``."""

    config_keys = frozenset(
        {
            "attention_bias",
            "coda_layers",
            "core_layers",
            "head_dim",
            "hidden_act",
            "hidden_size",
            "injection",
            "intermediate_size",
            "max_loops",
            "max_position_embeddings",
            "mlp_bias",
            "norm_between_loops",
            "num_attention_heads",
            "num_key_value_heads",
            "prelude_layers",
            "qk_norm",
            "qkv_bias",
            "rms_norm_eps",
            "rope_parameters",
            "rope_scaling",
            "rope_theta",
            "sliding_window",
            "tie_word_embeddings",
            "vocab_size",
        }
    )
    """What a ``cdbench.json`` may map."""

    def __init__(self, config: dict[str, Any]) -> None:
        read = ConfigReader(config, MODEL_TYPE)
        between = read.choice("norm_between_loops", NORMS)
        injection = read.choice("injection", INJECTIONS)
        dims = read.decoder_dims(
            max_loops=read.positive_int("max_loops"),
            layers=(
                read.whole_number("prelude_layers", 0),
                read.positive_int("core_layers"),
                read.whole_number("coda_layers", 0),
            ),
            has_injection=injection != "none",
        )
        both = read.flag("attention_bias")
        shape = LayerShape(
            intermediate=read.positive_int("intermediate_size"),
            eps=read.positive_float("rms_norm_eps"),
            qkv_bias=both or read.flag("qkv_bias"),
            out_bias=both,
            mlp_bias=read.flag("mlp_bias"),
            qk_norm=read.flag("qk_norm"),
        )
        super().__init__(read, dims, shape, read.rope_theta())
        hidden = dims.hidden_size
        self.own_norm = RMSNorm(hidden, shape.eps) if between == "own" else None
        self.norms_between = between != "none"
        self.adapter = nn.Linear(2 * hidden, hidden, bias=False) if injection == "concat" else None

    def prelude(self, ids_T: Tensor, ctx: StageContext) -> tuple[Tensor, Tensor | None]:
        state_TD, _ = super().prelude(ids_T, ctx)
        if self.dims.has_injection:
            return torch.zeros_like(state_TD), state_TD
        return state_TD, None

    def core(self, state_TD: Tensor, injection_TD: Tensor | None, ctx: StageContext) -> Tensor:
        if self.norms_between:
            norm = self.norm if self.own_norm is None else self.own_norm
            # Rows of one launch stand at different loops; before the first there is no norm.
            state_TD = torch.where(ctx.loops[:, None] > 1, norm(state_TD), state_TD)
        if injection_TD is not None and self.adapter is not None:
            state_TD = self.adapter(torch.cat([state_TD, injection_TD], dim=-1))
        elif injection_TD is not None:
            state_TD = state_TD + injection_TD
        return super().core(state_TD, None, ctx)

    def stage_parameters(self) -> dict[str, list[Tensor]]:
        weights = super().stage_parameters()
        if self.adapter is not None:
            weights["core"].insert(0, self.adapter.weight)
        return weights

    def weight_map(self) -> dict[str, WeightSlot]:
        slots = super().weight_map()
        if self.own_norm is not None:
            slots["model.loop_norm.weight"] = WeightSlot("own_norm.weight")
        if self.adapter is not None:
            slots["model.adapter.weight"] = WeightSlot("adapter.weight")
        return slots

    @classmethod
    def with_layers(
        cls, config: dict[str, Any], prelude: int, core: int, coda: int
    ) -> dict[str, Any]:
        """``config`` with other numbers of layers: another model, good for timing only."""
        return {**config, "prelude_layers": prelude, "core_layers": core, "coda_layers": coda}

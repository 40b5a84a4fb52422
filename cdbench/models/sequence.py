"""Whole sequences at one depth, without a cache: for training, and as the plain reference.

Every position of ``[B, T]`` ids is at the same loop, and at loop k reads the others' loop-k keys,
as a prompt does. Rows are flattened to ``[B·T]``: the model's stages know no batch dimension.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from cdbench.models.base import StagedModel


class SequenceContext:
    """A stage context for B sequences of T tokens, causal within each sequence."""

    def __init__(self, batch: int, length: int, device: torch.device) -> None:
        self.batch, self.length = batch, length
        self.positions = torch.arange(length, device=device).repeat(batch)
        self.loops = torch.ones_like(self.positions)

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        q, k, v = (
            x.view(self.batch, self.length, *x.shape[1:]).transpose(1, 2)
            for x in (q_THE, k_TGE, v_TGE)
        )
        grouped = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return out.transpose(1, 2).flatten(0, 1)


def loop_states(
    model: StagedModel, ids_BT: Tensor, max_loops: int | None = None
) -> Iterator[Tensor]:
    """The core's output ``[B·T, D]`` after loop 1, 2, … ``max_loops`` (default: the model's)."""
    batch, length = ids_BT.shape
    ctx = SequenceContext(batch, length, ids_BT.device)
    state, injection = model.prelude(ids_BT.flatten(), ctx)
    for loop in range(1, (max_loops or model.dims.max_loops) + 1):
        # A new tensor for every loop: a backward pass still needs the earlier ones.
        ctx.loops = torch.full_like(ctx.positions, loop)
        state = model.core(state, injection, ctx)
        yield state

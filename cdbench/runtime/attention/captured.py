"""Attention of captured decode launches: where the queries read is told by tensors that stay put.

A graph is captured once for a number of rows and replayed with other contents, so a plan here is
made within the captured function, by device operations alone: no value of the host's, no shape that
depends on data. Rows that only fill a launch up read any line at position 0.

``sdpa`` gathers rows up to a context, which is part of its shapes: launches are captured for a few
contexts, and one is padded up to the next of them. ``triton`` reads each line as far as its own
position, whatever that is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cdbench.runtime.attention.backends import Backend
from cdbench.runtime.attention.plan import AttentionPlan
from cdbench.runtime.attention.sdpa import attend_gathered
from cdbench.runtime.stage_cache import StageCache


@dataclass(frozen=True)
class Reads:
    """Which line each query reads, and up to where: ``[T]`` int64 each; slots are 0-based."""

    residents: Tensor
    slots: Tensor
    positions: Tensor


MakePlan = Callable[[StageCache, Reads, int], AttentionPlan]
"""From what a launch reads, up to a context that no row exceeds."""


@dataclass(frozen=True)
class CapturedAttention:
    """How a backend attends in captured launches. ``pads``: its shapes depend on a context."""

    make_plan: MakePlan
    pads: bool


def captured_attention(backend: Backend) -> CapturedAttention:
    """The captured twin of a backend."""
    if backend == "triton":
        return CapturedAttention(_in_place, pads=False)
    return CapturedAttention(PaddedPlan, pads=True)


class PaddedPlan:
    """``SdpaPlan`` of decode rows, over a context that all launches of a graph have."""

    def __init__(self, cache: StageCache, reads: Reads, context: int) -> None:
        self.cache, self.context = cache, context
        self.lines = cache.lines(reads.residents, reads.slots, context).flatten()
        last = reads.positions[:, None]
        hidden = torch.arange(context, device=last.device) > last
        bias = torch.zeros(hidden.shape, dtype=cache.pool.layers[0].dtype, device=last.device)
        self.bias = bias.masked_fill_(hidden, float("-inf"))[:, None, None, :]

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        """Attention outputs ``[T, H, E]``; the launch's keys and values are already in the pool."""
        rows = self._gather(layer)
        return attend_gathered(q_THE, rows.view(-1, self.context, *rows.shape[1:]), self.bias)

    def _gather(self, layer: int) -> Tensor:
        if self.cache.device.type == "cpu":
            return self.cache.gather(layer, self.lines)
        # Memory of the graph's own: the cache's buffer may be exchanged for a larger one.
        return self.cache.pool.layers[layer].index_select(0, self.lines)


def _in_place(cache: StageCache, reads: Reads, context: int) -> AttentionPlan:
    # Imported by who uses it alone: it takes time, and is not everywhere.
    from cdbench.runtime.attention.triton_plan import parts_for

    groups = cache.pool.layers[0].shape[2]
    parts = parts_for(reads.residents.shape[0] * groups, cache.device)
    _, slots, positions = cache.table.on_device.shape
    starts = (reads.residents * slots + reads.slots) * positions
    return InPlacePlan(cache, torch.stack([starts, reads.positions], 1), parts)


@dataclass(frozen=True)
class InPlacePlan:
    """``TritonPlan`` of decode rows: table entries at which their lines start, and positions."""

    cache: StageCache
    reads_T2: Tensor
    parts: int

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        """Attention outputs ``[T, H, E]``; the launch's keys and values are already in the pool."""
        from cdbench.runtime.attention.triton_kernels import attend_rows

        pool, table = self.cache.pool.layers[layer], self.cache.table.on_device
        return attend_rows(q_THE, pool, table, self.reads_T2, self.parts)

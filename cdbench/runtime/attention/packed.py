"""Attention of launches in which one line of the cache has many queries.

A decode launch brings one query per line and gathers that line's keys for it. Where many tokens of
one continuation run together, the keys are gathered once per line, and the queries are padded to
one batched call of PyTorch's scaled dot-product attention: ``[lines, queries, context]``.

Shape letters beside the stage protocol's: L lines, Q queries of the line that has most, C positions
that the longest line reads.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cdbench.runtime.attention.causal import causal_bias
from cdbench.runtime.core import IntArray
from cdbench.runtime.stage_cache import StageCache


class PackedPlan:
    """Where the tokens of a packed launch read: each its own line, up to its own position.

    ``lines_T`` and ``positions_T`` name the tokens, those of a line side by side; all read slot
    ``slot`` (0-based).
    """

    def __init__(
        self,
        cache: StageCache,
        lines_T: IntArray,
        positions_T: IntArray,
        slot: int,
        dtype: torch.dtype,
    ) -> None:
        self.cache = cache
        first = np.flatnonzero(np.diff(lines_T, prepend=-1))
        counts = np.diff(first, append=lines_T.size)
        self.lines, self.queries = first.size, int(counts.max())
        self.context = int(positions_T.max()) + 1
        place = np.arange(lines_T.size) - np.repeat(first, counts)
        place += np.repeat(np.arange(first.size), counts) * self.queries
        self.is_full = place.size == self.lines * self.queries
        device = cache.device
        self.place = torch.from_numpy(place).to(device)
        self._plan_rows(lines_T[first], slot)
        self._plan_mask(place, positions_T, dtype)

    def _plan_rows(self, lines: IntArray, slot: int) -> None:
        who = torch.from_numpy(lines).to(self.cache.device)
        slots = torch.full_like(who, slot)
        self.rows = self.cache.lines(who, slots, self.context).flatten()

    def _plan_mask(self, place: IntArray, positions_T: IntArray, dtype: torch.dtype) -> None:
        # Padding stands at position 0: it reads one key, so that nothing becomes NaN.
        last = np.zeros(self.lines * self.queries, np.int64)
        last[place] = positions_T
        device = self.cache.device
        bias = causal_bias(last, self.context, self.cache.positions, dtype, device)
        self.bias = bias.view(self.lines, 1, self.queries, self.context)

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        """Attention outputs ``[T, H, E]``; the launch's keys and values are already in the pool."""
        rows = self.cache.gather(layer, self.rows)
        rows = rows.view(self.lines, self.context, *rows.shape[1:])
        keys, values = (rows[:, :, i].transpose(1, 2) for i in (0, 1))
        q = self._padded(q_THE).view(self.lines, self.queries, *q_THE.shape[1:]).transpose(1, 2)
        grouped = q.shape[1] != keys.shape[1]
        out = F.scaled_dot_product_attention(
            q, keys, values, attn_mask=self.bias, enable_gqa=grouped
        )
        flat = out.transpose(1, 2).flatten(0, 1)
        return flat if self.is_full else flat.index_select(0, self.place)

    def _padded(self, q_THE: Tensor) -> Tensor:
        if self.is_full:
            return q_THE
        padded = q_THE.new_zeros((self.lines * self.queries, *q_THE.shape[1:]))
        return padded.index_copy_(0, self.place, q_THE)

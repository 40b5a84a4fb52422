"""The reference attention backend: gather the rows, then PyTorch's scaled dot-product attention.

Runs on any device in any dtype. A launch holds decode queries (one token per request, each with a
table line of its own slot) followed by prefill segments (consecutive tokens of one prompt). A
segment that starts its prompt reads only keys made in this launch, so it needs no gather; segments
of equal length that lie side by side are one batched call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cdbench.runtime.attention.causal import causal_bias
from cdbench.runtime.core import IntArray
from cdbench.runtime.readback import to_device
from cdbench.runtime.stage_cache import StageCache


@dataclass(frozen=True)
class Segment:
    """``length`` prompt tokens of one resident from position ``start``."""

    resident: int
    start: int
    length: int


@dataclass(frozen=True)
class _Run:
    """Adjacent segments as one call: ``count`` of ``length`` tokens; ``rows`` if they look back."""

    count: int
    length: int
    rows: Tensor | None
    mask: Tensor | None


class SdpaPlan:
    """Where the queries of one launch read; made once per launch and used by every layer."""

    def __init__(
        self,
        cache: StageCache,
        residents: IntArray,
        slots: IntArray,
        positions: IntArray,
        segments: list[Segment],
        dtype: torch.dtype,
        prompt_loop: int = 1,
    ) -> None:
        self.cache = cache
        self.prompt_loop = prompt_loop
        self.decode_rows = residents.size
        if self.decode_rows:
            self._plan_decode(residents, slots, positions, dtype)
        self.runs = [self._plan_run(run) for run in _adjacent_runs(segments)]

    def _plan_decode(
        self, residents: IntArray, slots: IntArray, positions: IntArray, dtype: torch.dtype
    ) -> None:
        device = self.cache.device
        self.context = int(positions.max()) + 1
        who, slot = to_device(residents, device), to_device(slots, device)
        self.lines = self.cache.lines(who, slot, self.context).flatten()
        bias = causal_bias(positions, self.context, self.cache.positions, dtype, device)
        self.bias = bias[:, None, None, :]

    def _plan_run(self, run: list[Segment]) -> _Run:
        first = run[0]
        if first.start == 0:
            return _Run(len(run), first.length, None, None)
        end = first.start + first.length
        rows = self.cache.prompt_line(first.resident, self.prompt_loop, end)
        keys = torch.arange(end, device=self.cache.device)
        queries = torch.arange(first.start, end, device=self.cache.device)
        return _Run(1, first.length, rows, keys <= queries[:, None])

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        """Attention outputs ``[T, H, E]``; the launch's keys and values are already in the pool."""
        parts = []
        if self.decode_rows:
            parts.append(self._decode(layer, q_THE[: self.decode_rows]))
        begin = self.decode_rows
        for run in self.runs:
            end = begin + run.count * run.length
            parts.append(
                self._prefill(run, layer, q_THE[begin:end], k_TGE[begin:end], v_TGE[begin:end])
            )
            begin = end
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def gathered(self, layer: int) -> Tensor:
        """What each decode query reads, ``[T, context, 2, G, E]``, overwritten by the next call."""
        return _split(self.cache.gather(layer, self.lines), self.decode_rows, self.context)

    def _decode(self, layer: int, q_THE: Tensor) -> Tensor:
        return attend_gathered(q_THE, self.gathered(layer), self.bias)

    def _prefill(
        self, run: _Run, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor
    ) -> Tensor:
        q = _split(q_THE, run.count, run.length).transpose(1, 2)
        if run.rows is None:
            k, v = (_split(x, run.count, run.length).transpose(1, 2) for x in (k_TGE, v_TGE))
        else:
            gathered = self.cache.gather(layer, run.rows)
            k, v = (gathered[None, :, i].transpose(1, 2) for i in (0, 1))
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=run.mask, is_causal=run.mask is None, enable_gqa=_grouped(q_THE, k)
        )
        return out.transpose(1, 2).flatten(0, 1)


def attend_gathered(q_THE: Tensor, gathered: Tensor, bias: Tensor) -> Tensor:
    """Attention outputs ``[T, H, E]`` of one query a line over ``gathered`` ``[T, C, 2, G, E]``.

    ``bias`` ``[T, 1, 1, C]`` is -inf where a query may not read.
    """
    keys, values = (gathered[:, :, i].transpose(1, 2) for i in (0, 1))
    out = F.scaled_dot_product_attention(
        q_THE[:, :, None], keys, values, attn_mask=bias, enable_gqa=_grouped(q_THE, keys)
    )
    return out[:, :, 0]


def _split(x: Tensor, count: int, length: int) -> Tensor:
    """``[count · length, …]`` seen as ``[count, length, …]``."""
    return x.view(count, length, *x.shape[1:])


def _grouped(q_THE: Tensor, keys_BGCE: Tensor) -> bool:
    return q_THE.shape[1] != keys_BGCE.shape[1]


def _adjacent_runs(segments: list[Segment]) -> list[list[Segment]]:
    """Group neighbours that start their prompts and have equal lengths; others stand alone."""
    runs: list[list[Segment]] = []
    for segment in segments:
        joins = (
            runs
            and segment.start == 0
            and runs[-1][0].start == 0
            and runs[-1][0].length == segment.length
        )
        if joins:
            runs[-1].append(segment)
        else:
            runs.append([segment])
    return runs


def segment_positions(segments: list[Segment]) -> tuple[IntArray, IntArray]:
    """Resident and position of every prompt token of the segments, in order."""
    residents = np.repeat([s.resident for s in segments], [s.length for s in segments])
    positions = np.concatenate([np.arange(s.start, s.start + s.length) for s in segments])
    return residents.astype(np.int64), positions.astype(np.int64)

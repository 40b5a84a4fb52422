"""The attention backend ``triton``: decode queries read rows in place, prompts go as in ``sdpa``.

Nothing is gathered and no row is padded to the longest context: each query reads its own table
line up to its own position (``triton_kernels.py``).

Such a launch may be part of a CUDA graph: its shapes are those of its rows, whatever the contexts,
and where they read is told by one tensor, ``reads`` (``captured.py`` makes it on the device). A
captured launch keeps the addresses of ``cache.table.on_device`` and of ``cache.pool.layers``: where
either is made anew (a longer table, a larger pool) it has to be captured again.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from cdbench.runtime.attention.sdpa import SdpaPlan
from cdbench.runtime.attention.triton_kernels import attend_rows
from cdbench.runtime.core import IntArray
from cdbench.runtime.readback import to_device

PROGRAMS_PER_PROCESSOR = 4
"""Programs that a multiprocessor of a GPU is given before a context is cut no further."""
MOST_PARTS = 16


class TritonPlan(SdpaPlan):
    """Where the queries of one launch read; made as an ``SdpaPlan`` is."""

    reads: Tensor
    """``[T, 2]`` int64: the table entry at which each query's line starts, and its position."""

    def _plan_decode(
        self, residents: IntArray, slots: IntArray, positions: IntArray, dtype: torch.dtype
    ) -> None:
        # A slot's line stands one table length after that of the slot before it.
        table = self.cache.table
        starts = table.entries(residents, slots * table.host.shape[2])
        self.reads = to_device(np.stack([starts, positions], axis=1), self.cache.device)
        groups = self.cache.pool.layers[0].shape[2]
        self.parts = parts_for(residents.size * groups, self.cache.device)

    def _decode(self, layer: int, q_THE: Tensor) -> Tensor:
        pool, table = self.cache.pool.layers[layer], self.cache.table.on_device
        return attend_rows(q_THE, pool, table, self.reads, self.parts)


def parts_for(programs: int, device: torch.device) -> int:
    """Into how many parts contexts are cut where one part each makes so many programs.

    A power of two that gives every multiprocessor its programs. It depends on the launch's rows and
    not on their contexts, so that a launch of so many rows is always the same.
    """
    if device.type != "cuda":
        return 1
    wanted = PROGRAMS_PER_PROCESSOR * _processors(device)
    parts = 1
    while parts < MOST_PARTS and parts * programs < wanted:
        parts *= 2
    return parts


@functools.cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)

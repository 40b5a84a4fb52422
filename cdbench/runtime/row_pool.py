"""The rows of one stage: fixed memory on the model's device, with a free list on the host.

A *row* holds the K and V of one token in one slot, for all layers of the stage. Row 0 is never
written: it is what unused table entries point at, so that padding reads zeros and not another
request's numbers. One row more lies behind all others, the *scratch row*: rows that only fill up a
launch write there, and nobody reads it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cdbench.models.base import ModelDims
from cdbench.runtime.core import IntArray


class RowPool:
    """Rows to take and give back. Taking more than there are is a bug of the caller's."""

    def __init__(
        self, layers: int, dims: ModelDims, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._row_shape = (2, dims.kv_heads, dims.head_dim)
        self.row_bytes = row_bytes(layers, dims, dtype)
        self.layers = [
            torch.zeros((2, *self._row_shape), dtype=dtype, device=device) for _ in range(layers)
        ]
        self._free: IntArray = np.empty(0, dtype=np.int64)
        self.free_count = 0
        self.rows = 0
        self.peak_rows_in_use = 0

    @property
    def scratch_row(self) -> int:
        """Where rows that only fill up a launch write."""
        return self.rows + 1

    @property
    def rows_in_use(self) -> int:
        return self.rows - self.free_count

    def grow(self, rows: int) -> None:
        """Hold at least ``rows`` rows; existing rows keep their contents and their numbers."""
        if rows <= self.rows:
            return
        fresh = np.arange(rows, self.rows, -1)
        free = np.empty(rows, dtype=np.int64)
        # New rows go under the ones already free, so that the low, warm rows are handed out first.
        free[: fresh.size] = fresh
        free[fresh.size : fresh.size + self.free_count] = self._free[: self.free_count]
        self._free, self.free_count = free, self.free_count + fresh.size
        for i, layer in enumerate(self.layers):
            larger = layer.new_zeros((rows + 2, *self._row_shape))
            # All but the scratch row, which is now another one.
            larger[: self.rows + 1] = layer[: self.rows + 1]
            self.layers[i] = larger
        self.rows = rows

    def take(self, count: int) -> IntArray:
        """``count`` free rows. Whoever asks has made sure that they exist."""
        assert count <= self.free_count, "a launch needs more KV rows than are free"
        self.free_count -= count
        self.peak_rows_in_use = max(self.peak_rows_in_use, self.rows_in_use)
        return self._free[self.free_count : self.free_count + count].copy()

    def give_back(self, rows: IntArray) -> None:
        self._free[self.free_count : self.free_count + rows.size] = rows
        self.free_count += rows.size

    def to_host(self, rows: IntArray) -> Tensor:
        """The contents of some rows, ``[layers, rows, 2, G, E]`` in host memory, in one transfer.

        Pinned where the pool is on a GPU, so that the copy runs at full speed.
        """
        device = self.layers[0].device
        where = torch.from_numpy(rows).to(device)
        gathered = torch.stack([layer.index_select(0, where) for layer in self.layers])
        if device.type == "cpu":
            return gathered
        host = torch.empty(gathered.shape, dtype=gathered.dtype, pin_memory=True)
        host.copy_(gathered)
        return host

    def from_host(self, rows: IntArray, contents: Tensor) -> None:
        """Write back what ``to_host`` gave, bit for bit, into these rows."""
        device = self.layers[0].device
        where, contents = torch.from_numpy(rows).to(device), contents.to(device)
        for layer, saved in zip(self.layers, contents, strict=True):
            layer.index_copy_(0, where, saved)


def row_bytes(layers: int, dims: ModelDims, dtype: torch.dtype) -> int:
    """Bytes of one row: K and V of one token in all layers of a stage."""
    return layers * 2 * dims.kv_heads * dims.head_dim * dtype.itemsize

"""The KV cache: rows of keys and values, and a table that says where each token's rows lie.

A *row* holds the K and V of one token in one slot, for all layers of a stage. A core layer keeps m
slots per token and loop k writes slot min(k, m); prelude and coda layers keep one. The table
``[resident, slot, position] → row`` is all that attention reads, so tokens at different loops mix
in one launch under every layout. A token takes a row only when it first writes a slot; when it
exits, its deeper slots point at its deepest row, so nothing is copied and an early exit saves
memory.

Row 0 is never written: it is what unused table entries point at, so that padding reads zeros and
not another request's numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cdbench.errors import UsageError
from cdbench.models.base import ModelDims
from cdbench.runtime.core import IntArray, Stage

TableArray = npt.NDArray[np.int32]
GROWTH_STEP_POSITIONS = 64
NO_ROW = 0


def slots_of_layout(layout: str, max_loops: int) -> int:
    """m of ``per-loop``, ``first-shared``, ``shared`` or ``slots:M``; never more than the loops."""
    if layout == "per-loop":
        return max_loops
    if layout == "first-shared":
        return min(2, max_loops)
    if layout == "shared":
        return 1
    prefix, _, count = layout.partition(":")
    if prefix == "slots" and count.isdigit() and int(count) >= 1:
        return min(int(count), max_loops)
    raise UsageError(
        f"KV layout {layout!r}: unknown; use per-loop, first-shared, shared or slots:M"
    )


class RowPool:
    """The rows of one stage, on the model's device, with a free list on the host."""

    def __init__(
        self, layers: int, dims: ModelDims, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._row_shape = (2, dims.kv_heads, dims.head_dim)
        self.row_bytes = layers * 2 * dims.kv_heads * dims.head_dim * dtype.itemsize
        self.layers = [
            torch.zeros((1, *self._row_shape), dtype=dtype, device=device) for _ in range(layers)
        ]
        self._free: IntArray = np.empty(0, dtype=np.int64)
        self._free_count = 0
        self.rows = 0
        self.peak_rows_in_use = 0

    @property
    def rows_in_use(self) -> int:
        return self.rows - self._free_count

    def grow(self, rows: int) -> None:
        """Hold at least ``rows`` rows; existing rows keep their contents and their numbers."""
        if rows <= self.rows:
            return
        fresh = np.arange(rows, self.rows, -1)
        free = np.empty(rows, dtype=np.int64)
        # New rows go under the ones already free, so that the low, warm rows are handed out first.
        free[: fresh.size] = fresh
        free[fresh.size : fresh.size + self._free_count] = self._free[: self._free_count]
        self._free, self._free_count = free, self._free_count + fresh.size
        for i, layer in enumerate(self.layers):
            larger = layer.new_zeros((rows + 1, *self._row_shape))
            larger[: layer.shape[0]] = layer
            self.layers[i] = larger
        self.rows = rows

    def take(self, count: int) -> IntArray:
        """``count`` free rows. The admission rule guarantees that they exist."""
        assert count <= self._free_count, "a launch needs more KV rows than were reserved"
        self._free_count -= count
        self.peak_rows_in_use = max(self.peak_rows_in_use, self.rows_in_use)
        return self._free[self._free_count : self._free_count + count].copy()

    def give_back(self, rows: IntArray) -> None:
        self._free[self._free_count : self._free_count + rows.size] = rows
        self._free_count += rows.size


class StageCache:
    """One stage's rows and its table; the host's table is the truth, the device's follows it."""

    def __init__(
        self,
        layers: int,
        slots: int,
        residents: int,
        dims: ModelDims,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.pool = RowPool(layers, dims, dtype, device)
        self.slots = slots
        self.device = device
        self.table: TableArray = np.zeros((residents, slots, GROWTH_STEP_POSITIONS), dtype=np.int32)
        self._scratch: Tensor | None = None
        # On the CPU both tables are the same memory.
        self.mirrored = device.type != "cpu"
        self.mirror()

    def mirror(self) -> None:
        """Make the device's table anew from the host's."""
        host = torch.from_numpy(self.table)
        self.device_table = host.to(self.device, copy=True) if self.mirrored else host

    def hold_positions(self, positions: int) -> None:
        """Make the table long enough for requests of ``positions`` tokens."""
        have = self.table.shape[-1]
        if positions > have:
            steps = -(-positions // GROWTH_STEP_POSITIONS)
            longer = np.zeros((*self.table.shape[:2], steps * GROWTH_STEP_POSITIONS), np.int32)
            longer[..., :have] = self.table
            self.table = longer
            self.mirror()

    def lines(self, residents_T: Tensor, slots_T: Tensor, context: int) -> Tensor:
        """Table lines ``[T, context]`` int32 on the device: the rows each query reads."""
        return self.device_table[:, :, :context][residents_T, slots_T]

    def gather(self, layer: int, rows_N: Tensor) -> Tensor:
        """Rows ``[N, 2, G, E]`` of one layer, in a buffer that the next call overwrites.

        Fresh memory for every launch would cost more in page faults than the copy itself.
        """
        pool = self.pool.layers[layer]
        count = rows_N.shape[0]
        if self._scratch is None or self._scratch.shape[0] < count:
            self._scratch = pool.new_empty((count, *pool.shape[1:]))
        return torch.index_select(pool, 0, rows_N, out=self._scratch[:count])

    def store(self, layer: int, rows_T: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> None:
        """Write one layer's keys and values of a launch into their rows."""
        pool = self.pool.layers[layer]
        pool[:, 0].index_copy_(0, rows_T, k_TGE)
        pool[:, 1].index_copy_(0, rows_T, v_TGE)

    def write_rows(self, residents: IntArray, positions: IntArray, loops: IntArray) -> IntArray:
        """The rows that tokens at these loops write, allotting those their slot lacks. ``[T]``."""
        entries = self._first_entries(residents, positions)
        entries += (np.minimum(loops, self.slots) - 1) * self.table.shape[2]
        rows: IntArray = self.table.reshape(-1)[entries].astype(np.int64)
        # A later loop overwrites slot m, and a later readout its token's row in the coda.
        new = rows == NO_ROW
        count = int(np.count_nonzero(new))
        if count:
            rows[new] = self.pool.take(count)
            self._point(entries[new], rows[new])
        return rows

    def settle(self, residents: IntArray, positions: IntArray, depths: IntArray) -> None:
        """Point the slots a token never wrote at its deepest row, once it has exited."""
        short = depths < self.slots
        if not np.count_nonzero(short):
            return
        first = self._first_entries(residents[short], positions[short])[:, None]
        slots = np.arange(self.slots)
        deepest = first + np.minimum(slots, depths[short][:, None] - 1) * self.table.shape[2]
        self._point(first + slots * self.table.shape[2], self.table.reshape(-1)[deepest])

    def release(self, resident: int) -> None:
        """Free all rows of a resident and clear its line."""
        table = self.table[resident]
        own = table > 0
        # A slot that was never written repeats the row of the slot before it.
        own[1:] &= table[1:] != table[:-1]
        self.pool.give_back(table[own].astype(np.int64))
        self.table[resident] = 0
        if self.mirrored:
            self.device_table[resident] = 0

    def _first_entries(self, residents: IntArray, positions: IntArray) -> IntArray:
        """Where slot 1 of each token stands in the flat table; flat look-ups cost a third."""
        entries: IntArray = residents * (self.slots * self.table.shape[2]) + positions
        return entries

    def _point(self, entries: IntArray, rows: npt.NDArray[np.signedinteger]) -> None:
        """Set entries of the flat table."""
        self.table.reshape(-1)[entries] = rows
        if self.mirrored:
            where = torch.from_numpy(entries).to(self.device)
            values = torch.from_numpy(rows.astype(np.int32)).to(self.device)
            self.device_table.view(-1)[where] = values


class KVCache:
    """The caches of the stages that have layers, under one budget counted in positions.

    One position of one request needs, at worst, m core rows and one row in each boundary stage. A
    request reserves its worst case when it is admitted, so no launch ever runs out.
    """

    def __init__(
        self,
        dims: ModelDims,
        layout: str,
        max_loops: int,
        residents: int,
        budget_bytes: int | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.slots = slots_of_layout(layout, max_loops)
        sizes = {
            Stage.PRELUDE: (dims.prelude_layers, 1),
            Stage.CORE: (dims.core_layers, self.slots),
            Stage.CODA: (dims.coda_layers, 1),
        }
        self.stages = {
            stage: StageCache(layers, slots, residents, dims, dtype, device)
            for stage, (layers, slots) in sizes.items()
            if layers
        }
        self.position_bytes = sum(c.pool.row_bytes * c.slots for c in self.stages.values())
        self.budget_bytes = budget_bytes
        self.capacity_positions = 0
        self._reserved = np.zeros(residents, dtype=np.int64)
        if budget_bytes is not None:
            self._grow(budget_bytes // self.position_bytes)

    @property
    def reserved_positions(self) -> int:
        return int(self._reserved.sum())

    @property
    def rows_in_use(self) -> int:
        return sum(c.pool.rows_in_use for c in self.stages.values())

    @property
    def peak_bytes(self) -> int:
        """Most bytes of rows in use at once, stage by stage."""
        return sum(c.pool.peak_rows_in_use * c.pool.row_bytes for c in self.stages.values())

    def could_ever_hold(self, positions: int) -> bool:
        return self.budget_bytes is None or positions <= self.capacity_positions

    def can_hold(self, positions: int) -> bool:
        """Whether another request of this many positions fits beside the residents."""
        return self.budget_bytes is None or (
            self.reserved_positions + positions <= self.capacity_positions
        )

    def reserve(self, resident: int, positions: int) -> None:
        """Set room aside for a resident; without a budget the pool grows to fit."""
        self._reserved[resident] = positions
        if self.reserved_positions > self.capacity_positions:
            self._grow(max(self.reserved_positions, 2 * self.capacity_positions))
        for cache in self.stages.values():
            cache.hold_positions(positions)

    def release(self, resident: int) -> None:
        for cache in self.stages.values():
            cache.release(resident)
        self._reserved[resident] = 0

    def reset_peak(self) -> None:
        for cache in self.stages.values():
            cache.pool.peak_rows_in_use = cache.pool.rows_in_use

    def _grow(self, positions: int) -> None:
        self.capacity_positions = positions
        for cache in self.stages.values():
            cache.pool.grow(positions * cache.slots)

"""One stage's keys and values: its rows, and the table that says where each token's rows lie.

A core layer keeps m slots per token and loop k writes slot min(k, m); prelude and coda layers keep
one. The table ``[resident, slot, position] → row`` is all that attention reads, so tokens at
different loops mix in one launch under every layout. A token takes a row only when it first writes
a slot; when it exits, its deeper slots point at its deepest row, so nothing is copied and an early
exit saves memory.

While a prompt runs, its rows may be read through lines of their own, one a loop (``by_loop``): that
is how a cached prefix, which keeps the keys of all R loops, serves a layout of fewer slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cdbench.models.base import ModelDims
from cdbench.runtime.core import IntArray
from cdbench.runtime.readback import to_device
from cdbench.runtime.row_pool import RowPool

TableArray = npt.NDArray[np.int32]
GROWTH_STEP_POSITIONS = 64
NO_ROW = 0


@dataclass(frozen=True)
class SavedRows:
    """A resident's rows in host memory, and its line of the table with rows numbered from 1."""

    line: TableArray
    contents: Tensor

    @property
    def rows(self) -> int:
        return int(self.contents.shape[1])

    @property
    def bytes(self) -> int:
        return self.contents.numel() * self.contents.element_size()


class RowTable:
    """``[residents, slots, positions] → row``; the host's is the truth, the device's follows it."""

    def __init__(self, residents: int, slots: int, device: torch.device) -> None:
        self.device = device
        self.host: TableArray = np.zeros((residents, slots, GROWTH_STEP_POSITIONS), dtype=np.int32)
        # On the CPU both tables are the same memory.
        self.mirrored = device.type != "cpu"
        self.mirror()

    def mirror(self) -> None:
        """Make the device's table anew from the host's."""
        host = torch.from_numpy(self.host)
        self.on_device = host.to(self.device, copy=True) if self.mirrored else host

    def hold_positions(self, positions: int) -> None:
        """Make the table long enough for requests of ``positions`` tokens."""
        have = self.host.shape[-1]
        if positions > have:
            steps = -(-positions // GROWTH_STEP_POSITIONS)
            longer = np.zeros((*self.host.shape[:2], steps * GROWTH_STEP_POSITIONS), np.int32)
            longer[..., :have] = self.host
            self.host = longer
            self.mirror()

    def set_line(self, resident: int, line: TableArray, start: int = 0) -> None:
        """Set a resident's entries ``[slots, n]`` from position ``start`` on."""
        end = start + line.shape[1]
        self.host[resident, :, start:end] = line
        if self.mirrored:
            self.on_device[resident, :, start:end] = to_device(line, self.device)

    def clear(self, resident: int) -> None:
        self.host[resident] = NO_ROW
        if self.mirrored:
            self.on_device[resident] = NO_ROW

    def entries(self, residents: IntArray, positions: IntArray) -> IntArray:
        """Where slot 1 of each token stands in the flat table; flat look-ups cost a third."""
        at: IntArray = residents * (self.host.shape[1] * self.host.shape[2]) + positions
        return at

    def point(self, entries: IntArray, rows: npt.NDArray[np.signedinteger]) -> None:
        """Set entries of the flat table."""
        self.host.reshape(-1)[entries] = rows
        if self.mirrored:
            where = to_device(entries, self.device)
            values = to_device(rows.astype(np.int32), self.device)
            self.on_device.view(-1)[where] = values


class StageCache:
    """The rows of one stage and where they lie."""

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
        self.table = RowTable(residents, slots, device)
        self.by_loop: RowTable | None = None
        self._scratch: Tensor | None = None

    @property
    def positions(self) -> int:
        """Positions that a line of the table has room for."""
        return int(self.table.host.shape[2])

    def keep_by_loop(self, max_loops: int) -> None:
        """Give prompts lines of their own, one a loop, to read cached prefixes through."""
        residents = self.table.host.shape[0]
        self.by_loop = RowTable(residents, max_loops, self.device)

    def hold_positions(self, positions: int) -> None:
        """Make the tables long enough for requests of ``positions`` tokens."""
        self.table.hold_positions(positions)
        if self.by_loop is not None:
            self.by_loop.hold_positions(positions)

    # What attention reads and writes.

    def slots_of(self, loops: IntArray) -> IntArray:
        """The slot that each of these loops reads and writes; loops past the last one share it."""
        slots: IntArray = np.minimum(loops, self.slots) - 1
        return slots

    def lines(self, residents_T: Tensor, slots_T: Tensor, context: int) -> Tensor:
        """Table lines ``[T, context]`` int32 on the device: the rows each query reads."""
        if not self.table.mirrored:
            # Numpy does this in a third of the time.
            host = self.table.host[residents_T.numpy(), slots_T.numpy(), :context]
            return torch.from_numpy(host)
        return self.table.on_device[:, :, :context][residents_T, slots_T]

    def prompt_line(self, resident: int, loop: int, context: int) -> Tensor:
        """The rows ``[context]`` that a prompt's tokens read at a loop."""
        if self.by_loop is not None:
            return self.by_loop.on_device[resident, loop - 1, :context]
        return self.table.on_device[resident, min(loop, self.slots) - 1, :context]

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

    # Tokens.

    def write_rows(self, residents: IntArray, positions: IntArray, loops: IntArray) -> IntArray:
        """The rows that tokens at these loops write, allotting those their slot lacks. ``[T]``."""
        entries = self._slot_entries(residents, positions, loops)
        rows: IntArray = self.table.host.reshape(-1)[entries].astype(np.int64)
        # A later loop overwrites slot m, and a later readout its token's row in the coda.
        new = rows == NO_ROW
        count = int(np.count_nonzero(new))
        if count:
            rows[new] = self.pool.take(count)
            self.table.point(entries[new], rows[new])
        return rows

    def rows_missing(self, residents: IntArray, positions: IntArray, loops: IntArray) -> int:
        """How many rows ``write_rows`` would have to take."""
        entries = self._slot_entries(residents, positions, loops)
        return int(np.count_nonzero(self.table.host.reshape(-1)[entries] == NO_ROW))

    def prompt_rows(self, residents: IntArray, positions: IntArray, loop: int) -> IntArray:
        """The rows that prompt tokens write at a loop; ``open_prompt`` has taken them."""
        if self.by_loop is not None:
            entries = self.by_loop.entries(residents, positions)
            entries += (loop - 1) * self.by_loop.host.shape[2]
            return self.by_loop.host.reshape(-1)[entries].astype(np.int64)
        entries = self._slot_entries(residents, positions, np.full_like(positions, loop))
        return self.table.host.reshape(-1)[entries].astype(np.int64)

    def settle(self, residents: IntArray, positions: IntArray, depths: IntArray) -> None:
        """Point the slots a token never wrote at its deepest row, once it has exited."""
        if self.slots == 1:
            return
        short = depths < self.slots
        if not np.count_nonzero(short):
            return
        stride = self.table.host.shape[2]
        first = self.table.entries(residents[short], positions[short])[:, None]
        slots = np.arange(self.slots)
        deepest = first + np.minimum(slots, depths[short][:, None] - 1) * stride
        self.table.point(first + slots * stride, self.table.host.reshape(-1)[deepest])

    def _slot_entries(self, residents: IntArray, positions: IntArray, loops: IntArray) -> IntArray:
        entries = self.table.entries(residents, positions)
        entries += self.slots_of(loops) * self.table.host.shape[2]
        return entries

    # Whole residents.

    def take_line(self, slots: int, positions: int) -> TableArray:
        """Fresh rows ``[slots, positions]``, one for each slot of each position."""
        rows = self.pool.take(slots * positions)
        return rows.astype(np.int32).reshape(slots, positions)

    def release(self, resident: int, borrowed: int = 0) -> None:
        """Free a resident's rows, but for ``borrowed`` leading positions, and clear its line."""
        self.pool.give_back(self._own_rows(resident, borrowed))
        self.table.clear(resident)

    def save(self, resident: int) -> SavedRows:
        """Copy all of a resident's rows to host memory; the rows themselves stay as they are."""
        line = self.table.host[resident]
        used = np.flatnonzero(line.any(0))
        line = line[:, : used[-1] + 1 if used.size else 0]
        rows, numbers = np.unique(line, return_inverse=True)
        numbers = numbers.reshape(line.shape)
        if rows.size and rows[0] == NO_ROW:
            rows = rows[1:]
        else:
            numbers = numbers + 1
        return SavedRows(numbers.astype(np.int32), self.pool.to_host(rows.astype(np.int64)))

    def restore(self, resident: int, saved: SavedRows) -> None:
        """Give a resident fresh rows with the contents of saved ones."""
        rows = self.pool.take(saved.rows)
        self.pool.from_host(rows, saved.contents)
        self.hold_positions(saved.line.shape[1])
        numbered = np.concatenate([[NO_ROW], rows]).astype(np.int32)
        self.table.set_line(resident, numbered[saved.line])

    def _own_rows(self, resident: int, borrowed: int) -> IntArray:
        table = self.table.host[resident]
        own = table > NO_ROW
        # A slot that was never written repeats the row of the slot before it.
        own[1:] &= table[1:] != table[:-1]
        own[:, :borrowed] = False
        rows: IntArray = table[own].astype(np.int64)
        return rows

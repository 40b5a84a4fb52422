"""What residents carry from launch to launch, on the device: a line of each tensor per resident.

A core launch gathers the lines of its rows. Where the next one has the same rows, what the first
left is in their order already, and nothing is gathered again. Lines are written after every launch
all the same, so they alone are the truth; whoever writes a line in between ends that batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cdbench.models.base import ModelDims
from cdbench.runtime.core import IntArray
from cdbench.runtime.readback import to_device


@dataclass
class Batch:
    """The rows of a core launch: whose they are, and what they carry, in their order."""

    residents: IntArray
    where: Tensor
    """The same on the device."""
    state: Tensor
    injection: Tensor | None


class Carried:
    """States, injections and readouts of all residents."""

    def __init__(
        self,
        residents: int,
        dims: ModelDims,
        dtype: torch.dtype,
        signal_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.dims, self.signal_dtype, self.device = dims, signal_dtype, device
        shape = (residents, dims.hidden_size)
        self.state = torch.zeros(shape, dtype=dtype, device=device)
        self.injection = torch.zeros_like(self.state) if dims.has_injection else None
        self.readout = self.empty_readout(residents) if dims.readout_values else None
        self._batch: Batch | None = None

    def empty_readout(self, rows: int) -> Tensor:
        """``[rows, M]`` zeros: what a readout has gathered before loop 1."""
        shape = (rows, self.dims.readout_values)
        return torch.zeros(shape, dtype=self.signal_dtype, device=self.device)

    def rows(self, where: Tensor) -> tuple[Tensor, Tensor | None]:
        """State and injection of these residents."""
        injection = None
        if self.injection is not None:
            injection = self.injection.index_select(0, where)
        return self.state.index_select(0, where), injection

    def batch(self, residents: IntArray) -> Batch:
        """The rows of a core launch, gathered unless they are those of the last one."""
        held = self._batch
        if (
            held is not None
            and held.residents.size == residents.size
            and not np.count_nonzero(held.residents != residents)
        ):
            return held
        # A copy: the caller's array is the caller's.
        own = residents.copy()
        where = to_device(own, self.device)
        return Batch(own, where, *self.rows(where))

    def begin(self, where: Tensor, state: Tensor, injection: Tensor | None) -> None:
        """Write what these residents carry before loop 1 of a token."""
        self._batch = None
        self.state.index_copy_(0, where, state)
        if self.injection is not None and injection is not None:
            self.injection.index_copy_(0, where, injection)
        if self.readout is not None:
            self.readout.index_fill_(0, where, 0.0)

    def keep(
        self, where: Tensor, state: Tensor, readout: Tensor | None, batch: Batch | None = None
    ) -> None:
        """Write what a loop left of these residents, which are the rows of ``batch``, if given."""
        self.state.index_copy_(0, where, state)
        if self.readout is not None and readout is not None:
            self.readout.index_copy_(0, where, readout)
        if batch is not None:
            batch.state = state
        self._batch = batch

    def save(self, resident: int) -> list[Tensor]:
        """Copies, in host memory, of what a resident carries."""
        return [line[resident].to("cpu", copy=True) for line in self._lines]

    def restore(self, resident: int, saved: list[Tensor]) -> None:
        """Write what was saved into the lines of the number that its request now has."""
        self._batch = None
        for line, one in zip(self._lines, saved, strict=True):
            line[resident] = one.to(self.device)

    @property
    def _lines(self) -> list[Tensor]:
        return [t for t in (self.state, self.injection, self.readout) if t is not None]

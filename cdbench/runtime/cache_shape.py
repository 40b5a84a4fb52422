"""What a token keeps in the KV cache, stage by stage, and how a budget is split among the pools."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cdbench.errors import UsageError
from cdbench.models.base import ModelDims
from cdbench.runtime.core import Stage
from cdbench.runtime.row_pool import row_bytes

StageRows = dict[Stage, int]
"""A number of rows for each stage that has layers."""


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


@dataclass(frozen=True)
class CacheShape:
    """Rows per token of each stage, and their sizes in bytes."""

    slots: int
    row_bytes: dict[Stage, int]

    @property
    def boundary_bytes(self) -> int:
        """Bytes of a token's rows in prelude and coda."""
        return sum(size for stage, size in self.row_bytes.items() if stage is not Stage.CORE)

    @property
    def position_bytes(self) -> int:
        """Bytes of a token at full depth."""
        return self.boundary_bytes + self.slots * self.row_bytes[Stage.CORE]

    def pool_rows(self, budget_bytes: int) -> StageRows:
        """How a budget is split into pools.

        Tokens that exit early leave core rows unused, so the boundary pools are made for tokens
        that use half of their slots. A model without boundary layers has one pool.
        """
        half = -(-self.slots // 2)
        core = self.row_bytes[Stage.CORE]
        positions = budget_bytes // (self.boundary_bytes + half * core)
        rows = dict.fromkeys(self.row_bytes, positions)
        rows[Stage.CORE] = (budget_bytes - positions * self.boundary_bytes) // core
        return rows

    def holds(self, budget_bytes: int) -> int:
        """Positions at full depth that fit a budget."""
        rows = self.pool_rows(budget_bytes)
        return min(n // (self.slots if s is Stage.CORE else 1) for s, n in rows.items())

    def budget_for(self, positions: int) -> int:
        """A budget, in bytes, that just holds so many positions at full depth."""
        core = positions * self.slots * self.row_bytes[Stage.CORE]
        budget = positions * self.position_bytes
        while self.holds(budget) < positions:
            # The boundary pools grow with the budget: what is short in the core is added.
            short = core - self.pool_rows(budget)[Stage.CORE] * self.row_bytes[Stage.CORE]
            budget += max(short, self.row_bytes[Stage.CORE])
        return budget


def cache_shape(dims: ModelDims, layout: str, max_loops: int, dtype: torch.dtype) -> CacheShape:
    """What one token keeps, for a model under a layout."""
    layers = {
        Stage.PRELUDE: dims.prelude_layers,
        Stage.CORE: dims.core_layers,
        Stage.CODA: dims.coda_layers,
    }
    sizes = {stage: row_bytes(count, dims, dtype) for stage, count in layers.items() if count}
    return CacheShape(slots_of_layout(layout, max_loops), sizes)

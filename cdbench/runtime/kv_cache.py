"""The KV cache of one engine: a stage cache each for prelude, core and coda, under one budget.

A prompt's rows are taken when it is admitted, a later token's when it first writes a slot. Under a
budget the pools are fixed and rows can run out: what is done then is ``memory.py``'s business.
Without one the pools grow to the residents' worst case, so that they never do.
"""

from __future__ import annotations

import numpy as np
import torch

from cdbench.models.base import ModelDims
from cdbench.runtime.cache_shape import StageRows, cache_shape
from cdbench.runtime.core import IntArray, Stage
from cdbench.runtime.prefix_cache import Prefix, PrefixCache, StageLines
from cdbench.runtime.stage_cache import SavedRows, StageCache


class KVCache:
    """Rows of residents and of cached prefixes."""

    def __init__(
        self,
        dims: ModelDims,
        layout: str,
        max_loops: int,
        residents: int,
        budget_bytes: int | None,
        dtype: torch.dtype,
        device: torch.device,
        prefix_cache: bool = False,
    ) -> None:
        self.max_loops = max_loops
        self.shape = cache_shape(dims, layout, max_loops, dtype)
        self.slots = self.shape.slots
        layers = {
            Stage.PRELUDE: (dims.prelude_layers, 1),
            Stage.CORE: (dims.core_layers, self.slots),
            Stage.CODA: (dims.coda_layers, 1),
        }
        self.stages = {
            stage: StageCache(count, slots, residents, dims, dtype, device)
            for stage, (count, slots) in layers.items()
            if count
        }
        self.budget_bytes = budget_bytes
        self.prefixes: PrefixCache | None = None
        if prefix_cache:
            self.prefixes = PrefixCache()
            self.stages[Stage.CORE].keep_by_loop(max_loops)
        self._reserved = np.zeros(residents, dtype=np.int64)
        self._borrowed = np.zeros(residents, dtype=np.int64)
        """How many leading positions of each resident lie in rows that the prefix cache owns."""
        self._pinned: dict[int, Prefix] = {}
        self.prompt_tokens = self.prefix_tokens = 0
        """Prompt tokens admitted, and how many of them were found in the prefix cache."""
        if budget_bytes is not None:
            for stage, rows in self.shape.pool_rows(budget_bytes).items():
                self.stages[stage].pool.grow(rows)

    @property
    def position_bytes(self) -> int:
        return self.shape.position_bytes

    @property
    def capacity_positions(self) -> int:
        """Positions at full depth that the pools hold."""
        return min(cache.pool.rows // cache.slots for cache in self.stages.values())

    @property
    def rows_in_use(self) -> int:
        """Rows of residents and of cached prefixes."""
        return sum(c.pool.rows_in_use for c in self.stages.values())

    @property
    def peak_bytes(self) -> int:
        """Most bytes of rows in use at once, stage by stage."""
        return sum(c.pool.peak_rows_in_use * c.pool.row_bytes for c in self.stages.values())

    @property
    def free_rows(self) -> StageRows:
        return {stage: cache.pool.free_count for stage, cache in self.stages.items()}

    @property
    def prefix_hit_rate(self) -> float | None:
        """Prompt tokens found cached / prompt tokens; None where prefixes are not cached."""
        if self.prefixes is None or not self.prompt_tokens:
            return None
        return self.prefix_tokens / self.prompt_tokens

    def start_afresh(self) -> None:
        """Empty the prefix cache, and count from here."""
        self.clear_prefixes()
        self.prompt_tokens = self.prefix_tokens = 0
        for cache in self.stages.values():
            cache.pool.peak_rows_in_use = cache.pool.rows_in_use

    # How many rows things need.

    def could_ever_hold(self, positions: int) -> bool:
        return self.budget_bytes is None or positions <= self.capacity_positions

    def worst_rows(self, prompt: int, positions: int) -> StageRows:
        """Most rows a request comes to hold: every token at full depth, its prompt cached."""
        core = (self._prompt_lines(prompt, positions) - self.slots) * prompt
        return {s: positions * c.slots + core * (s is Stage.CORE) for s, c in self.stages.items()}

    def prompt_rows(self, prompt: int, positions: int, cached: int) -> StageRows:
        """Rows taken when a prompt is admitted, ``cached`` of its tokens being there already.

        Its first later token's row in the prelude is among them.
        """
        rows = dict.fromkeys(self.stages, prompt - cached)
        rows[Stage.CORE] *= self._prompt_lines(prompt, positions)
        if positions > prompt and Stage.PRELUDE in rows:
            rows[Stage.PRELUDE] += 1
        return rows

    def _prompt_lines(self, prompt: int, positions: int) -> int:
        """Core rows that each prompt token takes: R where it is to be cached, else m."""
        if self.prefixes is None:
            return self.slots
        cached = self.max_loops * prompt + self.slots * (positions - prompt)
        fits = self.budget_bytes is None or cached <= self.stages[Stage.CORE].pool.rows
        return self.max_loops if fits else self.slots

    # Requests.

    def cached_prefix(self, ids: IntArray, positions: int) -> Prefix | None:
        """The cached prefix that a prompt may use; its last token always runs."""
        if self.prefixes is None or self._prompt_lines(ids.size, positions) < self.max_loops:
            return None
        found = self.prefixes.match(ids, ids.size - 1)
        return found if found is not self.prefixes.root else None

    def open_prompt(
        self, resident: int, ids: IntArray, positions: int, prefix: Prefix | None
    ) -> int:
        """Take the rows of a prompt; how many of its tokens are cached already.

        Without a budget the pools first grow to the request's worst case.
        """
        cached = prefix.length if prefix is not None else 0
        self.prompt_tokens += ids.size
        self.prefix_tokens += cached
        self._reserve(resident, ids.size, positions)
        found: StageLines = {}
        if self.prefixes is not None and prefix is not None:
            found = self.prefixes.lines(prefix)
            self._pin(resident, prefix)
        self._borrowed[resident] = cached
        for stage, cache in self.stages.items():
            extra = stage is Stage.PRELUDE and positions > ids.size
            table, lines = cache.table, cache.slots
            if cache.by_loop is not None:
                table, lines = cache.by_loop, self._prompt_lines(ids.size, positions)
            if stage in found:
                table.set_line(resident, found[stage])
            own = cache.take_line(lines, ids.size - cached + extra)
            if cache.by_loop is not None and lines < self.max_loops:
                own = own[np.minimum(np.arange(self.max_loops), lines - 1)]
            table.set_line(resident, own, start=cached)
        return cached

    def close_prompt(self, resident: int, ids: IntArray, positions: int) -> None:
        """After its prefill: cache a prompt, and keep for the request what its layout keeps."""
        if self.prefixes is None:
            return
        core = self.stages[Stage.CORE]
        assert core.by_loop is not None
        by_loop = core.by_loop.host[resident, :, : ids.size].copy()
        last = np.arange(self.slots)
        last[-1] = self.max_loops - 1
        core.table.set_line(resident, by_loop[last])
        core.by_loop.clear(resident)
        if self._prompt_lines(ids.size, positions) < self.max_loops:
            return
        cached = int(self._borrowed[resident])
        lines = {s: c.table.host[resident, :, : ids.size] for s, c in self.stages.items()}
        lines[Stage.CORE] = by_loop
        node, known = self.prefixes.insert(ids, lines)
        self._pin(resident, node)
        self._borrowed[resident] = ids.size
        if known > cached:
            # Another request cached these positions first: this one reads that one's rows.
            for stage, cache in self.stages.items():
                cache.pool.give_back(lines[stage][:, cached:known].reshape(-1).astype(np.int64))
            theirs = self.prefixes.lines(node)
            for stage, cache in self.stages.items():
                keep = last if stage is Stage.CORE else slice(None)
                cache.table.set_line(resident, theirs[stage][keep])

    def lend(self, lender: int, borrower: int, lent: int, positions: int) -> None:
        """Let a resident read another's first ``lent`` positions, on a line for ``positions``.

        The rows stay the lender's, who has to stay as long: ``release`` of the borrower leaves them
        alone. The rows that the borrower comes to need of its own must be free.
        """
        for cache in self.stages.values():
            cache.hold_positions(positions)
            cache.table.set_line(borrower, cache.table.host[lender, :, :lent])
        self._borrowed[borrower] = lent

    def release(self, resident: int) -> None:
        """Free a resident's rows and let go of its prefix."""
        for cache in self.stages.values():
            cache.release(resident, int(self._borrowed[resident]))
        self._borrowed[resident] = self._reserved[resident] = 0
        pinned = self._pinned.pop(resident, None)
        if pinned is not None:
            pinned.pins -= 1

    def save(self, resident: int) -> dict[Stage, SavedRows]:
        """Copy a resident's rows to host memory and free them."""
        saved = {stage: cache.save(resident) for stage, cache in self.stages.items()}
        self.release(resident)
        return saved

    def restore(self, resident: int, saved: dict[Stage, SavedRows]) -> None:
        """Give a resident the rows it had, bit for bit; those of a prefix are now its own."""
        for stage, rows in saved.items():
            self.stages[stage].restore(resident, rows)

    # Cached prefixes.

    def evict_prefix(self) -> bool:
        """Give up the least recently used prefix that nobody reads; False where there is none."""
        leaf = self.prefixes.evictable() if self.prefixes is not None else None
        if self.prefixes is None or leaf is None:
            return False
        for stage, rows in self.prefixes.remove(leaf).items():
            self.stages[stage].pool.give_back(rows.reshape(-1).astype(np.int64))
        return True

    def clear_prefixes(self) -> None:
        """Empty the prefix cache of what nobody reads."""
        while self.evict_prefix():
            pass

    def _pin(self, resident: int, prefix: Prefix) -> None:
        prefix.pins += 1
        before = self._pinned.pop(resident, None)
        if before is not None:
            before.pins -= 1
        self._pinned[resident] = prefix

    def _reserve(self, resident: int, prompt: int, positions: int) -> None:
        for cache in self.stages.values():
            cache.hold_positions(positions)
        if self.budget_bytes is not None:
            return
        self._reserved[resident] = positions
        wanted = int(self._reserved.sum())
        cached = self.prefixes.positions if self.prefixes is not None else 0
        for stage, cache in self.stages.items():
            lines = self.max_loops if stage is Stage.CORE and self.prefixes else cache.slots
            needed = (wanted + cached) * lines
            if needed > cache.pool.rows:
                cache.pool.grow(max(needed, 2 * cache.pool.rows))

"""What the layers of one launch see, and how it is put together for each kind of launch."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from torch import Tensor

from cdbench.runtime.attention.plan import AttentionPlan
from cdbench.runtime.attention.sdpa import SdpaPlan, Segment, segment_positions
from cdbench.runtime.core import IntArray, Stage
from cdbench.runtime.kv_cache import KVCache
from cdbench.runtime.readback import to_device
from cdbench.runtime.residents import Residents
from cdbench.runtime.stage_cache import StageCache

NO_ROWS: IntArray = np.empty(0, dtype=np.int64)


class LaunchContext:
    """What the layers of one launch see: positions, loops, and attention through the cache."""

    def __init__(
        self,
        positions: Tensor,
        loops: Tensor,
        cache: StageCache | None,
        rows: Tensor,
        plan: AttentionPlan | None,
    ) -> None:
        self.positions, self.loops = positions, loops
        self._cache, self._plan, self._rows = cache, plan, rows

    @classmethod
    def of_arrays(
        cls,
        positions: IntArray,
        loops: IntArray,
        device: torch.device,
        cache: StageCache | None,
        rows: IntArray,
        plan: AttentionPlan | None,
    ) -> Self:
        """The context of values that the host has."""
        positions_T, loops_T = to_device(positions, device), to_device(loops, device)
        return cls(positions_T, loops_T, cache, to_device(rows, device), plan)

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        assert self._cache is not None, "this stage declared no layers"
        assert self._plan is not None
        self._cache.store(layer, self._rows, k_TGE, v_TGE)
        return self._plan.attend(layer, q_THE, k_TGE, v_TGE)


class LaunchContexts:
    """Makes the contexts of launches over one cache and one set of residents."""

    def __init__(
        self, cache: KVCache, residents: Residents, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.cache, self.residents = cache, residents
        self.device, self.dtype = device, dtype
        self.plan_class = SdpaPlan
        """Of the attention backend that decode, prefill and mixed launches use."""

    def bare(self, positions: IntArray, loops: IntArray) -> LaunchContext:
        """For a stage without layers."""
        return LaunchContext.of_arrays(positions, loops, self.device, None, NO_ROWS, None)

    def decode(self, stage: Stage, residents: IntArray, loops: IntArray) -> LaunchContext:
        """For one token of each resident, at loops of their own."""
        positions = self.residents.position[residents]
        cache = self.cache.stages.get(stage)
        if cache is None:
            return self.bare(positions, loops)
        rows = cache.write_rows(residents, positions, loops)
        slots = cache.slots_of(loops)
        plan = self.plan_class(cache, residents, slots, positions, [], self.dtype)
        return LaunchContext.of_arrays(positions, loops, self.device, cache, rows, plan)

    def prefill(self, stage: Stage, segments: list[Segment], loop: int) -> LaunchContext:
        """For prompt tokens at one loop."""
        residents, positions = segment_positions(segments)
        loops = np.full_like(positions, loop)
        cache = self.cache.stages.get(stage)
        if cache is None:
            return self.bare(positions, loops)
        rows = cache.prompt_rows(residents, positions, loop)
        plan = self.plan_class(cache, NO_ROWS, NO_ROWS, NO_ROWS, segments, self.dtype, loop)
        return LaunchContext.of_arrays(positions, loops, self.device, cache, rows, plan)

    def mixed(
        self, residents: IntArray, loops: IntArray, segments: list[Segment], loop: int
    ) -> LaunchContext:
        """Decode rows at their own loops, then prompt tokens at ``loop``, in a core launch."""
        cache = self.cache.stages[Stage.CORE]
        positions = self.residents.position[residents]
        prompts, prompt_positions = segment_positions(segments)
        slots = cache.slots_of(loops)
        rows = np.concatenate(
            [
                cache.write_rows(residents, positions, loops),
                cache.prompt_rows(prompts, prompt_positions, loop),
            ]
        )
        plan = self.plan_class(cache, residents, slots, positions, segments, self.dtype, loop)
        return LaunchContext.of_arrays(
            np.concatenate([positions, prompt_positions]),
            np.concatenate([loops, np.full_like(prompt_positions, loop)]),
            self.device,
            cache,
            rows,
            plan,
        )

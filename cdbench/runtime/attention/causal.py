"""Which positions a query may read, as numbers that are added to its scores."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from cdbench.runtime.core import IntArray
from cdbench.runtime.readback import to_device


def causal_bias(
    last: IntArray, context: int, reach: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """``[N, context]``: 0 up to each query's own position ``last`` ``[N]``, −inf beyond it.

    ``reach``: positions that there could be, at least ``context``. Every row is a window of one
    long step, so that a launch makes its bias by one copy.
    """
    windows = _step(reach, dtype, device).unfold(0, context, 1)
    return windows.index_select(0, to_device(reach - 1 - last, device))


@functools.lru_cache(maxsize=16)
def _step(reach: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    step = torch.zeros(2 * reach, dtype=dtype, device=device)
    step[reach:] = float("-inf")
    return step

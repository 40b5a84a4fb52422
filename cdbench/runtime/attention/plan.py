"""What the layers of a launch need of an attention backend."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class AttentionPlan(Protocol):
    """Where the queries of one launch read; made once per launch and used by every layer."""

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        """Attention outputs ``[T, H, E]``; the launch's keys and values are already in the pool."""
        ...

"""The stage protocol: all that the runtime knows of a model.

A looped model is three stages. The *prelude* embeds a token (and runs unshared layers), the *core*
is the block applied once per loop, the *coda* (unshared layers and the head) turns the last state
into logits. A dense decoder is the same thing with one loop.

Tensors are flat: one row per token, whatever request, position or loop it belongs to. Shape
letters: T tokens of a launch, D hidden size, H query heads, G key/value heads, E head size,
V vocabulary.

The model never sees the KV cache. Each layer hands its query, key and value rows to
``StageContext.attend``, which stores them and answers with the attention output, so prefill, decode
and mixed launches are the same code, and training can supply a context of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn


class StageContext(Protocol):
    """What one launch of one stage tells the layers it runs."""

    @property
    def positions(self) -> Tensor:
        """``[T]`` int64, each token's position in its request (0-based)."""
        ...

    @property
    def loops(self) -> Tensor:
        """``[T]`` int64, the loop each token is at, 1-based. Constant 1 outside the core."""
        ...

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        """Store this layer's keys and values and return ``[T, H, E]`` causal attention outputs.

        ``layer`` counts from 0 within the stage.
        """
        ...


@dataclass(frozen=True)
class ModelDims:
    """Sizes that the cache, the cost model and the checks need."""

    model_type: str
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    prelude_layers: int
    core_layers: int
    coda_layers: int
    max_loops: int
    vocab_size: int
    max_positions: int
    has_exit_gate: bool = False
    has_injection: bool = False
    has_random_state: bool = False
    """Whether ``state_init: random`` means anything: loop 1 does not start from the prompt."""
    readout_values: int = 0
    """Numbers per token that the readout gathers over the loops; 0: it is the last state alone."""

    @property
    def layers_by_stage(self) -> str:
        """Layers of prelude, core and coda as text, P-C-K."""
        return f"{self.prelude_layers}-{self.core_layers}-{self.coda_layers}"

    @property
    def has_halting(self) -> bool:
        """Whether the output is a halting-weighted mean of the states (ACT)."""
        return self.readout_values > 0


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` of ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


class StageCost(NamedTuple):
    """FLOPs per token, or bytes of weights, of each stage (metrics.md: F_p, F_c, F_k)."""

    prelude: float
    core: float
    coda: float

    @property
    def ratio(self) -> float:
        """``cost_ratio`` (F_p + F_k) / F_c: what the boundary stages weigh against one loop."""
        return (self.prelude + self.coda) / self.core


class WeightSlot(NamedTuple):
    """Where one tensor of an official checkpoint lives here: a parameter, or some of its rows."""

    parameter: str
    start_row: int | None = None
    rows: int | None = None


class StagedModel(nn.Module, ABC):
    """A model the runtime can serve. Subclasses say what their stages do and cost."""

    dims: ModelDims

    @abstractmethod
    def prelude(self, ids_T: Tensor, ctx: StageContext) -> tuple[Tensor, Tensor | None]:
        """Token ids → (state ``[T, D]`` before loop 1, injection ``[T, D]`` or None)."""

    @abstractmethod
    def core(self, state_TD: Tensor, injection_TD: Tensor | None, ctx: StageContext) -> Tensor:
        """One loop: ``[T, D]`` → ``[T, D]``."""

    @abstractmethod
    def coda(self, state_TD: Tensor, ctx: StageContext) -> Tensor:
        """The last state → the hidden rows the head reads, ``[T, D]``."""

    @abstractmethod
    def head(self, hidden_TD: Tensor) -> Tensor:
        """Hidden rows → logits ``[T, V]``. Apart from ``coda`` because a prefill needs few rows."""

    @abstractmethod
    def weight_map(self) -> dict[str, WeightSlot]:
        """Official tensor name → where its values go, for loading and for saving."""

    @abstractmethod
    def stage_parameters(self) -> dict[str, list[Tensor]]:
        """The matrix weights multiplied once per token by ``prelude``, ``core`` and ``coda``."""

    def exit_logit(self, state_TD: Tensor) -> Tensor:
        """The gate's logit per row ``[T]``, in float32 or better. Only with ``has_exit_gate``."""
        raise TypeError(f"{self.dims.model_type} has no exit gate")

    def random_state(self, keys_T: Tensor) -> Tensor:
        """Initial states ``[T, D]`` drawn from one int64 key a token. With ``has_random_state``."""
        raise TypeError(f"{self.dims.model_type} has no initial state to draw")

    def absorb(self, state_TD: Tensor, readout_TM: Tensor, halt_at_T: Tensor) -> Tensor:
        """What the readout has gathered, ``[T, M]``, once this loop's state is counted in.

        Called after every loop where ``dims.readout_values`` (M) is above 0, on zeros at loop 1.
        Column 0 is the halting mass so far, and ``halt_at_T`` the mass at which a row's weights are
        complete: later loops no longer count. In float32 or better.
        """
        return readout_TM

    def readout(self, state_TD: Tensor, readout_TM: Tensor) -> Tensor:
        """The state ``[T, D]`` that the coda reads, for a token that leaves after this loop."""
        return state_TD

    def flops_per_token(self) -> StageCost:
        """Two FLOPs per matrix weight; an embedding lookup is free, a tied head counts."""
        return self._per_stage(lambda weight: 2.0 * weight.numel())

    def weight_bytes(self) -> StageCost:
        """Bytes of matrix weights that one launch of each stage reads, whatever its rows."""
        return self._per_stage(lambda weight: float(weight.numel() * weight.element_size()))

    def attention_flops(self, context: int) -> float:
        """FLOPs of attention for one query at one core layer: 4·context·heads·head_dim."""
        return 4.0 * context * self.dims.heads * self.dims.head_dim

    def _per_stage(self, measure: Callable[[Tensor], float]) -> StageCost:
        totals = {
            stage: sum(measure(weight) for weight in weights)
            for stage, weights in self.stage_parameters().items()
        }
        return StageCost(**totals)

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

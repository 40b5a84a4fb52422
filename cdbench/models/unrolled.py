"""A looped model as a dense one: its core copied R times, each copy with weights of its own.

In one pass through R times the layers it computes what the looped model computes at full depth with
a KV slot per loop (layout ``per-loop``), so ``dense:unrolled`` says what a model of that size costs
whose weights are not shared.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cdbench.models.base import StageContext, StagedModel, WeightSlot
from cdbench.models.layers import at_least_float32

FULL_MASS = 1.0
"""Where no rule halts a token, its halting mass has to reach all of it."""


def unrolled(network: StagedModel, max_loops: int | None = None) -> StagedModel:
    """The dense twin of a looped model at ``max_loops`` (default: its own).

    The first copy, the prelude and the coda are ``network``'s own modules, so that R - 1 cores are
    all the memory it takes: move or train neither of the two alone.
    """
    return Unrolled(network, max_loops or network.dims.max_loops)


class Unrolled(StagedModel):
    """Copies of one core, run one after the other; copy k tells its layers that it is loop k."""

    def __init__(self, network: StagedModel, loops: int) -> None:
        super().__init__()
        self.network = network
        self.loops = loops
        self.dims = dataclasses.replace(
            network.dims,
            model_type=f"unrolled {network.dims.model_type}",
            core_layers=loops * network.dims.core_layers,
            max_loops=1,
            has_exit_gate=False,
            readout_values=0,
        )
        own = core_parameters(network, loops)
        shared = {id(value): value for value in _shared(network, own)}
        self.copies = nn.ModuleList(copy.deepcopy(network, dict(shared)) for _ in range(loops - 1))
        self._boundary = shared.keys()

    def prelude(self, ids_T: Tensor, ctx: StageContext) -> tuple[Tensor, Tensor | None]:
        return self.network.prelude(ids_T, ctx)

    def random_state(self, keys_T: Tensor) -> Tensor:
        return self.network.random_state(keys_T)

    def core(self, state_TD: Tensor, injection_TD: Tensor | None, ctx: StageContext) -> Tensor:
        rows, device = state_TD.shape[0], state_TD.device
        values = self.network.dims.readout_values
        gathered = at_least_float32(state_TD).new_zeros(rows, values)
        halt_at = torch.full((rows,), FULL_MASS, dtype=torch.float64, device=device)
        for loop, twin in enumerate(self._twins(), start=1):
            offset = (loop - 1) * twin.dims.core_layers
            state_TD = twin.core(state_TD, injection_TD, _LoopContext(ctx, loop, offset))
            if values:
                gathered = twin.absorb(state_TD, gathered, halt_at)
        return self.network.readout(state_TD, gathered) if values else state_TD

    def coda(self, state_TD: Tensor, ctx: StageContext) -> Tensor:
        return self.network.coda(state_TD, ctx)

    def head(self, hidden_TD: Tensor) -> Tensor:
        return self.network.head(hidden_TD)

    def stage_parameters(self) -> dict[str, list[Tensor]]:
        """The core's weights once per copy; what no loop reads (an exit gate) is no longer run."""
        copied = [
            weight
            for twin in self._twins()
            for weight in twin.stage_parameters()["core"]
            if id(weight) not in self._boundary
        ]
        return {**self.network.stage_parameters(), "core": copied}

    def weight_map(self) -> dict[str, WeightSlot]:
        raise TypeError(
            f"{self.dims.model_type} has no checkpoint format: load the looped model and unroll it"
        )

    def _twins(self) -> list[StagedModel]:
        return [self.network, *cast("list[StagedModel]", list(self.copies))]


class _LoopContext:
    """One copy's view of the launch: its loop, and its layers after those of the copies before."""

    def __init__(self, ctx: StageContext, loop: int, layer_offset: int) -> None:
        self._ctx = ctx
        self._layer_offset = layer_offset
        self.positions = ctx.positions
        self.loops = torch.full_like(ctx.positions, loop)

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        return self._ctx.attend(self._layer_offset + layer, q_THE, k_TGE, v_TGE)


@torch.no_grad()
def core_parameters(network: StagedModel, loops: int) -> set[int]:
    """The ids of the parameters that a loop reads, found by running one token through ``loops``."""
    dims = network.dims
    state_1D = torch.zeros(1, dims.hidden_size, dtype=network.dtype, device=network.device)
    injection_1D = torch.zeros_like(state_1D) if dims.has_injection else None
    gathered_1M = at_least_float32(state_1D).new_zeros(1, dims.readout_values)
    ctx = _ProbeContext(network.device)
    with _ParametersRead() as read:
        for loop in range(1, loops + 1):
            state_1D = network.core(state_1D, injection_1D, _LoopContext(ctx, loop, 0))
            if dims.readout_values:
                network.absorb(state_1D, gathered_1M, gathered_1M.new_ones(1))
    return read.ids


class _ParametersRead(TorchFunctionMode):
    """Notes the parameters that torch functions are called with, however a model holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for value in (*args, *(kwargs or {}).values()):
            if isinstance(value, nn.Parameter):
                self.ids.add(id(value))
        return func(*args, **(kwargs or {}))


class _ProbeContext:
    """A stage context for one token at position 0, which attends to itself alone."""

    def __init__(self, device: torch.device) -> None:
        self.positions = torch.zeros(1, dtype=torch.int64, device=device)
        self.loops = torch.ones_like(self.positions)

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        return v_TGE.repeat_interleave(q_THE.shape[1] // v_TGE.shape[1], dim=1)


def _shared(network: StagedModel, own: set[int]) -> list[Any]:
    """What the copies have in common: other parameters, buffers, and sizes and tables on the side.

    Modules and what may contain some are copied; a rotary table of tens of megabytes is not.
    """
    aside = [
        value
        for module in network.modules()
        for value in vars(module).values()
        if not isinstance(value, (nn.Module, dict, list, set, tuple))
    ]
    parameters = [p for p in network.parameters() if id(p) not in own]
    return [*parameters, *network.buffers(), *aside]

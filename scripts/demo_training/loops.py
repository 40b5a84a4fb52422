"""A model over whole sequences, loop by loop, with rows that leave as they do when it is served.

A row that leaves after loop k keeps its loop-k keys and values for every deeper loop, which is what
later tokens find; its output is read from its state at loop k, and so are the keys that it has in
the coda. Only the core loops, so only the core's keys are held back; the coda runs over the
states as they stand, those of gone rows included, so that after the last loop it sees every row
where it left: exactly what a server's coda has read by then. Before the last loop the coda sees
prompts at the same loop, not at their last one: good enough for what is only helped along, or
decided, there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cdbench.models.base import StagedModel
from cdbench.models.layers import at_least_float32
from cdbench.models.sequence import SequenceContext
from cdbench.runtime.request_lines import FULL_MASS


class ExitContext(SequenceContext):
    """The core's context: an exited row keeps the keys and values of the last loop it ran."""

    def __init__(self, batch: int, length: int, device: torch.device) -> None:
        super().__init__(batch, length, device)
        self.exited = torch.zeros(batch * length, dtype=torch.bool, device=device)
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        if layer in self._kept:
            gone = self.exited[:, None, None]
            k_old, v_old = self._kept[layer]
            k_TGE, v_TGE = torch.where(gone, k_old, k_TGE), torch.where(gone, v_old, v_TGE)
        self._kept[layer] = (k_TGE, v_TGE)
        return super().attend(layer, q_THE, k_TGE, v_TGE)


@dataclass
class Loop:
    """What there is after one loop, for the whole ``[B·T]``."""

    number: int
    before: Tensor
    onward: Tensor
    """The states before and after this loop, as if every row had gone on (on frozen keys)."""
    state: Tensor
    """The states with those of gone rows as they left."""
    output: Tensor
    """What a server's coda reads, likewise: the state, or the halting mean."""
    mass_before: Tensor | None
    mass: Tensor | None
    """The halting mass before and after this loop, where the model has one."""
    ctx: ExitContext

    def leave(self, rows_N: Tensor, gone_N: Tensor) -> None:
        """Set which of these rows have left by now."""
        self.ctx.exited = self.ctx.exited.index_copy(0, rows_N, gone_N)


def loops_with_exits(
    model: StagedModel, ids_BT: Tensor, halt_at_T: Tensor | None = None
) -> Iterator[Loop]:
    """Every loop of the model; call ``leave`` between two of them.

    ``halt_at_T`` is the halting mass that ends a row, for a model with one (default: a full mean).
    """
    batch, length = ids_BT.shape
    device = ids_BT.device
    ctx = ExitContext(batch, length, device)
    boundary = SequenceContext(batch, length, device)
    state, injection = model.prelude(ids_BT.flatten(), boundary)
    kept = kept_output = state
    gathered: Tensor | None = None
    if model.dims.has_halting:
        gathered = torch.zeros(batch * length, model.dims.readout_values, device=device)
        if halt_at_T is None:
            halt_at_T = torch.full((batch * length,), FULL_MASS, device=device)
    for number in range(1, model.dims.max_loops + 1):
        # New tensors for every loop: a backward pass still needs the earlier ones.
        ctx.loops = torch.full_like(ctx.positions, number)
        before, state = state, model.core(state, injection, ctx)
        output, mass_before, mass = state, None, None
        if gathered is not None and halt_at_T is not None:
            mass_before = gathered[:, 0]
            # Halting is computed as it is served, not in the training's bfloat16.
            with torch.autocast(device.type, enabled=False):
                gathered = model.absorb(at_least_float32(state), gathered, halt_at_T)
                output = model.readout(at_least_float32(state), gathered)
            mass = gathered[:, 0]
        gone = ctx.exited[:, None]
        kept = torch.where(gone, kept, state) if number > 1 else state
        kept_output = torch.where(gone, kept_output, output) if number > 1 else output
        yield Loop(number, before, state, kept, kept_output, mass_before, mass, ctx)


def logits_of(model: StagedModel, state_TD: Tensor, loop: Loop, rows_N: Tensor) -> Tensor:
    """Float32 next-word logits ``[N, V]`` of some rows, read out from the states of all."""
    boundary = SequenceContext(loop.ctx.batch, loop.ctx.length, rows_N.device)
    return model.head(model.coda(state_TD, boundary).index_select(0, rows_N)).float()


def mixed_precision(device: torch.device) -> AbstractContextManager[object]:
    """Linear layers in bfloat16."""
    return torch.autocast(device.type, torch.bfloat16)


def attention_kernel(device: torch.device) -> AbstractContextManager[object]:
    """Plain products on a CPU: on short sequences its fused kernel is several times slower."""
    return sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()

"""The model's own forward over whole sequences: no cache, no schedule, no loop left out.

What layout ``per-loop`` computes at full depth by definition: at loop k every position reads the
others' loop-k keys. Only the model's stages are shared with the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cdbench.models.base import StagedModel
from cdbench.models.layers import at_least_float32
from cdbench.models.sequence import SequenceContext, loop_states
from cdbench.runtime.exit_rule import Needs
from cdbench.runtime.exits import RULES, suits
from cdbench.runtime.request_lines import FULL_MASS


@dataclass(frozen=True)
class Loop:
    """What one loop leaves at every position of one sequence."""

    before_TD: Tensor
    state_TD: Tensor
    gathered_TM: Tensor


def loops(network: StagedModel, ids: Sequence[int]) -> Iterator[Loop]:
    """Every loop over one sequence. ``before`` loop 1 is the prelude's state."""
    ids_1T = torch.tensor([list(ids)], device=network.device)
    before, _ = network.prelude(ids_1T[0], _context(network, len(ids)))
    gathered = at_least_float32(before).new_zeros(len(ids), network.dims.readout_values)
    halt_at = torch.full((len(ids),), FULL_MASS, dtype=torch.float64, device=network.device)
    for state in loop_states(network, ids_1T):
        gathered = network.absorb(state, gathered, halt_at)
        yield Loop(before, state, gathered)
        before = state


def read_out(network: StagedModel, loop: Loop) -> Tensor:
    """Logits ``[T, V]`` of every position after a loop."""
    state = loop.state_TD
    if network.dims.readout_values:
        state = network.readout(state, loop.gathered_TM)
    return network.head(network.coda(state, _context(network, state.shape[0])))


@torch.inference_mode()
def full_depth_logits(network: StagedModel, ids: Sequence[int]) -> Tensor:
    """Logits ``[T, V]`` of every position at full depth."""
    *_, last = loops(network, ids)
    return read_out(network, last)


@torch.inference_mode()
def signals(network: StagedModel, ids: Sequence[int]) -> dict[str, Tensor]:
    """Every rule's signal ``[R, T]`` over a sequence whose tokens all run full depth."""
    rules = [r for r in RULES.values() if r.needs is not Needs.NOTHING and suits(r, network.dims)]
    memory: dict[str, Tensor] = {}
    found: dict[str, list[Tensor]] = {rule.name: [] for rule in rules}
    for loop in loops(network, ids):
        evidence: dict[Needs, tuple[Tensor, ...]] = {
            Needs.STATES: (loop.state_TD, loop.before_TD),
            Needs.LOGITS: (read_out(network, loop),),
        }
        if network.dims.has_exit_gate:
            evidence[Needs.GATE] = (network.exit_logit(loop.state_TD),)
        if network.dims.has_halting:
            evidence[Needs.HALTING] = (loop.gathered_TM[:, 0],)
        for rule in rules:
            if rule.name not in memory:
                start = rule.memory_start(network.dims).to(loop.gathered_TM)
                memory[rule.name] = start.repeat(len(ids), 1)
            signal = rule.signal(evidence[rule.needs], memory[rule.name])
            found[rule.name].append(signal.double().clone())
    return {name: torch.stack(values) for name, values in found.items()}


@torch.inference_mode()
def rounding_noise(network: StagedModel, ids: Sequence[int]) -> float:
    """What errors of one rounding do to the logits, as a share of the largest (at least 1).

    The whole forward once more, with every loop's state and all that goes into and comes out of
    attention off by one rounding, at random. A model may be so sensitive to rounding that in this
    dtype nothing else can be told from it; this says how sensitive it is.
    """
    exact = full_depth_logits(network, ids).double()
    noise = _Noise(network)
    ctx = noise.context(len(ids), 1)
    state, injection = network.prelude(torch.tensor(list(ids), device=network.device), ctx)
    gathered = at_least_float32(state).new_zeros(len(ids), network.dims.readout_values)
    halt_at = torch.full((len(ids),), FULL_MASS, dtype=torch.float64, device=network.device)
    for loop in range(1, network.dims.max_loops + 1):
        ctx = noise.context(len(ids), loop)
        state = noise.on(network.core(noise.on(state), injection, ctx))
        gathered = network.absorb(state, gathered, halt_at)
    if network.dims.readout_values:
        state = network.readout(state, gathered)
    hidden = network.coda(state, noise.context(len(ids), 1))
    gap_T = (network.head(noise.on(hidden)).double() - exact).abs().amax(-1)
    return float((gap_T / exact.abs().amax(-1).clamp(min=1.0)).max())


class _Noise:
    """Random errors of the size of one rounding; the same every time."""

    def __init__(self, network: StagedModel) -> None:
        self.network = network
        self.step = torch.finfo(network.dtype).eps
        self._draw = torch.Generator().manual_seed(0)

    def on(self, values: Tensor) -> Tensor:
        errors = torch.randn(values.shape, generator=self._draw).to(values.device)
        precise = at_least_float32(values)
        return (precise * (1 + self.step * errors.to(precise.dtype))).to(values.dtype)

    def context(self, length: int, loop: int) -> SequenceContext:
        ctx = _NoisyContext(self, length)
        ctx.loops = torch.full_like(ctx.positions, loop)
        return ctx


class _NoisyContext(SequenceContext):
    def __init__(self, noise: _Noise, length: int) -> None:
        super().__init__(1, length, noise.network.device)
        self._noise = noise

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        given = (self._noise.on(x) for x in (q_THE, k_TGE, v_TGE))
        return self._noise.on(super().attend(layer, *given))


def _context(network: StagedModel, length: int) -> SequenceContext:
    return SequenceContext(1, length, network.device)

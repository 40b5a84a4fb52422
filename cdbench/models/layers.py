"""The few layers every decoder here is made of.

Norms and rotary angles are computed in float32 *or better*: a float64 model is float64 throughout,
so that a proof in float64 has no float32 island in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cdbench.models.base import StageContext, WeightSlot


def at_least_float32(x: Tensor) -> Tensor:
    """``x`` in float32, or unchanged where it is already float32 or float64."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


class RMSNorm(nn.Module):
    """Root-mean-square norm: normalised in float32 or better, cast back, then scaled."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype in (torch.float32, torch.float64):
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        normed = F.rms_norm(x.float(), self.weight.shape, None, self.eps)
        return normed.to(x.dtype) * self.weight


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are lowered to reach further than a model was first trained for.

    ``linear`` divides them all by ``factor``. ``llama3`` divides those that turn less than
    ``low_freq_factor`` times within the original context, keeps those that turn more than
    ``high_freq_factor`` times, and goes over smoothly in between.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192

    def apply(self, frequencies: Tensor) -> Tensor:
        """Radians per position ``[E / 2]``, scaled."""
        if self.kind == "linear":
            return frequencies / self.factor
        turns = self.original_positions * frequencies / (2 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        kept = ((turns - self.low_freq_factor) / span).clamp(0.0, 1.0)
        return kept * frequencies + (1.0 - kept) * frequencies / self.factor


class Rotary:
    """Rotate-half (NeoX) position embedding, angles tabulated once per device and precision."""

    def __init__(
        self,
        head_dim: int,
        theta: float,
        max_positions: int,
        scaling: RopeScaling | None = None,
    ) -> None:
        self.head_dim = head_dim
        self.theta = theta
        self.max_positions = max_positions
        self.scaling = scaling
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def at(self, positions_T: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin ``[T, 1, E]`` for a launch, in float32 or in ``dtype`` if that is float64."""
        precise = torch.float64 if dtype == torch.float64 else torch.float32
        key = (positions_T.device, precise)
        if key not in self._tables:
            self._tables[key] = self._build(*key)
        cos, sin = self._tables[key]
        return cos[positions_T], sin[positions_T]

    def _build(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        angles, sign = self._spread(self._angles(dtype))
        angles = angles[:, None, :]
        # The rotation's sign lives in the sine table, so that applying it is swap and multiply.
        return angles.cos().to(device), (angles.sin() * sign).to(device)

    def _angles(self, dtype: torch.dtype) -> Tensor:
        """Radians of every position and pair, ``[positions, E / 2]``."""
        exponents = torch.arange(0, self.head_dim, 2, dtype=dtype) / self.head_dim
        frequencies = self.theta**-exponents
        if self.scaling is not None:
            frequencies = self.scaling.apply(frequencies)
        return torch.outer(torch.arange(self.max_positions, dtype=dtype), frequencies)

    def _spread(self, angles: Tensor) -> tuple[Tensor, Tensor]:
        """Angles over the whole head ``[positions, E]``, and the sign of each sine ``[E]``."""
        sign = angles.new_ones(self.head_dim)
        sign[: self.head_dim // 2] = -1.0
        return torch.cat([angles, angles], dim=-1), sign


def rotate(x_THE: Tensor, cos_T1E: Tensor, sin_T1E: Tensor) -> Tensor:
    """Apply ``Rotary.at`` to query or key rows; computed in the tables' precision."""
    half = x_THE.shape[-1] // 2
    swapped = torch.cat([x_THE[..., half:], x_THE[..., :half]], dim=-1)
    return (x_THE * cos_T1E + swapped * sin_T1E).to(x_THE.dtype)


class Attention(nn.Module):
    """Grouped-query attention with fused q, k, v rows (in that order) and optional biases.

    With ``qk_norm_eps`` every query and key head is normed before its rotation.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        qkv_bias: bool = False,
        out_bias: bool = False,
        qk_norm_eps: float | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * head_dim, bias=qkv_bias)
        self.out = nn.Linear(heads * head_dim, hidden, bias=out_bias)
        self.q_norm, self.k_norm = (
            None if qk_norm_eps is None else RMSNorm(head_dim, qk_norm_eps) for _ in "qk"
        )

    def forward(
        self, x_TD: Tensor, rope: tuple[Tensor, Tensor], layer: int, ctx: StageContext
    ) -> Tensor:
        qkv = self.qkv(x_TD).unflatten(-1, (-1, self.head_dim))
        rotated = self.heads + self.kv_heads
        qk = qkv[:, :rotated]
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk[:, : self.heads], qk[:, self.heads :]
            qk = torch.cat([self.q_norm(q), self.k_norm(k)], dim=1)
        qk = rotate(qk, *rope)
        attended = ctx.attend(layer, qk[:, : self.heads], qk[:, self.heads :], qkv[:, rotated:])
        return self.out(attended.flatten(-2))

    def weight_map(self, ours: str, official: str) -> dict[str, WeightSlot]:
        q_rows, kv_rows = self.heads * self.head_dim, self.kv_heads * self.head_dim
        slots: dict[str, WeightSlot] = {}
        for kind in ("weight", "bias") if self.qkv.bias is not None else ("weight",):
            fused = f"{ours}.qkv.{kind}"
            slots[f"{official}.q_proj.{kind}"] = WeightSlot(fused, 0, q_rows)
            slots[f"{official}.k_proj.{kind}"] = WeightSlot(fused, q_rows, kv_rows)
            slots[f"{official}.v_proj.{kind}"] = WeightSlot(fused, q_rows + kv_rows, kv_rows)
        for kind in ("weight", "bias") if self.out.bias is not None else ("weight",):
            slots[f"{official}.o_proj.{kind}"] = WeightSlot(f"{ours}.out.{kind}")
        for name in ("q_norm", "k_norm") if self.q_norm is not None else ():
            slots[f"{official}.{name}.weight"] = WeightSlot(f"{ours}.{name}.weight")
        return slots


class GatedMLP(nn.Module):
    """SwiGLU: ``down(silu(gate(x)) * up(x))`` with gate and up rows fused."""

    def __init__(self, hidden: int, intermediate: int, bias: bool = False) -> None:
        super().__init__()
        self.intermediate = intermediate
        self.gate_up = nn.Linear(hidden, 2 * intermediate, bias=bias)
        self.down = nn.Linear(intermediate, hidden, bias=bias)

    def forward(self, x_TD: Tensor) -> Tensor:
        gate, up = self.gate_up(x_TD).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)

    def weight_map(self, ours: str, official: str) -> dict[str, WeightSlot]:
        slots: dict[str, WeightSlot] = {}
        for kind in ("weight", "bias") if self.down.bias is not None else ("weight",):
            fused = f"{ours}.gate_up.{kind}"
            slots[f"{official}.gate_proj.{kind}"] = WeightSlot(fused, 0, self.intermediate)
            slots[f"{official}.up_proj.{kind}"] = WeightSlot(
                fused, self.intermediate, self.intermediate
            )
            slots[f"{official}.down_proj.{kind}"] = WeightSlot(f"{ours}.down.{kind}")
        return slots


def gate_logit(gate: nn.Linear, state_TD: Tensor) -> Tensor:
    """One number per row ``[T]`` from a gate's weights, in float32 or better."""
    state = at_least_float32(state_TD)
    return F.linear(state, gate.weight.to(state.dtype), gate.bias.to(state.dtype))[:, 0]


def matrix_parameters(module: nn.Module) -> list[Tensor]:
    """The weights of every linear layer below ``module``: what its FLOPs are counted from."""
    return [m.weight for m in module.modules() if isinstance(m, nn.Linear)]

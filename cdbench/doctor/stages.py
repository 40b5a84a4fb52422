"""A model looked at without an engine: do its stages do what it declares, what is in it?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cdbench.doctor.document import Facts
from cdbench.models.base import StagedModel
from cdbench.models.layers import at_least_float32
from cdbench.models.sequence import SequenceContext
from cdbench.runtime.cache_shape import cache_shape
from cdbench.runtime.request_lines import FULL_MASS

LOOKS = (
    torch.Tensor.dtype.__get__,  # type: ignore[attr-defined]
    torch.Tensor.device.__get__,
    torch.Tensor.shape.__get__,  # type: ignore[attr-defined]
)
"""What may be asked of a parameter without reading it."""


@dataclass(frozen=True)
class StageReport:
    """``complaints`` about what the stages did; parameters that nothing read."""

    complaints: list[str]
    unread: list[str]


class _SeenContext(SequenceContext):
    """Attention over one sequence that notes each layer's call and the shapes it was given."""

    def __init__(self, model: StagedModel, length: int, loop: int = 1) -> None:
        super().__init__(1, length, model.device)
        self.loops = torch.full_like(self.positions, loop)
        self.layers: list[int] = []
        self.complaints: list[str] = []
        dims = model.dims
        self._shapes = {
            "query": (length, dims.heads, dims.head_dim),
            "key": (length, dims.kv_heads, dims.head_dim),
            "value": (length, dims.kv_heads, dims.head_dim),
        }

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        self.layers.append(layer)
        given = zip(self._shapes.items(), (q_THE, k_TGE, v_TGE), strict=True)
        self.complaints += [
            f"layer {layer}: shape of the {name}: {list(tensor.shape)}, declared {list(shape)}"
            for (name, shape), tensor in given
            if tuple(tensor.shape) != shape
        ]
        return super().attend(layer, q_THE, k_TGE, v_TGE)


class _Reading(TorchFunctionMode):
    """Notes the parameters that torch functions are called with, also inside lists."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func not in LOOKS:
            self._note([*args, *(kwargs or {}).values()])
        return func(*args, **(kwargs or {}))

    def _note(self, values: Any) -> None:
        for value in values:
            if isinstance(value, nn.Parameter):
                self.ids.add(id(value))
            elif isinstance(value, list | tuple):
                self._note(value)


@dataclass
class _Walk:
    """One sequence through every stage; complaints are gathered on the way."""

    model: StagedModel
    ids_T: Tensor
    complaints: list[str] = field(default_factory=list)

    def go(self) -> None:
        model, dims, length = self.model, self.model.dims, self.ids_T.shape[0]
        rows = (length, dims.hidden_size)
        ctx = _SeenContext(model, length)
        state, injection = model.prelude(self.ids_T, ctx)
        self._stage("prelude", ctx, dims.prelude_layers)
        self._shape("the prelude's state", state, rows)
        if dims.has_injection != (injection is not None):
            said = "declares" if dims.has_injection else "does not declare"
            self.complaints.append(f"prelude: the model {said} an injection")
        gathered = at_least_float32(state).new_zeros(length, dims.readout_values)
        halt_at = torch.full((length,), FULL_MASS, dtype=torch.float64, device=model.device)
        for loop in range(1, dims.max_loops + 1):
            ctx = _SeenContext(model, length, loop)
            state = model.core(state, injection, ctx)
            self._stage(f"core at loop {loop}", ctx, dims.core_layers)
            if dims.readout_values:
                gathered = model.absorb(state, gathered, halt_at)
                self._shape("the readout's memory", gathered, (length, dims.readout_values))
        self._shape("the core's state", state, rows)
        if dims.has_exit_gate:
            self._shape("the gate's logit", model.exit_logit(state), (length,))
        if dims.readout_values:
            state = model.readout(state, gathered)
        ctx = _SeenContext(model, length)
        hidden = model.coda(state, ctx)
        self._stage("coda", ctx, dims.coda_layers)
        self._shape("the logits", model.head(hidden), (length, dims.vocab_size))

    def _stage(self, name: str, ctx: _SeenContext, layers: int) -> None:
        self.complaints += [f"{name}: {complaint}" for complaint in ctx.complaints]
        if sorted(ctx.layers) != list(range(layers)):
            called = ", ".join(map(str, ctx.layers)) or "none"
            self.complaints.append(
                f"{name}: declares {layers} layers, attention was called by layers: {called}"
            )

    def _shape(self, what: str, tensor: Tensor, declared: tuple[int, ...]) -> None:
        if tuple(tensor.shape) != declared:
            self.complaints.append(
                f"shape of {what}: {list(tensor.shape)}, declared {list(declared)}"
            )


@torch.inference_mode()
def walk(model: StagedModel, ids: Sequence[int]) -> StageReport:
    """Run one sequence through every stage and every loop, and note what they do."""
    walked = _Walk(model, torch.tensor(list(ids), device=model.device))
    with _Reading() as reading:
        walked.go()
    unread = [name for name, value in model.named_parameters() if id(value) not in reading.ids]
    return StageReport(walked.complaints, unread)


def not_finite(model: StagedModel) -> list[str]:
    """Names of the parameters that hold NaN or infinity."""
    return [name for name, value in model.named_parameters() if not torch.isfinite(value).all()]


def tied(model: StagedModel) -> Iterator[str]:
    """``second = first`` for each parameter that is known by two names."""
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner = first.setdefault(id(parameter), name)
        if owner != name:
            yield f"{name} = {owner}"


def facts(model: StagedModel, layout: str, unread: list[str] | None) -> Facts:
    """What the model is; KV bytes are those of a token at full depth in this layout."""
    dims = model.dims
    return Facts(
        model_type=dims.model_type,
        parameters=model.parameter_count(),
        weight_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        tied_parameters=list(tied(model)),
        not_finite_parameters=not_finite(model),
        unread_parameters=unread,
        layers=dims.layers_by_stage,
        loops=dims.max_loops,
        hidden_size=dims.hidden_size,
        heads=dims.heads,
        kv_heads=dims.kv_heads,
        head_dim=dims.head_dim,
        vocab_size=dims.vocab_size,
        max_positions=dims.max_positions,
        has_exit_gate=dims.has_exit_gate,
        has_injection=dims.has_injection,
        has_halting=dims.has_halting,
        cost_ratio=model.flops_per_token().ratio,
        kv_bytes_per_token=cache_shape(dims, layout, dims.max_loops, model.dtype).position_bytes,
    )

"""The stages of a model through ``torch.compile``: fewer, fused operations for the same sums.

Prelude, core, coda and head are compiled whole, each for any number of rows. Attention stays what
it is: to the compiler it is one opaque operation, ``cdbench::attend``, which hands a layer's rows
to the context of the launch under way. So a stage is one graph under every attention backend,
nothing of the cache is traced, and what a launch reads and writes happens in the order of the
layers, since each layer needs what the one before answered.

Compiling changes how sums round, and nothing else: in float64 tokens and depths stay the same.

Models that are compiled may run side by side: which launch is under way is known per thread, from
the call of a stage until it returns.
"""

from __future__ import annotations

import functools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from cdbench.errors import UsageError
from cdbench.models.base import StageContext, StagedModel
from cdbench.models.forwarding import ForwardingModel
from cdbench.models.sequence import SequenceContext

MOST_VARIANTS = 64
"""Graphs of one stage that a process may hold, over all its models: one for a single row and one
for more, for each model. Beyond torch's own limit it would run them uncompiled without a word."""

_UNDER_WAY: ContextVar[StageContext] = ContextVar("launch under way")
_COMPILE_S: WeakKeyDictionary[StagedModel, float] = WeakKeyDictionary()
"""Seconds that compiling each network took; compiled code is kept as long as its network."""


def check_compile(device: torch.device) -> None:
    """Raise UsageError where this machine has no compiler for the device's code."""
    if device.type == "cpu":
        compiler = os.environ.get("CXX", "g++")
        if shutil.which(compiler) is None:
            raise UsageError(
                f"engine.compile: needs a C++ compiler on the CPU, and {compiler} is not there; "
                "install it, or use false"
            )
    elif not has_triton():
        raise UsageError(
            "engine.compile: needs the package triton on a GPU, and it cannot be imported; "
            "install it, or use false"
        )


@functools.cache
def has_triton() -> bool:
    """Whether Triton can be imported here."""
    try:
        import triton  # noqa: F401
    except Exception:  # a build for another machine fails in ways of its own
        return False
    return True


def compiled(network: StagedModel, rows: int) -> StagedModel:
    """``network`` with its stages compiled, here and now, for launches of about ``rows`` rows.

    The weights are the network's own. A network is compiled once in a process; what that took is
    ``CompiledModel.compile_s``. Raises UsageError where the compiler fails.
    """
    if isinstance(network, CompiledModel):
        return network
    model = CompiledModel(network)
    if network not in _COMPILE_S:
        _COMPILE_S[network] = _warm_up(model, rows)
    return model


def compile_seconds(network: StagedModel) -> float | None:
    """Seconds that compiling a network took in this process; None where it was not compiled."""
    return _COMPILE_S.get(network)


class CompiledModel(ForwardingModel):
    """A model whose stages run compiled; all the rest is the network's own."""

    def prelude(self, ids_T: Tensor, ctx: StageContext) -> tuple[Tensor, Tensor | None]:
        with _launch(ctx) as where:
            return _compile(_prelude)(self.network, _at_the_start(ids_T), *where)

    def core(self, state_TD: Tensor, injection_TD: Tensor | None, ctx: StageContext) -> Tensor:
        if injection_TD is not None:
            injection_TD = _at_the_start(injection_TD)
        with _launch(ctx) as where:
            return _compile(_core)(self.network, _at_the_start(state_TD), injection_TD, *where)

    def coda(self, state_TD: Tensor, ctx: StageContext) -> Tensor:
        with _launch(ctx) as where:
            return _compile(_coda)(self.network, _at_the_start(state_TD), *where)

    def head(self, hidden_TD: Tensor) -> Tensor:
        return _compile(_head)(self.network, _at_the_start(hidden_TD))


# What is compiled: functions of a network and tensors, so that all models share their code.


class _TracedContext:
    """The context that layers are traced with: tensors, and attention as one operation."""

    def __init__(self, positions_T: Tensor, loops_T: Tensor) -> None:
        self.positions, self.loops = positions_T, loops_T

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        answer: Tensor = torch.ops.cdbench.attend(layer, q_THE, k_TGE, v_TGE)
        return answer


def _prelude(
    network: StagedModel, ids_T: Tensor, positions_T: Tensor, loops_T: Tensor
) -> tuple[Tensor, Tensor | None]:
    return network.prelude(ids_T, _TracedContext(positions_T, loops_T))


def _core(
    network: StagedModel,
    state_TD: Tensor,
    injection_TD: Tensor | None,
    positions_T: Tensor,
    loops_T: Tensor,
) -> Tensor:
    return network.core(state_TD, injection_TD, _TracedContext(positions_T, loops_T))


def _coda(network: StagedModel, state_TD: Tensor, positions_T: Tensor, loops_T: Tensor) -> Tensor:
    return network.coda(state_TD, _TracedContext(positions_T, loops_T))


def _head(network: StagedModel, hidden_TD: Tensor) -> Tensor:
    return network.head(hidden_TD)


@torch.library.custom_op(
    "cdbench::attend",
    mutates_args=(),
    schema="(int layer, Tensor q_THE, Tensor k_TGE, Tensor v_TGE) -> Tensor",
)
def _attend(layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
    # The cache is written too; that is seen by the next layers' calls alone, which come after.
    return _UNDER_WAY.get().attend(layer, q_THE, k_TGE, v_TGE).contiguous()


@_attend.register_fake
def _attended(layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
    return q_THE.new_empty(q_THE.shape)


@functools.cache
def _compile(stage: Callable[..., Any]) -> Callable[..., Any]:
    """A stage's function, compiled for any number of rows when it is first called."""
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, MOST_VARIANTS)
    return torch.compile(stage, dynamic=True)


@contextmanager
def _launch(ctx: StageContext) -> Iterator[tuple[Tensor, Tensor]]:
    """Make this the launch under way; its rows' positions and loops."""
    token = _UNDER_WAY.set(ctx)
    try:
        yield _at_the_start(ctx.positions), _at_the_start(ctx.loops)
    finally:
        _UNDER_WAY.reset(token)


def _at_the_start(rows: Tensor) -> Tensor:
    """Rows that begin their memory: a cut from a larger tensor would be compiled for anew."""
    return rows.clone() if rows.storage_offset() else rows


# Before the first launch.


@torch.inference_mode()
def _warm_up(model: CompiledModel, rows: int) -> float:
    """Compile every stage, for many rows and for one; the seconds that took."""
    many, one = max(2, rows), 1
    # Uncompiled first: tables made on the way are not traced, and a model's own errors are its own.
    _pass(model.network, one)
    began = time.monotonic()
    try:
        for count in (many, one):
            _pass(model, count)
    except Exception as error:  # the compiler's parts raise errors of all kinds
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"engine.compile: torch.compile failed ({why}); use false") from error
    return time.monotonic() - began


def _pass(model: StagedModel, rows: int) -> None:
    """One launch of each stage, on rows that stand each at the beginning of a text of its own."""
    ctx = SequenceContext(rows, 1, model.device)
    ids_T = torch.zeros(rows, dtype=torch.int64, device=model.device)
    state_TD, injection_TD = model.prelude(ids_T, ctx)
    model.head(model.coda(model.core(state_TD, injection_TD, ctx), ctx))

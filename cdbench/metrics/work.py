"""Floating-point operations of a whole workload: prompts, first tokens and attention included.

``flop_bound`` counts the matrix products of one later token. Here everything counts: prompts at
full depth, their one readout each, and attention, 4·context·heads·head_dim for every query and
layer application (two products, a multiplication and an addition each).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cdbench.metrics.bounds import Bound, Scope, below_one
from cdbench.metrics.ideal import LaterTokens


@dataclass(frozen=True)
class ModelWork:
    """What a model's stages cost, as plain numbers.

    ``prelude``, ``core`` (one loop), ``coda_body`` and ``head`` are FLOPs per token; together the
    last two are F_k. ``…_layers`` count layers with attention. ``attention`` is FLOPs per query,
    layer and position attended to: 4·heads·head_dim. Counts are whole numbers in float fields, so
    that a stored record reads back as it was.
    """

    prelude: float
    core: float
    coda_body: float
    head: float
    prelude_layers: float
    core_layers: float
    coda_layers: float
    attention: float
    max_loops: float


def decode_flops(
    work: ModelWork, tokens: LaterTokens, *, readout_every_loop: bool = False
) -> float:
    """FLOPs of later tokens at their loops, each at its own context."""
    readouts = tokens.loops if readout_every_loop else 1.0
    matrices = (
        work.prelude + tokens.loops * work.core + readouts * (work.coda_body + work.head)
    ).sum()
    layers = work.prelude_layers + tokens.loops * work.core_layers + readouts * work.coda_layers
    return float(matrices + work.attention * (tokens.contexts * layers).sum())


def prompt_flops(work: ModelWork, prompts: Iterable[int]) -> float:
    """FLOPs of prompts at full depth; coda layers run over all positions, the head over the last.

    Position p attends to p positions, counted from 1, so a prompt of n has n·(n + 1)/2 pairs.
    """
    per_token = work.prelude + work.max_loops * work.core + work.coda_body
    layers = work.prelude_layers + work.max_loops * work.core_layers + work.coda_layers
    return sum(
        n * per_token + work.head + work.attention * layers * n * (n + 1) / 2 for n in prompts
    )


def work_bound(
    work: ModelWork,
    prompts: Iterable[int],
    static: LaterTokens,
    adaptive: LaterTokens,
    *,
    readout_every_loop: bool = False,
) -> Bound:
    """Total FLOPs of static / total FLOPs of adaptive, e2e scope.

    ``static`` are the later tokens at R, ``adaptive`` the same tokens at their requested depths.
    """
    shared = prompt_flops(work, prompts)
    full = shared + decode_flops(work, static)
    value = full / (shared + decode_flops(work, adaptive, readout_every_loop=readout_every_loop))
    return Bound("work_bound", value, Scope.E2E, below_one(value))

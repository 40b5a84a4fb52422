"""What a request must satisfy before it may wait for a place."""

from __future__ import annotations

import math

from cdbench.errors import UsageError
from cdbench.models.base import ModelDims
from cdbench.runtime.core import Request, SamplingParams
from cdbench.runtime.exit_checks import check_policy


def check_request(
    request: Request, dims: ModelDims, max_loops: int, has_tokenizer: bool = False
) -> None:
    """Raise UsageError, naming the request, where it is malformed in itself."""
    what = f"request {request.id!r}"
    _check_tokens(request, dims, what)
    if not math.isfinite(request.arrival_s):
        raise UsageError(f"{what}: arrives at {request.arrival_s} s; give a finite time")
    if request.stop_strings and not has_tokenizer:
        raise UsageError(f"{what}: stop strings need a tokenizer; use stop ids")
    if "" in request.stop_strings:
        raise UsageError(f"{what}: a stop string is empty; drop it")
    _check_sampling(request.sampling, what)
    check_policy(request.exit, dims, max_loops)
    _check_replay(request, max_loops, what)


def _check_tokens(request: Request, dims: ModelDims, what: str) -> None:
    if not len(request.prompt):
        raise UsageError(f"{what}: the prompt is empty; give at least one token")
    ids = [*request.prompt, *(request.force if request.force is not None else ())]
    wrong = next((t for t in ids if not 0 <= t < dims.vocab_size), None)
    if wrong is not None:
        raise UsageError(
            f"{what}: token id {wrong} is outside the vocabulary; use 0 to {dims.vocab_size - 1}"
        )
    if request.new_tokens < 1:
        raise UsageError(f"{what}: asks for {request.new_tokens} new tokens; ask for at least 1")
    if request.positions > dims.max_positions:
        raise UsageError(
            f"{what}: {len(request.prompt)} prompt tokens and {request.new_tokens} new ones exceed "
            f"the model's {dims.max_positions} positions; shorten the prompt or lower "
            "max_new_tokens"
        )


def _check_sampling(params: SamplingParams, what: str) -> None:
    if not (math.isfinite(params.temperature) and params.temperature >= 0):
        raise UsageError(f"{what}: temperature is {params.temperature}; use 0 (greedy) or more")
    if params.top_k < 0:
        raise UsageError(f"{what}: top_k is {params.top_k}; use 0 (all tokens) or more")
    if not 0 < params.top_p <= 1:
        raise UsageError(f"{what}: top_p is {params.top_p}; use above 0 and at most 1")


def _check_replay(request: Request, max_loops: int, what: str) -> None:
    depths = request.replay_depths
    if depths is None:
        if request.exit.rule == "trace":
            raise UsageError(f"{what}: exit rule 'trace' needs recorded depths; replay a recording")
        return
    if request.force is None or len(depths) != len(request.force):
        raise UsageError(f"{what}: replayed depths need as many forced tokens; record both")
    wrong = next((d for d in depths[1:] if not 1 <= d <= max_loops), None)
    if wrong is not None:
        raise UsageError(
            f"{what}: recorded depth {wrong} is out of range; this run has {max_loops} loops"
        )

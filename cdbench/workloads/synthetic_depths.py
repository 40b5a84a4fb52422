"""Synthetic depths: what a schedule does under a distribution of depths that no model chose.

The recorded tokens are forced as ever, and every later token leaves at a depth drawn here; the
exit rule still runs live and is paid for. Such a result says how schedules compare under that
distribution and nothing about a model, so it is marked.

A request's depths depend on the seed and its own id alone: a request has the same depths whatever
runs beside it. The distributions, over depths 1 to R of later tokens:

- ``full``, ``shallow``: every token at R, at 1;
- ``bimodal``: each token at 1 or at R, with equal chances;
- ``clustered``: every token of a request at R (one request in five) or at 1;
- ``shallow-heavy``: depth d in proportion to R + 1 - d (at R = 4: .4 .3 .2 .1);
- ``deep-heavy``: the mirror of it, in proportion to d;
- ``serial:RHO``: uniform over 1 to R, a token keeping the depth of the one before with chance RHO,
  else drawing anew, so that RHO is the correlation of two tokens in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from cdbench.grammar import DepthSpec
from cdbench.workloads.draws import stream

if TYPE_CHECKING:
    from numpy.random import RandomState

    from cdbench.runtime.core import FloatArray, IntArray

DEEP_SHARE = 0.2
"""Share of the requests that are deep under ``clustered``."""


def depths_of(
    spec: DepthSpec, request_id: str, tokens: int, max_loops: int, seed: int, min_loops: int = 1
) -> tuple[int, ...]:
    """The depths of a request of so many tokens; entry 0, the first token's, is R.

    ``min_loops`` is a floor on them, as on any executed depth.
    """
    assert spec.synthetic, "recorded depths are not drawn"
    random = stream(f"depths/{spec}/{request_id}", seed)
    later = np.maximum(_later(spec, random, max(0, tokens - 1), max_loops), min_loops)
    return tuple([max_loops, *later.tolist()][:tokens])


def mark(spec: DepthSpec, seed: int) -> str:
    """What a result with these depths must say."""
    return f"synthetic depths: {spec} (seed {seed}), not those of a model"


Work = TypeVar("Work", bound=Any)
"""A frozen dataclass of recorded work: ``id``, ``tokens``, ``executed_`` and ``requested_depths``.

Any, because no protocol can say that ``replace`` works on it.
"""


def with_depths(
    requests: Sequence[Work], spec: DepthSpec, max_loops: int, seed: int, min_loops: int = 1
) -> list[Work]:
    """Recorded requests with synthetic depths, executed and requested alike."""
    found = []
    for request in requests:
        depths = depths_of(spec, request.id, len(request.tokens), max_loops, seed, min_loops)
        found.append(replace(request, executed_depths=depths, requested_depths=depths))
    return found


def _later(spec: DepthSpec, random: RandomState, tokens: int, max_loops: int) -> IntArray:
    if spec.name == "clustered":
        deep = random.random_sample() < DEEP_SHARE
        return np.full(tokens, max_loops if deep else 1)
    if spec.name == "serial":
        assert spec.correlation is not None
        return _serial(random, tokens, max_loops, spec.correlation)
    return _drawn(random.random_sample(tokens), weights(spec.name, max_loops))


def weights(name: str, max_loops: int) -> FloatArray:
    """Probabilities of depths 1 to R ``[R]`` for distributions that draw each token by itself."""
    depth = np.arange(1, max_loops + 1)
    shape = {
        "full": depth == max_loops,
        "shallow": depth == 1,
        "bimodal": (depth == 1).astype(float) + (depth == max_loops),
        "shallow-heavy": max_loops + 1 - depth,
        "deep-heavy": depth,
        "serial": np.ones(max_loops),
    }[name].astype(np.float64)
    share: FloatArray = shape / shape.sum()
    return share


def _serial(random: RandomState, tokens: int, max_loops: int, correlation: float) -> IntArray:
    fresh = _drawn(random.random_sample(tokens), weights("serial", max_loops))
    draws_anew = random.random_sample(tokens) >= correlation
    if tokens:
        draws_anew[0] = True
    # Every token has the depth of the last one that drew.
    last = np.maximum.accumulate(np.where(draws_anew, np.arange(tokens), 0))
    return fresh[last]


def _drawn(uniform: FloatArray, probability: FloatArray) -> IntArray:
    """Depths by inverse CDF; the last bin takes what rounding leaves."""
    edges = probability.cumsum()[:-1]
    depths: IntArray = np.searchsorted(edges, uniform, side="right").astype(np.int64) + 1
    return depths

"""The demo models' own questions as requests, and where two engines part on them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cdbench.bench.plan import Plan, make_plan
from cdbench.evals.tasks import load_task
from cdbench.runtime.core import Request, RequestResult
from cdbench.workloads.resolve import stops
from scripts.gpu_parts.check import Check

LOOPED_DEMOS = ("demo-ouro", "demo-huginn", "demo-ut")
PER_TASK = 3
"""Questions of each task on a model's card; tiny, one."""
TINY_TOKENS = 8
"""Longest output, tiny."""

Served = dict[str, RequestResult]


def questions(
    check: Check, model: str, dtype: str, keys: dict[str, Any] | None = None
) -> tuple[Plan, list[Request]]:
    """A demo under its own exit rule, and some of its tasks' questions as requests.

    ``keys`` are laid over the configuration. UsageError for those that are refused.
    """
    flags = {"model": model, "dtype": dtype, "dense": "", "work": "equal"}
    flags |= {"workload.source": "random", "stages": "none", **(keys or {})}
    plan = make_plan(check.config(flags), check.once)
    limit = 1 if check.tiny else PER_TASK
    requests = []
    for task in (load_task(name, limit) for name in plan.model.card.tasks):
        stop_ids, stop_strings = stops(plan.model, task.stops)
        requests += [
            Request(
                id=f"{task.name}/{document.doc_id}",
                prompt=plan.model.encode(document.prompt),
                max_new_tokens=TINY_TOKENS if check.tiny else task.max_new_tokens,
                exit=plan.policy,
                stop_ids=stop_ids | plan.model.stop_ids,
                stop_strings=stop_strings,
            )
            for document in task.documents
        ]
    return plan, requests


@dataclass(frozen=True)
class Parted:
    """Where two engines differ on the same requests.

    ``first_tokens``: of each request that differs, in how many tokens both agree before they part.
    ``logprob_difference``: the largest over the tokens that both have before that.
    """

    requests: int
    first_tokens: tuple[int, ...]
    logprob_difference: float

    def as_found(self) -> dict[str, Any]:
        """For the document. A logprob that is no number differs without end: null."""
        difference = self.logprob_difference
        return {
            "requests": self.requests,
            "changed": len(self.first_tokens),
            "first_divergence_tokens": min(self.first_tokens, default=None),
            "largest_logprob_difference": difference if math.isfinite(difference) else None,
        }


def by_id(results: Iterable[RequestResult]) -> Served:
    """Results by their request's id."""
    return {result.id: result for result in results}


def parted(one: Served, other: Served) -> Parted:
    """Compare tokens, executed depths and logprobs of two runs of the same requests.

    Raises:
        ValueError: they are not the same requests.
    """
    if one.keys() != other.keys():
        raise ValueError("the two runs have different requests")
    first_tokens, difference = [], 0.0
    for name, a in one.items():
        b = other[name]
        same = _agreeing_tokens(a, b)
        if (a.tokens, a.executed_depths) != (b.tokens, b.executed_depths):
            first_tokens.append(same)
        for x, y in zip(a.logprobs[:same], b.logprobs[:same], strict=True):
            distance = abs(x - y)
            difference = math.inf if math.isnan(distance) else max(difference, distance)
    return Parted(len(one), tuple(first_tokens), difference)


def _agreeing_tokens(a: RequestResult, b: RequestResult) -> int:
    """Tokens at the start that are equal and took equal depths."""
    pairs = zip(zip(a.tokens, a.executed_depths, strict=True), _steps(b), strict=False)
    shorter = min(len(a.tokens), len(b.tokens))
    return next((i for i, (x, y) in enumerate(pairs) if x != y), shorter)


def _steps(result: RequestResult) -> list[tuple[int, int]]:
    return list(zip(result.tokens, result.executed_depths, strict=True))

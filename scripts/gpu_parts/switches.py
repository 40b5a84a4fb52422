"""Parts that serve the same requests with one engine key on and off.

In float64 tokens and depths must be the same: the key changes how launches are made and not what
they compute. In bfloat16 the share of requests that differ is told and is no fault, because
padded or otherwise blocked kernels round otherwise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from cdbench.errors import UsageError
from cdbench.grammar import parse_mode
from scripts.gpu_parts.check import Check, NotAvailable
from scripts.gpu_parts.demos import LOOPED_DEMOS, Served, by_id, parted, questions

EXACT_DTYPE = "float64"


class Case(NamedTuple):
    """One comparison of two engines."""

    dtype: str
    mode: str
    lag: int


CASES = (
    Case(EXACT_DTYPE, "cdb", 0),
    Case(EXACT_DTYPE, "cdb", 1),
    Case(EXACT_DTYPE, "lockstep", 0),
    Case("bfloat16", "cdb", 0),
)


def graphs(check: Check, found: dict[str, Any]) -> None:
    """Launches captured as graphs, and launches made one kernel at a time.

    With the attention that timed parts will use, so that a fault of one key is not the other's.
    """
    kept = check.proven_keys()
    compare(check, found, {**kept, "engine.graphs": True}, {**kept, "engine.graphs": False})


def attention(check: Check, found: dict[str, Any]) -> None:
    """The Triton kernel, and torch's own attention over gathered rows."""
    compare(check, found, {"engine.attention": "triton"}, {"engine.attention": "sdpa"})


def compare(check: Check, found: dict[str, Any], on: dict[str, Any], off: dict[str, Any]) -> None:
    """Serve demo questions under both, case by case; changed tokens in float64 are faults.

    Raises NotAvailable where ``on`` is refused and ``off`` is not.
    """
    found["on"], found["off"], found["faults"] = on, off, 0
    for name in LOOPED_DEMOS[:1] if check.tiny else LOOPED_DEMOS[:2]:
        for case in CASES:
            without = _served(check, name, case, off)
            try:
                with_it = _served(check, name, case, on)
            except UsageError as error:
                raise NotAvailable(str(error)) from None
            told = parted(without, with_it).as_found()
            found[f"{name} {case.dtype} {case.mode} lag {case.lag}"] = told
            if case.dtype == EXACT_DTYPE:
                found["faults"] += told["changed"]


def _served(check: Check, name: str, case: Case, keys: dict[str, Any]) -> Served:
    plan, requests = questions(check, name, case.dtype, {**keys, "exit.lag": case.lag})
    return by_id(plan.engine(plan.subject(parse_mode(case.mode))).run(requests))

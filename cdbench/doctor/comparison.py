"""Two services of the same requests: where they first differ, and whether rounding explains it.

In float64 outputs must agree: every token, every depth, logprobs within 1e-9. Only a token whose
two best logits lie closer than that may fall either way; what follows it is set aside. In any other
dtype matrix kernels round by the shape of a batch, so a token may change where its margin is within
what rounding does to this model's logits (measured: ``whole.rounding_noise``), and an exit where
its signal lies at the threshold. Such a request counts as changed by rounding. A token that changes
at a larger margin is wrong in every dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from cdbench.doctor.document import Difference
from cdbench.doctor.serving import Served, Step
from cdbench.runtime.core import RequestResult


@dataclass(frozen=True)
class Tolerance:
    """How far logits and logprobs may lie apart, as a share of the largest logit (at least 1)."""

    share: float
    exact: bool = False

    def allows(self, gap: float, scale: float | None) -> bool:
        """Whether a gap is within it; NaN never is."""
        size = 1.0 if self.exact or scale is None else max(1.0, scale)
        return gap <= self.share * size


EXACT = Tolerance(1e-9, exact=True)


@dataclass
class Comparison:
    """What comparing services has found so far; one check may compare several."""

    tolerance: Tolerance
    services: int = 0
    requests: int = 0
    tokens: int = 0
    near_ties: int = 0
    """Requests set aside from a token on whose two best logits are equal, as far as can be told."""
    by_rounding: list[Difference] = field(default_factory=list)
    wrong: list[Difference] = field(default_factory=list)
    logprob_gap: float = 0.0
    """Largest, before any difference."""

    def add(self, expected: Served, found: Mapping[str, RequestResult]) -> None:
        """Hold one service to another, request by request."""
        self.services += 1
        for name, result in found.items():
            self.requests += 1
            self._hold(name, expected, result)

    def note(self, difference: Difference) -> None:
        """Count a difference as what it is."""
        if difference.what == "token" and self._is_near_tie(difference):
            if self.tolerance.exact:
                self.near_ties += 1
            else:
                self.by_rounding.append(difference)
        elif difference.what == "depth" and not self.tolerance.exact:
            self.by_rounding.append(difference)
        else:
            self.wrong.append(difference)

    def _is_near_tie(self, difference: Difference) -> bool:
        margin = difference.margin
        return margin is not None and self.tolerance.allows(margin, difference.scale)

    def _hold(self, name: str, expected: Served, found: RequestResult) -> None:
        wanted, steps = expected.results[name], expected.steps.get(name, [])
        for index in range(max(len(wanted.tokens), len(found.tokens))):
            what = _differs(wanted, found, index)
            step = steps[index] if index < len(steps) else None
            if what is None:
                gap = abs(wanted.logprobs[index] - found.logprobs[index])
                if not self.tolerance.allows(gap, step.scale if step else None):
                    what = "logprob"
                else:
                    self.logprob_gap = max(self.logprob_gap, gap)
            if what is not None:
                self.note(_difference(what, name, index, wanted, found, step))
                return
            self.tokens += 1
        if wanted.stop_depth != found.stop_depth or wanted.error != found.error:
            self.note(_difference("depth", name, len(wanted.tokens), wanted, found, None))


def _differs(wanted: RequestResult, found: RequestResult, index: int) -> str | None:
    """What differs at a place: the depth comes first, a token follows from it."""
    if index >= min(len(wanted.tokens), len(found.tokens)):
        return "token"
    for depths in ("executed_depths", "requested_depths"):
        if getattr(wanted, depths)[index] != getattr(found, depths)[index]:
            return "depth"
    return "token" if wanted.tokens[index] != found.tokens[index] else None


def _difference(
    what: str,
    name: str,
    index: int,
    wanted: RequestResult,
    found: RequestResult,
    step: Step | None,
) -> Difference:
    def at(values: list[int] | list[float]) -> int | float | None:
        return values[index] if index < len(values) else None

    return Difference.model_validate(
        {
            "what": what,
            "request": name,
            "token_index": index,
            "expected_token": at(wanted.tokens),
            "found_token": at(found.tokens),
            "expected_depth": at(wanted.executed_depths) or wanted.stop_depth,
            "found_depth": at(found.executed_depths) or found.stop_depth,
            "expected_logprob": at(wanted.logprobs),
            "found_logprob": at(found.logprobs),
            "margin": None if step is None else step.margin,
            "scale": None if step is None else step.scale,
        }
    )


def in_words(difference: Difference) -> str:
    """``request 3, token 5: 17 at depth 2, expected 12 at depth 3 (top-2 margin 0.31)``."""
    found = _token_words(difference.found_token, difference.found_depth)
    expected = _token_words(difference.expected_token, difference.expected_depth)
    words = f"request {difference.request}, token {difference.token_index}: "
    if difference.what == "logprob":
        words += (
            f"logprob {_number(difference.found_logprob)}, expected "
            f"{_number(difference.expected_logprob)}, of {expected}"
        )
    else:
        words += f"{found}, expected {expected}"
    if difference.margin is None:
        return words
    return f"{words} (top-2 margin {_number(difference.margin)})"


def _token_words(token: int | None, depth: int | None) -> str:
    what = "the end" if token is None else f"id {token}"
    return what if depth is None else f"{what} at depth {depth}"


def _number(value: float | None) -> str:
    return "NaN" if value is None or not math.isfinite(value) else f"{value:.4g}"

"""How well a lookahead gate did: its calls against what the rule asked for.

A gate calls depths 2 to R − 1, and 1 where it has a pre-loop gate: an earlier exit comes too early
for it, and the last loop ends every token by itself. So a token is *due* at the depth that the rule
asks for with a floor of the earliest depth called, max(2, requested) or requested. Where a call
ended a token that the rule had not, the run knows only that it was due at least one loop later:
then precision and recall are exact, and the depth error is a least value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdbench.metrics.trace import RequestTrace, RunTrace

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    IntArray = npt.NDArray[np.int64]

FIRST_STRETCH = 8
"""Later tokens of the first stretch of requests that is looked at by itself."""


@dataclass(frozen=True)
class CallCounts:
    """Calls of exits before R, an exit being the positive."""

    right: int
    wrong: int
    missed: int

    @property
    def precision(self) -> float | None:
        """Right calls / calls. None without one."""
        calls = self.right + self.wrong
        return self.right / calls if calls else None

    @property
    def recall(self) -> float | None:
        """Right calls / exits that the rule asked for, as far as the run saw them. None without."""
        asked = self.right + self.missed
        return self.right / asked if asked else None


def count_calls(called_N: IntArray, due_N: IntArray, max_loops: int) -> CallCounts:
    """Of tokens with the depth called (R: none) and the depth due. A late call is a miss."""
    calls = called_N < max_loops
    right = calls & (due_N == called_N)
    wrong = calls & (due_N > called_N)
    missed = (due_N < max_loops) & ~right & ~wrong
    return CallCounts(int(right.sum()), int(wrong.sum()), int(missed.sum()))


@dataclass(frozen=True)
class Stretch:
    """Later tokens ``first`` to ``last`` of their requests, from 1, and how their calls went."""

    first: int
    last: int
    tokens: int
    calls: CallCounts


def stretches(longest: int) -> Iterator[tuple[int, int]]:
    """1 to 8, 9 to 16, 17 to 32, …, until ``longest`` is in one."""
    first, length = 1, FIRST_STRETCH
    while first <= longest:
        yield first, first + length - 1
        first, length = first + length, length if first == 1 else 2 * length


def predicted_depths(request: RequestTrace) -> Sequence[int | None] | None:
    """The depths called for a request's tokens; None where it had no gate, or has no such list."""
    found: Sequence[int | None] | None = getattr(request, "predicted_depths", None)
    return found


def predictor_precision(trace: RunTrace) -> float | None:
    """Share of called exits that the rule asked for by then. None without a call."""
    counts = _counts(trace)
    return None if counts is None else counts.precision


def predictor_recall(trace: RunTrace) -> float | None:
    """Share of the rule's exits before R that were called in time. None without one."""
    counts = _counts(trace)
    return None if counts is None else counts.recall


def predictor_exact(trace: RunTrace) -> float | None:
    """Share of later tokens, of requests with a gate, at exactly the depth due."""
    pairs = [executed == due for executed, due in _depths(trace)]
    return sum(pairs) / len(pairs) if pairs else None


def predictor_depth_error(trace: RunTrace) -> float | None:
    """Mean of |executed − due| over the same tokens, in loops."""
    errors = [abs(executed - due) for executed, due in _depths(trace)]
    return sum(errors) / len(errors) if errors else None


def calls_over_time(trace: RunTrace) -> list[Stretch]:
    """How a gate's calls went, by how far into their requests the tokens are; empty without one."""
    import numpy as np

    asked = [
        (place, depth, max(trace.earliest_call, due))
        for request in trace.requests
        if (called := predicted_depths(request)) is not None
        for place, (depth, due) in enumerate(
            zip(called[1:], request.requested_depths[1:], strict=True), start=1
        )
        if depth is not None
    ]
    if not asked:
        return []
    place_N, called_N, due_N = np.array(asked, np.int64).T
    found = []
    for first, last in stretches(int(place_N.max())):
        here = (place_N >= first) & (place_N <= last)
        counts = count_calls(called_N[here], due_N[here], trace.max_loops)
        found.append(Stretch(first, last, int(here.sum()), counts))
    return found


def _counts(trace: RunTrace) -> CallCounts | None:
    """Of the tokens that a gate was asked about; None where no request had a gate."""
    import numpy as np  # here: a metric is listed by its name without arrays

    pairs = []
    any_gate = False
    for request in trace.requests:
        called = predicted_depths(request)
        if called is None:
            continue
        any_gate = True
        both = zip(called[1:], request.requested_depths[1:], strict=True)
        pairs += [
            (depth, max(trace.earliest_call, asked)) for depth, asked in both if depth is not None
        ]
    if not any_gate:
        return None
    called_N, due_N = np.array(pairs, np.int64).reshape(-1, 2).T
    return count_calls(called_N, due_N, trace.max_loops)


def _depths(trace: RunTrace) -> Iterator[tuple[int, int]]:
    """Executed depth and depth due of each later token whose request had a gate."""
    for request in trace.requests:
        if predicted_depths(request) is not None:
            both = zip(request.executed_depths[1:], request.requested_depths[1:], strict=True)
            for executed, asked in both:
                yield executed, max(trace.earliest_call, asked)

"""How well a lookahead gate did: its calls against what the rule asked for.

A gate calls depths 2 to R − 1: an exit after loop 1 comes too early for it, and the last loop ends
every token by itself. So a token is *due* at the depth that the rule asks for with a floor of 2,
max(2, requested). Where a call ended a token that the rule had not, the run knows only that it was
due at least one loop later: then precision and recall are exact, and the depth error is a least
value.
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

FIRST_DUE = 2


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
        pairs += [(depth, max(FIRST_DUE, asked)) for depth, asked in both if depth is not None]
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
                yield executed, max(FIRST_DUE, asked)

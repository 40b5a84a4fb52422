"""How many loops tokens took: histograms, means, and loops that were too many or too few."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from cdbench.metrics.trace import RequestTrace, RunTrace


def depth_histogram(trace: RunTrace) -> tuple[int, ...]:
    """Later tokens per executed depth: entry d−1 counts depth d, up to ``max_loops``.

    First tokens (always at R) and stop tokens are left out. Sums to the number of later tokens.
    """
    return _histogram(trace.requests, trace.max_loops)


def depth_histogram_by_task(trace: RunTrace) -> dict[str, tuple[int, ...]]:
    """The depth histogram of each task, in order of appearance; requests without one: ``""``."""
    by_task: dict[str, list[RequestTrace]] = {}
    for request in trace.requests:
        by_task.setdefault(request.task or "", []).append(request)
    return {task: _histogram(requests, trace.max_loops) for task, requests in by_task.items()}


def depth_histogram_by_request(trace: RunTrace) -> dict[str, tuple[int, ...]]:
    """The depth histogram of each request, by its id."""
    return {r.id: _histogram([r], trace.max_loops) for r in trace.requests}


def depth_histogram_by_position(
    requests: Iterable[RequestTrace], max_loops: int
) -> tuple[tuple[int, ...], ...]:
    """The depth histogram of each place in the output: entry i−1 is of later token i."""
    counts: list[list[int]] = []
    for request in requests:
        for place, depth in enumerate(request.executed_depths[1:]):
            if place == len(counts):
                counts.append([0] * max_loops)
            counts[place][depth - 1] += 1
    return tuple(map(tuple, counts))


def mean_depth_by_position(requests: Iterable[RequestTrace], max_loops: int) -> tuple[float, ...]:
    """Mean executed depth at each place: entry i−1 over the requests that have a later token i."""
    return tuple(
        sum(depth * count for depth, count in enumerate(counts, start=1)) / sum(counts)
        for counts in depth_histogram_by_position(requests, max_loops)
    )


def mean_depth(trace: RunTrace) -> float | None:
    """Executed loops per later token. None without one."""
    return _mean(trace.later_depths.executed)


def requested_depth(trace: RunTrace) -> float | None:
    """Loops per later token that the rule asked for at lag 0: the q̄ of the bounds."""
    return _mean(trace.later_depths.requested)


def mean_output_depth(trace: RunTrace) -> float | None:
    """Loops asked for per output token with first tokens at R: the q̄ of ``flop_bound_paper``."""
    firsts = [trace.max_loops for r in trace.requests if r.tokens]
    return _mean(np.concatenate([np.array(firsts, np.int64), trace.later_depths.requested]))


def wasted_loops(trace: RunTrace) -> int:
    """Σ max(0, executed − requested) over later tokens, plus loops of cancelled tokens."""
    executed, requested = trace.later_depths
    return int(np.maximum(executed - requested, 0).sum()) + trace.cancelled_loops


def short_loops(trace: RunTrace) -> int:
    """Σ max(0, requested − executed) over later tokens: exits earlier than the rule's."""
    executed, requested = trace.later_depths
    return int(np.maximum(requested - executed, 0).sum())


def token_loops(trace: RunTrace) -> int:
    """Σ executed depths of later tokens + loops of stop tokens and of cancelled tokens.

    Identity: equals ``core_decode_rows``.
    """
    later = int(trace.later_depths.executed.sum())
    return later + sum(r.stop_depth or 0 for r in trace.requests) + trace.cancelled_loops


def _histogram(requests: Iterable[RequestTrace], max_loops: int) -> tuple[int, ...]:
    counts = [0] * max_loops
    for request in requests:
        for depth in request.executed_depths[1:]:
            counts[depth - 1] += 1
    return tuple(counts)


def _mean(depths_N: npt.NDArray[np.int64]) -> float | None:
    return int(depths_N.sum()) / depths_N.size if depths_N.size else None

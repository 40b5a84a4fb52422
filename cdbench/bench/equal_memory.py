"""``equal: memory``: every mode gets as many residents as fit the same KV budget.

Under ``equal: residents`` all modes hold equally many requests, though a mode that exits early
needs less memory for them. Here the memory is what is equal, as it is on a real device: a mode's
cap on residents (and with it the width of its launches) follows from what its own requests keep.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdbench.bench.plan import Subject
from cdbench.errors import UsageError
from cdbench.runtime.cache_shape import CacheShape, StageRows
from cdbench.runtime.core import Request, Stage


def residents_that_fit(
    subject: Subject, shape: CacheShape, requests: Sequence[Request], budget_bytes: int
) -> int:
    """Most requests that a mode can hold at their full length, whichever they are.

    The budget is split into a pool a stage, as the engine's cache splits it, and each pool is
    counted with the requests that need most of it; beside a first one a row for the next loop of
    each is kept free, as admission keeps it. So none is ever moved to host memory. Never more than
    there are requests. Raises UsageError where not even one fits.
    """
    pools = shape.pool_rows(budget_bytes)
    needs = [request_rows(subject, shape, request) for request in requests]
    fit = min(
        _fitting(sorted((rows[stage] for rows in needs), reverse=True), pools[stage])
        for stage in pools
    )
    if not fit:
        longest = max(request.positions for request in requests)
        raise UsageError(
            f"kv budget: {budget_bytes} bytes do not hold the longest request of mode "
            f"{subject.label}, which needs {shape.budget_for(longest)}; raise it or shorten the "
            "requests"
        )
    return fit


def request_rows(subject: Subject, shape: CacheShape, request: Request) -> StageRows:
    """KV rows of a request of forced tokens as it ends, by stage.

    Prompts fill every slot, a later token only those of the loops it executed; the last token
    produced is never fed back and keeps nothing.
    """
    later = request.new_tokens - 1
    depths = request.replay_depths if subject.adaptive else None
    executed = [subject.max_loops] * later if depths is None else list(depths)[1:]
    core = shape.slots * len(request.prompt) + sum(min(d, shape.slots) for d in executed)
    rows = dict.fromkeys(shape.row_bytes, request.positions)
    return rows | {Stage.CORE: core}


def _fitting(needs: Sequence[int], rows: int) -> int:
    """How many of these needs, largest first, a pool holds, a row to spare for each of several."""
    held, count = 0, 0
    for need in needs:
        held += need
        spare = count + 1 if count else 0
        if held + spare > rows:
            break
        count += 1
    return count

"""``equal: memory``: every mode gets as many residents as fit the same KV budget.

Under ``equal: residents`` all modes hold equally many requests, though a mode that exits early
needs less memory for them. Here the memory is what is equal, as it is on a real device: a mode's
cap on residents (and with it the width of its launches) follows from what its own requests keep.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdbench.bench.plan import Subject
from cdbench.errors import UsageError
from cdbench.metrics.trace import KvShape
from cdbench.runtime.core import Request


def residents_that_fit(
    subject: Subject, shape: KvShape, requests: Sequence[Request], budget_bytes: int
) -> int:
    """Most requests that a mode can hold at their full length, whichever they are.

    Counted with the largest ones, so that none of them is ever moved to host memory; never more
    than there are requests. Raises UsageError where not even one fits.
    """
    sizes = sorted((request_bytes(subject, shape, r) for r in requests), reverse=True)
    held_bytes, count = 0, 0
    for size in sizes:
        held_bytes += size
        if held_bytes > budget_bytes:
            break
        count += 1
    if not count:
        raise UsageError(
            f"kv budget: {budget_bytes} bytes do not hold the longest request of mode "
            f"{subject.label}, which needs {sizes[0]}; raise it or shorten the requests"
        )
    return count


def request_bytes(subject: Subject, shape: KvShape, request: Request) -> int:
    """KV bytes of a request of forced tokens as it ends.

    Prompts fill every slot, a later token only those of the loops it executed; the last token
    produced is never fed back and keeps nothing.
    """
    later = request.new_tokens - 1
    depths = request.replay_depths if subject.adaptive else None
    executed = [subject.max_loops] * later if depths is None else list(depths)[1:]
    slots = [shape.slots] * len(request.prompt) + [min(d, shape.slots) for d in executed]
    return sum(shape.bytes_per_token(written) for written in slots)

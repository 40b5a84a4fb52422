"""KV memory, in bytes."""

from __future__ import annotations

import numpy as np

from cdbench.metrics.trace import RunTrace


def peak_kv_bytes(trace: RunTrace) -> int | None:
    """Most KV rows in use at once, in bytes."""
    return trace.kv.peak_rows * trace.kv.bytes_per_row if trace.kv else None


def preemptions(trace: RunTrace) -> int | None:
    """How often a request was moved to host memory for want of KV rows."""
    return trace.kv.preemptions if trace.kv else None


def prefix_hit_rate(trace: RunTrace) -> float | None:
    """Prompt tokens found in the prefix cache / prompt tokens; None where it is off."""
    return trace.kv.prefix_hit_rate if trace.kv else None


def kv_bytes_per_token(trace: RunTrace) -> float | None:
    """Mean KV bytes of a token, over prompt tokens (m slots) and later tokens (min(depth, m)).

    The entry of a later token is the row written while it was being produced, so a request's last
    token, never fed back, has none.
    """
    total, tokens = _kept_bytes(trace)
    return total / tokens if tokens else None


def kv_bytes_per_request(trace: RunTrace) -> float | None:
    """Mean KV bytes that a request has come to keep as it ends, over those with a token."""
    served = sum(1 for r in trace.requests if r.tokens)
    return _kept_bytes(trace)[0] / served if trace.kv is not None and served else None


def _kept_bytes(trace: RunTrace) -> tuple[int, int]:
    """KV bytes of all tokens, and how many there are; nothing without the shape of the KV."""
    if trace.kv is None:
        return 0, 0
    shape = trace.kv.shape
    prompts = sum(r.prompt_tokens for r in trace.requests if r.tokens)
    later_N = np.minimum(trace.later_depths.executed, shape.slots)
    total = prompts * shape.bytes_per_token(shape.slots)
    for slots, count in zip(*np.unique(later_N, return_counts=True), strict=True):
        total += int(count) * shape.bytes_per_token(int(slots))
    return total, prompts + later_N.size

"""KV memory, in bytes."""

from __future__ import annotations

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
    if trace.kv is None:
        return None
    shape = trace.kv.shape
    prompts = sum(r.prompt_tokens for r in trace.requests if r.tokens)
    later = [min(executed, shape.slots) for executed, _ in trace.later_depths()]
    if prompts + len(later) == 0:
        return None
    total = prompts * shape.bytes_per_token(shape.slots)
    total += sum(shape.bytes_per_token(slots) for slots in later)
    return total / (prompts + len(later))

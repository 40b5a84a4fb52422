"""What must hold in every run. A broken identity makes a run INVALID: its counters are wrong."""

from __future__ import annotations

from cdbench.metrics.depth import depth_histogram, token_loops
from cdbench.metrics.launches import core_decode_rows
from cdbench.metrics.trace import RunTrace


def broken_identities(trace: RunTrace) -> tuple[str, ...]:
    """One sentence for each identity that fails; empty for a sound run."""
    checks = (
        (
            "token_loops",
            token_loops(trace),
            "decode rows of core launches",
            core_decode_rows(trace),
            bool(trace.launches),
        ),
        (
            "sum of the depth histogram",
            sum(depth_histogram(trace)),
            "later tokens",
            sum(max(0, len(r.tokens) - 1) for r in trace.requests),
            True,
        ),
        (
            "rows by depth",
            sum(sum(x.depth_counts) for x in trace.decode_launches("core")),
            "decode rows of core launches",
            core_decode_rows(trace),
            True,
        ),
    )
    return tuple(
        f"mode {trace.mode}: {left} {a} differs from {right} {b}"
        for left, a, right, b, applies in checks
        if applies and a != b
    )

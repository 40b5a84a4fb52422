"""Metrics that hold no time: they repeat to the digit wherever the work and its order do."""

from __future__ import annotations

COUNTED = frozenset(
    {
        "token_loops",
        "wasted_loops",
        "short_loops",
        "core_launches",
        "coda_launches",
        "prelude_launches",
        "prefill_launches",
        "core_occupancy",
        "coda_width",
        "refills",
        "mean_depth",
        "requested_depth",
        "kv_bytes_per_token",
        "peak_kv_bytes",
        "preemptions",
        "prefix_hit_rate",
    }
)

"""Energy and device memory, from counters read before and after the timed region."""

from __future__ import annotations

from cdbench.metrics.rates import output_tokens
from cdbench.metrics.trace import RunTrace


def energy_per_token(trace: RunTrace) -> float | None:
    """The device's energy over the timed region / output tokens of finished requests, J/token.

    None without a counter, without a token, and where the counter did not move: NVML's counter
    steps some ten times a second, so a region that it misses is too short to tell.
    """
    tokens = output_tokens(trace)
    if not trace.energy_j or tokens == 0:
        return None
    return trace.energy_j / tokens


def peak_device_bytes(trace: RunTrace) -> int | None:
    """Most device memory in this process's tensors during the run; other modes' pools included."""
    return trace.peak_device_bytes

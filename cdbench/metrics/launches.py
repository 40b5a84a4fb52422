"""Launches per stage, decode and prefill apart, and how full they ran.

A launch with decode rows is a decode launch, one with prompt rows a prefill launch; a mixed launch
is both. None where a run left no launch records: a count of 0 would be a lie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cdbench.metrics.rates import prefill_share
from cdbench.metrics.trace import LaunchTrace, RunTrace


def core_launches(trace: RunTrace) -> int | None:
    """Core launches with decode rows."""
    return _decode_count(trace, "core")


def coda_launches(trace: RunTrace) -> int | None:
    """Coda launches with decode rows (readouts of a logit-reading rule included)."""
    return _decode_count(trace, "coda")


def prelude_launches(trace: RunTrace) -> int | None:
    """Prelude launches with decode rows."""
    return _decode_count(trace, "prelude")


def prefill_launches(trace: RunTrace) -> int | None:
    """Launches of any stage with prompt rows."""
    return sum(x.prefill_rows > 0 for x in trace.launches) if trace.launches else None


def core_decode_rows(trace: RunTrace) -> int:
    """Σ decode rows of core launches. Identity: equals ``token_loops``."""
    return sum(x.decode_rows for x in trace.decode_launches("core"))


def core_occupancy(trace: RunTrace) -> float | None:
    """Decode rows of core launches / (core launches · width)."""
    launches = trace.decode_launches("core")
    return core_decode_rows(trace) / (len(launches) * trace.width) if launches else None


def coda_width(trace: RunTrace) -> float | None:
    """Mean decode rows of a coda launch."""
    launches = trace.decode_launches("coda")
    return sum(x.decode_rows for x in launches) / len(launches) if launches else None


def refills(trace: RunTrace) -> int | None:
    """Tokens at loop 1 that joined a core launch beside deeper ones."""
    if not trace.launches:
        return None
    return sum(_refilled(launch) for launch in trace.decode_launches("core"))


def ms_per_loop(trace: RunTrace) -> float | None:
    """Time of core launches with decode rows / their number, ms; mixed launches need a split."""
    launches = trace.decode_launches("core")
    total_s = 0.0
    for launch in launches:
        share = prefill_share(trace, launch)
        if share is None:
            return None
        total_s += (1 - share) * launch.duration_s
    return total_s / len(launches) * 1e3 if launches else None


def floor_ms_per_loop(trace: RunTrace) -> float | None:
    """The least time of the launches that ``ms_per_loop`` averages, ms.

    max(bytes / measured bandwidth, FLOPs / measured rate) of each core launch with decode rows, as
    the trace's ``floor_s`` gives it, over their number. None without floors.
    """
    launches = trace.decode_launches("core")
    if trace.floor_s is None or not launches:
        return None
    return sum(map(trace.floor_s, launches)) / len(launches) * 1e3


def with_floors(trace: RunTrace, floor_s: Callable[[str, float, float], float]) -> RunTrace:
    """The trace with what ``floor_ms_per_loop`` needs: least seconds by stage, rows and context."""
    return replace(trace, floor_s=lambda x: floor_s(x.stage, x.decode_rows, x.context))


def _decode_count(trace: RunTrace, stage: str) -> int | None:
    return len(trace.decode_launches(stage)) if trace.launches else None


def _refilled(launch: LaunchTrace) -> int:
    return launch.depth_counts[0] if any(launch.depth_counts[1:]) else 0

"""What each mode held of the KV budget that all had alike, from the records of its timed runs."""

from __future__ import annotations

from collections.abc import Sequence

from cdbench.bench.repeats import Repeat
from cdbench.metrics.memory import kv_bytes_per_request
from cdbench.schema.memory import EqualMemory, ModeMemory


def equal_memory_of(runs: Sequence[Repeat], budget_bytes: int | None) -> EqualMemory | None:
    """The section ``equal_memory`` of a run; None without such a budget or without a timed run.

    Every run of a mode does the same work, so the first one speaks for all.
    """
    if budget_bytes is None or not runs:
        return None
    modes: dict[str, ModeMemory] = {}
    for run in runs:
        if run.trace.mode not in modes:
            modes[run.trace.mode] = ModeMemory(
                residents=run.trace.max_residents,
                kv_bytes_per_request=kv_bytes_per_request(run.trace),
            )
    return EqualMemory(budget_bytes=budget_bytes, modes=modes)

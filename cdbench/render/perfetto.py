"""Launches as a Chrome trace, for https://ui.perfetto.dev or chrome://tracing.

A process is one timed run, with a lane for each stage (``prelude``, ``core``, ``coda``) and one for
launches of prompts alone. A slice is a launch: its name gives its rows and, in the core, how many
were at which loop (``core 8 rows, 1×5 3×3``). Below them two counters: rows of core launches
against the width that the process names, and requests that could run. Every process starts at a
zero of its own, the first arrival, so that modes can be read side by side.

The format: "Trace Event Format" (Google, 2016), complete (``X``), counter (``C``) and metadata
(``M``) events. Times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

from cdbench.bench.repeats import AnyRepeat, Repeat
from cdbench.metrics.trace import LaunchTrace, RunTrace
from cdbench.schema.files import write_whole

LANES = ("prelude", "core", "coda", "prefill")
FIRST_BLOCK = frozenset({0})

Event = dict[str, Any]


def of_blocks(
    repeats: Sequence[AnyRepeat], blocks: Container[int] = FIRST_BLOCK
) -> list[AnyRepeat]:
    """The timed runs of some blocks. One block shows every mode; a whole run is seldom readable."""
    return [run for run in repeats if run.block in blocks]


def chrome_trace(repeats: Sequence[Repeat]) -> dict[str, Any]:
    """The trace of these timed runs as one JSON document."""
    events = [
        event for process, run in enumerate(repeats, start=1) for event in _process(process, run)
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_trace(path: Path, repeats: Sequence[Repeat]) -> Path:
    """Write the trace of these timed runs, whole or not at all, and answer its path."""
    write_whole(path, json.dumps(chrome_trace(repeats), separators=(",", ":"), allow_nan=False))
    return path


def _process(process: int, run: Repeat) -> Iterator[Event]:
    trace = run.trace
    title = f"{trace.mode}, block {run.block}, place {run.order}, width {trace.width}"
    yield from _named({"pid": process}, "process", title, process)
    for thread, lane in enumerate(LANES, start=1):
        yield from _named({"pid": process, "tid": thread}, "thread", lane, thread)
    zero_s = _zero_s(trace)
    shown: dict[str, int] = {}
    for launch in sorted(trace.launches, key=lambda x: x.start_s):
        ts = _us(launch.start_s - zero_s)
        yield _slice(process, launch, ts)
        for (name, unit), value in _counted(launch).items():
            if shown.get(name) != value:
                shown[name] = value
                yield {"ph": "C", "pid": process, "name": name, "ts": ts, "args": {unit: value}}


def _named(where: dict[str, int], kind: str, name: str, place: int) -> Iterator[Event]:
    yield {"ph": "M", **where, "name": f"{kind}_name", "args": {"name": name}}
    yield {"ph": "M", **where, "name": f"{kind}_sort_index", "args": {"sort_index": place}}


def _slice(process: int, launch: LaunchTrace, ts: float) -> Event:
    prefill = launch.prefill_rows > 0 and launch.decode_rows == 0
    lane = "prefill" if prefill else str(launch.stage)
    arguments: Event = {
        "decode_rows": launch.decode_rows,
        "prefill_rows": launch.prefill_rows,
        "context": launch.context,
        "runnable": launch.runnable,
    }
    if any(launch.depth_counts):
        arguments["rows_at_loop"] = {
            str(loop): rows for loop, rows in enumerate(launch.depth_counts, start=1) if rows
        }
    return {
        "ph": "X",
        "pid": process,
        "tid": LANES.index(lane) + 1,
        "name": _name(launch),
        "cat": "prefill" if prefill else "decode",
        "ts": ts,
        "dur": _us(launch.duration_s),
        "args": arguments,
    }


def _name(launch: LaunchTrace) -> str:
    parts = []
    if launch.decode_rows or not launch.prefill_rows:
        parts.append(f"{launch.decode_rows} rows")
    if launch.prefill_rows:
        parts.append(f"{launch.prefill_rows} prompt rows")
    mix = " ".join(f"{k}×{n}" for k, n in enumerate(launch.depth_counts, start=1) if n)
    if mix:
        parts.append(mix)
    return f"{launch.stage} {', '.join(parts)}"


def _counted(launch: LaunchTrace) -> dict[tuple[str, str], int]:
    """Name and unit of each counter → its value from this launch on."""
    counts = {("requests", "runnable"): launch.runnable}
    if launch.stage == "core" and launch.decode_rows:
        counts["core", "rows"] = launch.decode_rows
    return counts


def _zero_s(trace: RunTrace) -> float:
    times = [r.arrival_s for r in trace.requests] + [x.start_s for x in trace.launches]
    return min(times, default=0.0)


def _us(seconds: float) -> float:
    """Microseconds, to the nanosecond."""
    return round(seconds * 1e6, 3)

"""The rest of what a run measured: latency, rates, launches, bounds, waterfall, every speed-up."""

from __future__ import annotations

from cdbench.metrics.percentiles import minimum_samples
from cdbench.render.asked import asked_tables
from cdbench.render.bounds import bounds_table
from cdbench.render.exit_report import exit_tables
from cdbench.render.formats import Kind
from cdbench.render.intervals import interval_cell
from cdbench.render.machine_report import machine_table
from cdbench.render.metric_table import known, metric_table
from cdbench.render.predictor_table import predictor_table
from cdbench.render.run_report import comparison, level_words, speedup_cell, timed_adaptive
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.render.tasks_report import task_table
from cdbench.render.waterfall import waterfall_tables
from cdbench.schema import ModeResult, Result

RATES = (
    ("output_throughput", Kind.NUMBER),
    ("decode_throughput", Kind.NUMBER),
    ("ms_per_loop", Kind.NUMBER),
    ("floor_ms_per_loop", Kind.NUMBER),
    ("host_share", Kind.PERCENT),
    ("peak_kv_bytes", Kind.BYTES),
)
WHERE_KNOWN = (
    ("steady_throughput", Kind.NUMBER),
    ("energy_per_token", Kind.NUMBER),
    ("peak_device_bytes", Kind.BYTES),
)
"""Rates that show only where some mode has them."""
LAUNCHES = (
    ("token_loops", Kind.COUNT),
    ("core_launches", Kind.COUNT),
    ("core_occupancy", Kind.PERCENT),
    ("coda_launches", Kind.COUNT),
    ("coda_width", Kind.NUMBER),
    ("prefill_launches", Kind.COUNT),
    ("refills", Kind.COUNT),
)
LATENCIES = ("ttft", "tpot", "e2e", "normalized_latency")
PERCENTILES = ("p50", "p90", "p95", "p99")
LATENCY_WORDS = (
    "Percentiles over requests. ttft: arrival to first token; tpot: time per later token; e2e: "
    "arrival to last token; normalized_latency: e2e per output token."
)


def full_tables(result: Result) -> list[Table]:
    """Every table with something in it."""
    tables = (
        task_table(result),
        *asked_tables(result),
        pair_table(result),
        rates_table(result),
        latency_table(result),
        launch_table(result),
        predictor_table(result),
        bounds_table(result),
        *waterfall_tables(result),
        *(exit_tables(result.exits) if result.exits is not None else ()),
        machine_table(result),
    )
    return [table for table in tables if table.rows or table.notes]


def latency_table(result: Result) -> Table:
    """Percentiles of what a user waits for, from the scheduled arrival on."""
    timed = [(label, mode) for label, mode in result.modes.items() if mode.percentiles]
    shown = [q for q in PERCENTILES if any(_has(mode, q) for _, mode in timed)] or ["p50"]
    n = result.workload.requests
    columns = (
        Column("mode", align="left"),
        Column("latency", align="left"),
        *(Column(q, direction="down") for q in shown),
    )
    rows = tuple(
        Row((text(label), text(name), *(_percentile(mode, name, q, n) for q in shown)))
        for label, mode in timed
        for name in LATENCIES
        if any(mode.metrics.get(name) is not None for _, mode in timed)
    )
    hidden = [q for q in PERCENTILES if q not in shown]
    notes = [LATENCY_WORDS] if rows else []
    if rows and hidden:
        needs = ", ".join(f"{q} {minimum_samples(float(q[1:])):,}" for q in hidden)
        notes.append(f"{n:,} requests are too few for {', '.join(hidden)} (needs {needs}).")
    if rows and result.workload.arrivals == "all-at-once":
        notes.append("All requests arrive at once, so e2e is mostly queueing; no ttft is shown.")
    return Table(columns, rows, "latency, mean over repeats of each percentile", tuple(notes))


def _has(mode: ModeResult, q: str) -> bool:
    return any(mode.percentiles.get(name, {}).get(q) is not None for name in LATENCIES)


def _percentile(mode: ModeResult, name: str, q: str, n: int) -> Cell:
    value = mode.percentiles.get(name, {}).get(q)
    return Cell(value, Kind.SECONDS, n=n if value is None else None)


def rates_table(result: Result) -> Table:
    """What equal work took: rates, time of a loop and its floor, host, memory."""
    notes = (f"In brackets: {level_words(result)} t intervals over blocks, where a figure varies.",)
    metrics = (*RATES, *known(result, WHERE_KNOWN))
    title = "rates on equal work, mean over the timed runs"
    return metric_table(result, metrics, title, notes, all_stay=False)


def launch_table(result: Result) -> Table:
    """How many launches of each stage, and how full."""
    title = "launches of one timed run, mean over the timed runs"
    return metric_table(result, LAUNCHES, title, all_stay=False)


def pair_table(result: Result) -> Table:
    """The timed adaptive modes over every mode they were compared with, in both scopes."""
    pairs = [c for c in result.comparisons if c.mode in timed_adaptive(result)]
    columns = (
        Column("speed-up", align="left"),
        Column("e2e", direction="up"),
        Column("decode", direction="up"),
        Column("e2e with other requests", priority=1),
    )
    names = dict.fromkeys((c.mode, c.over) for c in pairs)
    rows = tuple(
        Row(
            (
                text(f"{mode} over {over}"),
                speedup_cell(result, mode, over, "e2e"),
                speedup_cell(result, mode, over, "decode"),
                _moved_cell(result, mode, over),
            )
        )
        for mode, over in names
    )
    notes: tuple[str, ...] = ()
    if any(c.over_requests is not None for c in pairs):
        notes = (
            "Intervals over blocks cover the machine's noise on these requests. 'With other "
            "requests' is a bootstrap over the requests, the share realised of the bound held.",
        )
    title = "speed-ups on equal work, geometric mean and interval over blocks"
    return Table(columns, rows, title, notes)


def _moved_cell(result: Result, mode: str, over: str) -> Cell:
    found = comparison(result, mode, over, "e2e")
    moved = found.over_requests if found is not None else None
    return interval_cell(moved, Kind.RATIO)

"""The rest of what a run measured: latency, rates, launches, bounds, waterfall, every speed-up."""

from __future__ import annotations

from cdbench.metrics.percentiles import minimum_samples
from cdbench.render.bounds import bounds_table
from cdbench.render.exit_report import exit_tables
from cdbench.render.formats import Kind
from cdbench.render.run_report import comparison, speedup_cell, timed_adaptive
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.render.waterfall import waterfall_tables
from cdbench.schema import IntervalRecord, ModeResult, Result

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
    ("cost_per_million_tokens", Kind.NUMBER),
    ("peak_device_bytes", Kind.BYTES),
    ("goodput", Kind.NUMBER),
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


def full_tables(result: Result) -> list[Table]:
    """Every table with something in it."""
    tables = (
        _rates(result),
        latency_table(result),
        _by_metric(result, LAUNCHES, "launches of one timed run"),
        _pair_table(result),
        _break_even_table(result),
        bounds_table(result),
        *waterfall_tables(result),
        *(exit_tables(result.exits) if result.exits is not None else ()),
        _machine_table(result),
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
    notes = []
    if rows and hidden:
        needs = ", ".join(f"{q} {minimum_samples(float(q[1:])):,}" for q in hidden)
        notes.append(f"{n:,} requests are too few for {', '.join(hidden)} (needs {needs}).")
    if rows and result.workload.arrivals == "all-at-once":
        notes.append("All requests arrive at once, so e2e is mostly queueing; no ttft is shown.")
    return Table(columns, rows, "latency, mean over repeats of each percentile", tuple(notes))


def _break_even_table(result: Result) -> Table:
    columns = (
        Column("on equal work", align="left"),
        Column("an hour may cost, of the other's"),
        Column("price at which the other costs the same"),
    )
    rows = tuple(
        Row(
            (
                text(f"{found.mode} against {found.over}"),
                _spread_cell(found.price_ratio, Kind.RATIO),
                _spread_cell(found.baseline_price_per_hour, Kind.NUMBER),
            )
        )
        for found in result.break_even
    )
    return Table(columns, rows, "break-even prices per hour, end to end")


def _machine_table(result: Result) -> Table:
    """What the run saw of the machine around its timed repeats."""
    seen = result.environment
    columns = (
        Column("machine", align="left"),
        Column("median"),
        Column("least", priority=1),
        Column("most"),
    )
    if seen is None:
        return Table(columns, ())
    rows = tuple(
        Row((text(name), *(Cell(value) for value in (found.median, found.low, found.high))))
        for name, found in seen.figures.items()
    )
    notes = [
        "Around every repeat. crowding: share of the cores computed on that other processes must "
        "have taken; waiting: share of the threads' time spent ready without a core."
    ]
    if seen.unreadable:
        notes.append(f"This machine does not tell: {', '.join(seen.unreadable)}.")
    return Table(columns, rows, f"the machine over {seen.repeats} timed repeats", tuple(notes))


def _spread_cell(interval: IntervalRecord, kind: Kind) -> Cell:
    return Cell(interval.estimate, kind, interval.low, interval.high)


def _has(mode: ModeResult, q: str) -> bool:
    return any(mode.percentiles.get(name, {}).get(q) is not None for name in LATENCIES)


def _percentile(mode: ModeResult, name: str, q: str, n: int) -> Cell:
    value = mode.percentiles.get(name, {}).get(q)
    return Cell(value, Kind.SECONDS, n=n if value is None else None)


def _rates(result: Result) -> Table:
    known = tuple(
        (name, kind)
        for name, kind in WHERE_KNOWN
        if any(mode.metrics.get(name) is not None for mode in result.modes.values())
    )
    return _by_metric(result, (*RATES, *known), "equal work, mean over the timed runs")


def _by_metric(result: Result, metrics: tuple[tuple[str, Kind], ...], title: str) -> Table:
    timed = {label: mode for label, mode in result.modes.items() if mode.metrics}
    columns = (
        Column("mode", align="left"),
        *(Column(name, priority=place) for place, (name, _) in enumerate(metrics)),
    )
    rows = tuple(
        Row((text(label), *(_metric_cell(mode, name, kind) for name, kind in metrics)))
        for label, mode in timed.items()
    )
    return Table(columns, rows, title)


def _metric_cell(mode: ModeResult, name: str, kind: Kind) -> Cell:
    interval = mode.intervals.get(name)
    if interval is not None:
        return Cell(mode.metrics.get(name), kind, interval.low, interval.high)
    return Cell(mode.metrics.get(name), kind)


def _pair_table(result: Result) -> Table:
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
    return text("-") if moved is None else _spread_cell(moved, Kind.RATIO)

"""The tables of ``docs/performance.md``, made from the records that the figures come from.

A script that measures prints the same table, so that what a person sees and what the page says are
one thing. Documents come as they are read from JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, hypot, log
from pathlib import PurePath
from typing import Any

from cdbench.render.bounds import bound_cell
from cdbench.render.formats import Kind
from cdbench.render.intervals import interval_cell
from cdbench.render.sweep_report import summary_table
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.render.waterfall import EFFECT_WORDS, factor_cell
from cdbench.schema import IntervalRecord, Result
from cdbench.schema.sweep import SweepDocument
from cdbench.stats.interval import Interval

Document = Mapping[str, Any]

CDBENCH = "cdbench dense"
"""What the comparison with transformers calls mode ``dense``."""


# The bench set: results of `cdbench sweep bench/cpu`.


def bench_tables(results: Sequence[Result]) -> list[Table]:
    """Speed-ups and what is realised of the bounds; launches against their floor; the waterfall."""
    return [_speed_ups(results), _launches(results), _waterfalls(results)]


def _speed_ups(results: Sequence[Result]) -> Table:
    columns = (
        Column("cell", align="left"),
        Column("over static, e2e", direction="up"),
        Column("over static, decode", direction="up"),
        Column("time bound, steady window"),
        Column("realised of it", direction="up"),
        Column("FLOP bound, decode"),
        Column("realised of it", direction="up", name="realised.flop_bound"),
    )
    rows = []
    for result in results:
        flop, steady = (
            result.bounds.get("cdb", {}).get(name) for name in ("flop_bound", "time_bound_steady")
        )
        cells = [
            interval_cell(_speed_up(result, over, scope), Kind.RATIO)
            for over, scope in (("static", "e2e"), ("static", "decode"))
        ]
        for bound in (steady, flop):
            cells.append(text("-") if bound is None else bound_cell(bound))
            realised = None if bound is None else bound.realised
            cells.append(interval_cell(realised, Kind.PERCENT))
        rows.append(_row(result, cells))
    notes = (
        "cdb, geometric means over interleaved blocks with 95 % t intervals on logs; a time bound "
        "with what other passes over the stages would change, which is part of its share's. Random "
        "weights, random prompts, synthetic depths (uniform, replayed): times only.",
    )
    return Table(columns, tuple(rows), notes=(*notes, *_invalid(results)))


def _launches(results: Sequence[Result]) -> Table:
    columns = (
        Column("cell", align="left"),
        Column("static", "ms per loop"),
        Column("cdb", "ms per loop"),
        Column("floor", "ms per loop"),
        Column("host share, static", direction="down"),
        Column("host share, cdb", direction="down"),
        Column("rows of a coda, cdb"),
        Column("rows of a core launch / width, static"),
        Column("the same, cdb"),
    )
    rows = []
    for result in results:
        static, cdb = (result.modes[mode].metrics for mode in ("static", "cdb"))
        cells = [
            Cell(static.get("ms_per_loop")),
            Cell(cdb.get("ms_per_loop")),
            Cell(cdb.get("floor_ms_per_loop")),
            Cell(static.get("host_share"), Kind.PERCENT),
            Cell(cdb.get("host_share"), Kind.PERCENT),
            Cell(cdb.get("coda_width")),
            Cell(static.get("core_occupancy"), Kind.PERCENT),
            Cell(cdb.get("core_occupancy"), Kind.PERCENT),
        ]
        rows.append(_row(result, cells))
    return Table(columns, tuple(rows))


def _waterfalls(results: Sequence[Result]) -> Table:
    found = [(result.waterfall or {}).get("cdb") for result in results]
    by_effect = [{row.effect: row for row in one.rows} if one else {} for one in found]
    columns = [Column("factor of", align="left"), *(Column(_cell_name(r)) for r in results)]
    rows = []
    for effect, words in EFFECT_WORDS.items():
        if any(effect in rows_of for rows_of in by_effect):
            cells = [
                factor_cell(rows_of[effect]) if effect in rows_of else text("-")
                for rows_of in by_effect
            ]
            rows.append(Row((text(words), *cells)))
    why = tuple(
        f"{_cell_name(result)}: {said}"
        for result, one in zip(results, found, strict=True)
        if one is not None
        for said in (*([one.reason] if one.reason else []), *one.notes)
    )
    return Table(tuple(columns), tuple(rows), notes=why)


def _row(result: Result, cells: Sequence[Cell]) -> Row:
    return Row((text(_cell_name(result)), *cells))


def _cell_name(result: Result) -> str:
    assert result.model is not None, "a timed run has a model"
    return _named(result.model.name, result.model.dtype)


def _named(model: str, dtype: str) -> str:
    """``bench-ouro, float32``."""
    return f"{PurePath(model).name}, {dtype}"


def _speed_up(result: Result, over: str, scope: str) -> IntervalRecord | None:
    wanted = ("cdb", over, scope)
    return next(
        (c.speedup for c in result.comparisons if (c.mode, c.over, c.scope) == wanted), None
    )


def _invalid(results: Sequence[Result]) -> list[str]:
    return [
        f"INVALID: {_cell_name(result)}: {'; '.join(result.validity.reasons)}"
        for result in results
        if result.validity.verdict == "INVALID"
    ]


# `dense` beside transformers: scripts/dense_beside_transformers.py.


def dense_table(document: Document) -> Table:
    """A line a contestant, under each dtype and kind of lengths."""
    columns = (
        Column("", align="left", name="contestant"),
        Column("wall, median"),
        Column("tokens/s", direction="up"),
        Column("cdbench over it", direction="up"),
        Column("equal tokens"),
    )
    rows = []
    for setting in document["settings"]:
        group = f"{setting['dtype']}, {setting['lengths']} lengths"
        for name, found in setting["contestants"].items():
            tokens = found.get("tokens")
            cells = (
                text(name),
                Cell(found["median_wall_s"], Kind.SECONDS),
                Cell(found["tokens_per_s"]),
                text("-") if name == CDBENCH else _interval(found["cdbench_over_it"], Kind.RATIO),
                Cell(tokens["token_agreement"], Kind.PERCENT) if tokens else text("-"),
            )
            rows.append(Row(cells, group))
        for name, why in setting["not_run"].items():
            rows.append(Row((text(name, note=why), *[text("-")] * 4), group))
    notes = (
        "cdbench over it: wall of the other / wall of cdbench on the same work, above 1 where "
        "cdbench is faster; geometric mean over blocks, 95 % t interval on logs.",
        "equal tokens: those before the first difference / all. Random weights.",
    )
    return Table(columns, tuple(rows), notes=notes)


def _interval(found: Document | None, kind: Kind) -> Cell:
    if found is None:
        return text("-")
    return Cell(found["estimate"], kind, found["low"], found["high"], found["n"])


# Host work: scripts/hot_path.py.


def host_table(document: Document) -> Table:
    """Host time of a tick, checkout by checkout, and the last over the first."""
    names = list(document["codes"])
    columns = [Column("mode", align="left"), Column("depths", align="left"), Column("width")]
    columns += [Column(name, "µs a tick", direction="down") for name in names]
    compared = document.get("ratios")
    if compared is not None:
        columns.append(Column(f"{compared['of']} over {compared['over']}", direction="down"))
    rows = []
    for place, cell in enumerate(document["codes"][names[0]]["cells"]):
        head = [text(cell["mode"]), text(cell["depths"]), Cell(cell["width"], Kind.COUNT)]
        times = [document["codes"][name]["cells"][place]["us_per_tick"] for name in names]
        cells = head + [Cell(round(time, 1)) for time in times]
        if compared is not None:
            cells.append(_interval(compared["us_per_tick"][place], Kind.RATIO))
        rows.append(Row(tuple(cells)))
    return Table(tuple(columns), tuple(rows))


# Work per tick: scripts/work_per_tick.py.


def work_tables(document: Document) -> list[Table]:
    """What a tick does, by waiting requests and by width."""
    return [
        _work_table("A tick by waiting requests", document["by_waiting"]),
        _work_table("A tick by width", document["by_width"]),
    ]


def _work_table(title: str, stretches: Sequence[Document]) -> Table:
    counts = ("operations", "elements", "calls", "lines")
    columns = [Column("mode", align="left"), Column("width"), Column("waiting")]
    columns += [Column(name) for name in counts]
    rows = []
    for one in stretches:
        cells = [text(one["mode"]), Cell(one["width"], Kind.COUNT)]
        cells.append(Cell(one["waiting"], Kind.COUNT))
        cells += [Cell(round(one["per_tick"][name]), Kind.COUNT) for name in counts]
        rows.append(Row(tuple(cells)))
    return Table(tuple(columns), tuple(rows), title=title)


# Memory: scripts/long_run_memory.py.


def memory_table(document: Document) -> Table:
    """What each engine held at the first settled sample and at the last."""
    columns = (
        Column("engine", align="left"),
        Column("requests"),
        Column("pool rows"),
        Column("tables", "bytes"),
        Column("process, at first"),
        Column("at last"),
        Column("growth per 1,000 requests"),
        Column("moved to host", "times"),
    )
    rows = []
    for run in document["runs"]:
        first, last = run["first"], run["last"]
        cells = (
            text(run["name"]),
            Cell(last["finished"], Kind.COUNT),
            text(_from_to(first["pool_rows"], last["pool_rows"])),
            text(_from_to(first["table_bytes"], last["table_bytes"])),
            Cell(first["rss_bytes"], Kind.BYTES),
            Cell(last["rss_bytes"], Kind.BYTES),
            _interval(run["rss_growth_bytes_per_1000"], Kind.BYTES),
            Cell(run["preemptions"], Kind.COUNT),
        )
        rows.append(Row(cells))
    return Table(columns, tuple(rows), title="Memory from the first quarter of a run to its end")


def _from_to(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


# Sweeps, as `cdbench sweep` prints them.


def sweep_table(document: Document) -> Table:
    """The cells of a ``sweep.json`` with their figures."""
    return summary_table(SweepDocument.model_validate(document))


def best_over_auto(document: Document, key: str, figure: str) -> dict[str, Interval | None]:
    """The best of a key's fixed values over its value ``auto``, by what else the cells differ in.

    The two cells were measured apart: the reach of the interval, in logs, is that of both together.
    None where a cell of the group has no figure.
    """
    groups = _by_value(document, key, figure, _all_changes)
    return {name: _best_over_auto(found) for name, found in groups.items()}


def _best_over_auto(found: Mapping[Any, Document | None]) -> Interval | None:
    known = {value: one for value, one in found.items() if one is not None}
    fixed = [one for value, one in known.items() if value != "auto"]
    if len(known) < len(found) or "auto" not in known or not fixed:
        return None
    return _over(max(fixed, key=lambda one: one["estimate"]), known["auto"])


def gains(document: Document, key: str, figure: str) -> dict[str, Interval | None]:
    """A figure where a switch is on over that where it is off, by what else the cells differ in.

    None where a cell of the two has no figure.
    """
    pairs = _by_value(document, key, figure, _model_and_dtype)
    return {
        name: None
        if (on := pair.get(True)) is None or (off := pair.get(False)) is None
        else _over(on, off)
        for name, pair in pairs.items()
    }


def _by_value(
    document: Document, key: str, figure: str, named: Callable[[Document], str]
) -> dict[str, dict[Any, Document | None]]:
    """A figure by the value of a key, for each group of cells that differ in it alone.

    ``named`` makes a group's name of its other changes.
    """
    groups: dict[str, dict[Any, Document | None]] = {}
    for cell in document["cells"]:
        others = {k: v for k, v in cell["changes"].items() if k != key}
        groups.setdefault(named(others), {})[cell["changes"][key]] = cell["figures"].get(figure)
    return groups


def _all_changes(others: Document) -> str:
    return " ".join(f"{k}={v}" for k, v in others.items())


def _model_and_dtype(others: Document) -> str:
    return _named(others["model"], others["dtype"])


def _over(one: Document, other: Document) -> Interval:
    """The ratio of two figures that were measured apart."""
    ratio, n = one["estimate"] / other["estimate"], min(one["n"], other["n"])
    reach = _joint_reach([one, other])
    if reach is None:
        return Interval(ratio, None, None, n)
    return Interval(ratio, ratio * exp(-reach), ratio * exp(reach), n)


def over_all_cells(document: Document, figure: str) -> Interval | None:
    """The geometric mean of a ratio over the cells of a sweep, each of which was measured apart.

    None where a cell lacks the figure or its interval.
    """
    found = [cell["figures"].get(figure) for cell in document["cells"]]
    known = [one for one in found if one is not None]
    reach = _joint_reach(known)
    if not found or len(known) < len(found) or reach is None:
        return None
    mean = sum(log(one["estimate"]) for one in known) / len(known)
    low, high = mean - reach / len(known), mean + reach / len(known)
    return Interval(exp(mean), exp(low), exp(high), len(known))


def _joint_reach(found: Sequence[Document]) -> float | None:
    """Half the width of the interval of the sum of ratios' logs; None where one has none."""
    if any(one["low"] is None for one in found):
        return None
    return hypot(*(log(one["high"] / one["low"]) / 2 for one in found))

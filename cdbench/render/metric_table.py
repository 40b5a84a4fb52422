"""Metrics of the timed modes side by side: a column each, with its unit and which way is better."""

from __future__ import annotations

from cdbench.metrics.registry import METRICS
from cdbench.render.formats import Kind
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.schema import ModeResult, Result

Metrics = tuple[tuple[str, Kind], ...]

_WITH_UNIT = (Kind.NUMBER, Kind.COUNT)
"""Kinds whose values print no unit of their own."""


def metric_table(
    result: Result, metrics: Metrics, title: str, notes: tuple[str, ...] = (), *, all_stay: bool
) -> Table:
    """One row for each timed mode. ``all_stay``: no column is dropped on a narrow terminal."""
    columns = (
        Column("mode", align="left"),
        *(
            metric_column(name, kind, 0 if all_stay else place)
            for place, (name, kind) in enumerate(metrics)
        ),
    )
    rows = tuple(
        Row((text(label), *(_cell(mode, name, kind) for name, kind in metrics)))
        for label, mode in result.modes.items()
        if mode.metrics
    )
    return Table(columns, rows, title, notes if rows else ())


def known(result: Result, metrics: Metrics) -> Metrics:
    """Those that some mode has."""
    return tuple(
        (name, kind)
        for name, kind in metrics
        if any(mode.metrics.get(name) is not None for mode in result.modes.values())
    )


def metric_column(name: str, kind: Kind, priority: int = 0) -> Column:
    """The metric's name in words, so that a narrow header can fold between them."""
    metric, words = METRICS[name], name.replace("_", " ")
    said = metric.unit in words or metric.unit == "count" or kind not in _WITH_UNIT
    return Column(words, "" if said else metric.unit, metric.direction, priority=priority)


def _cell(mode: ModeResult, name: str, kind: Kind) -> Cell:
    interval = mode.intervals.get(name)
    if interval is not None:
        return Cell(mode.metrics.get(name), kind, interval.low, interval.high)
    return Cell(mode.metrics.get(name), kind)

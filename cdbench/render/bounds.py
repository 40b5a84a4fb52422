"""Bounds and the share realised, each in its own scope."""

from __future__ import annotations

from cdbench.render.formats import Kind
from cdbench.render.intervals import interval_cell
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.schema import BoundRecord, Result

BOUND_WORDS = {
    "flop_bound": "flop_bound",
    "flop_bound_paper": "flop_bound_paper",
    "work_bound": "work_bound",
    "time_bound": "time_bound",
    "time_bound_e2e": "time_bound",
    "time_bound_steady": "time_bound, steady window",
}


def bounds_table(result: Result) -> Table:
    """Every bound of every timed adaptive mode over ``static``.

    Show it beside the speed-ups over the other modes: a share alone flatters.
    """
    columns = (
        Column("mode", align="left"),
        Column("bound", align="left"),
        Column("scope", align="left"),
        Column("over static"),
        Column("realised", direction="up"),
    )
    rows = tuple(
        Row(
            (
                text(mode),
                text(BOUND_WORDS.get(name, name), record.note),
                text(record.scope),
                bound_cell(record),
                interval_cell(record.realised, Kind.PERCENT),
            )
        )
        for mode, found in result.bounds.items()
        for name, record in found.items()
    )
    notes: tuple[str, ...] = (
        "Realised: measured speed-up over static in that scope / bound. flop_bound: matrix "
        "products of later tokens alone; work_bound: prompts, first tokens and attention too; "
        "time_bound: stage times measured on this machine, at ideal packing on both sides.",
    )
    if any(r.over_passes is not None for found in result.bounds.values() for r in found.values()):
        notes += (
            "The interval of a time_bound is what other passes over the stages would change "
            "(bootstrap); it is part of its share's.",
        )
    return Table(columns, rows, "bounds, and the share of them realised", notes if rows else ())


def bound_cell(record: BoundRecord) -> Cell:
    """A bound as tables show it: a time bound with what other passes would change."""
    spread = record.over_passes
    if spread is None:
        return Cell(record.value, Kind.RATIO)
    return Cell(record.value, Kind.RATIO, spread.low, spread.high)

"""A recorded interval as a cell."""

from __future__ import annotations

from cdbench.render.formats import Kind
from cdbench.render.table import Cell, text
from cdbench.schema import IntervalRecord


def interval_cell(record: IntervalRecord | None, kind: Kind = Kind.NUMBER) -> Cell:
    """Estimate and interval; a dash where there is none."""
    if record is None:
        return text("-")
    return Cell(record.estimate, kind, record.low, record.high)

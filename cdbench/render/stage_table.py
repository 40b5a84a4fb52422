"""Stage curves as a table, and in words what they were measured on."""

from __future__ import annotations

from cdbench.render.formats import Kind, format_value
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.schema.stages import StageCurves, StagePoint

_PREFILL = "prompt tokens of a chunk; all its launches together"
_COLUMNS = (
    Column("stage", align="left"),
    Column("rows", note=f"of a launch; prefill: {_PREFILL}"),
    Column("context", note="positions a row attends to; prefill: tokens of one prompt"),
    Column("launch", direction="down", note="lower quartile of the passes [fastest, slowest pass]"),
    Column("per row", direction="down"),
    Column(
        "floor",
        priority=1,
        note="max(bytes / measured bandwidth, FLOPs / measured rate); weights that stay in a "
        "cache are read faster than the memory allows",
    ),
    Column("× floor", direction="down", priority=1),
)


def stage_table(document: StageCurves) -> Table:
    """One row a point, in the order of the document: by stage, context and rows."""
    return Table(_COLUMNS, tuple(_row(point) for point in document.points))


def stage_lines(document: StageCurves) -> list[str]:
    """Model, machine and set-up; marks such as random weights each on a line of its own."""
    key, floors = document.key, document.floors
    bandwidth = format_value(floors.bandwidth_bytes_per_s, Kind.BYTES).line
    rate = format_value(floors.matmul_flops_per_s / 1e9, Kind.NUMBER).line
    threads = f"{key.threads} thread{'s' if key.threads != 1 else ''}"
    return [
        f"{document.model}: {key.max_loops} loops, layers {key.layers}, {key.dtype}, KV layout "
        f"{key.kv_layout}, exit rule {key.exit_rule}",
        f"{key.device}, {threads}: {bandwidth}/s copied, {rate} GFLOP/s in matrix products",
        *(f"note: {note}" for note in document.notes),
    ]


def _row(point: StagePoint) -> Row:
    above = point.time_s / point.floor_s if point.floor_s > 0 else None
    cells = (
        text(point.stage),
        Cell(point.rows, Kind.COUNT),
        Cell(point.context, Kind.COUNT),
        Cell(point.time_s, Kind.SECONDS, point.low_s, point.high_s),
        Cell(point.time_s / point.rows, Kind.SECONDS),
        Cell(point.floor_s, Kind.SECONDS),
        Cell(above, Kind.RATIO),
    )
    return Row(cells)

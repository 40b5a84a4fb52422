"""What ``cdbench record`` prints, from the recording alone."""

from __future__ import annotations

from cdbench.render.formats import Kind
from cdbench.render.table import Cell, Column, Row, Table
from cdbench.schema.recording import Recording


def record_lines(document: Recording) -> list[str]:
    """What was recorded, before the table."""
    ran, signals = document.exit, document.signals
    lines = [
        f"recorded  {len(document.requests)} requests, {signals.tokens:,} later tokens, signals of "
        f"{ran.rule} at {signals.loops} loops ({signals.dtype})",
        f"at        {ran.rule}@{ran.threshold:g}, min_loops {ran.min_loops}, lag {ran.lag}, "
        f"{document.kv_layout}, {document.dtype} on {document.device}; "
        f"mean depth {_mean_depth(document)}",
    ]
    lines += [f"note      {note}" for note in document.notes]
    return [*lines, *(f"MARK      {mark}" for mark in document.marks)]


def agreement_table(document: Recording) -> Table:
    """Depths derived for other thresholds beside live runs at them."""
    columns = (
        Column("threshold"),
        Column("same depth", note="share of later tokens"),
        Column("mean |difference|", "loops"),
        Column("mean depth derived", "loops"),
        Column("mean depth live", "loops"),
    )
    rows = tuple(
        Row(
            (
                Cell(f"{a.threshold:g}", Kind.TEXT),
                Cell(a.equal, Kind.PERCENT, n=a.tokens if a.equal is None else None),
                Cell(a.mean_difference),
                Cell(a.mean_depth_derived),
                Cell(a.mean_depth_live),
            )
        )
        for a in document.agreement
    )
    note = (
        "Derived depths follow from the signals recorded at "
        f"{document.exit.rule}@{document.exit.threshold:g}; live runs at the other thresholds had "
        "the same tokens forced. They differ because earlier tokens left at other loops, and so "
        "left other keys and values behind."
    )
    return Table(columns, rows, title="Agreement with live runs", notes=(note,))


def _mean_depth(document: Recording) -> str:
    depths = [d for r in document.requests for d in r.executed_depths[1:]]
    return f"{sum(depths) / len(depths):.3f}" if depths else "n/a"

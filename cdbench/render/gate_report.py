"""What a gate prints in a terminal: its checks, those that hold last and shortest."""

from __future__ import annotations

from cdbench.render.formats import Kind
from cdbench.render.intervals import interval_cell
from cdbench.render.table import Column, Row, Table, text
from cdbench.schema.gating import GateReceipt

ORDER = ("FAIL", "INVALID", "INCONCLUSIVE", "PASS")
MANY = 12
"""Checks that hold are only counted where there are more than this."""


def gate_lines(receipt: GateReceipt) -> list[str]:
    """What must be known of the runs before any check is read."""
    lines = []
    for role, side in (("run", receipt.run), ("base", receipt.base)):
        if side is not None:
            lines += [f"{role}: {mark}" for mark in side.marks]
            lines += [f"{role} INVALID: {reason}" for reason in side.reasons]
    return lines


def gate_table(receipt: GateReceipt, full: bool) -> Table:
    """A row a check, the worst first."""
    passed = [check for check in receipt.checks if check.verdict == "PASS"]
    hidden = [] if full or len(passed) <= MANY else passed
    shown = [check for check in receipt.checks if full or not hidden or check.verdict != "PASS"]
    columns = (
        Column("check", align="left"),
        Column("verdict", align="left"),
        Column("as good as", note="run / base, turned so that above 1 is better", priority=1),
        Column("why", align="left"),
    )
    rows = tuple(
        Row(
            (
                text(check.name),
                text(check.verdict),
                interval_cell(check.ratio, Kind.RATIO),
                text(check.why),
            ),
            emphasis=check.verdict == "FAIL",
        )
        for check in sorted(shown, key=lambda check: ORDER.index(check.verdict))
    )
    notes = [f"{len(hidden)} checks hold (--full lists them)."] if hidden else []
    return Table(columns, rows, f"gate {receipt.gate}", tuple([*notes, *receipt.notes]))

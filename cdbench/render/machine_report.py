"""What a run saw of the machine around its timed repeats."""

from __future__ import annotations

from cdbench.render.formats import Kind
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.schema import Result

_KINDS = {
    "crowding": Kind.PERCENT,
    "waiting": Kind.PERCENT,
    "steal": Kind.PERCENT,
    "quota": Kind.PERCENT,
    "swapped_bytes": Kind.BYTES,
    "gpu_power_throttled": Kind.PERCENT,
    "gpu_thermal_throttled": Kind.PERCENT,
    "gpu_utilisation": Kind.PERCENT,
    "gpu_peak_allocated_bytes": Kind.BYTES,
}
"""How a figure reads; the others carry their unit in their name."""


def machine_table(result: Result) -> Table:
    """Median, least and most of every figure that this machine tells."""
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
        Row(
            (
                text(name),
                *(Cell(v, _KINDS.get(name, Kind.NUMBER)) for v in (s.median, s.low, s.high)),
            )
        )
        for name, s in seen.figures.items()
    )
    notes = [
        "Around every repeat. foreign_cores: cores that other processes kept busy; crowding: share "
        "of the cores computed on that they must have taken; waiting: share of the threads' time "
        "spent ready without a core; steal: share of the cores' time that the hypervisor took."
    ]
    if seen.unreadable:
        notes.append(f"This machine does not tell: {', '.join(seen.unreadable)}.")
    return Table(columns, rows, f"the machine over {seen.repeats} timed repeats", tuple(notes))

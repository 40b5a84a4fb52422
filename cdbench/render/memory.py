"""What ``equal: memory`` gave every mode: residents, and the KV of one request."""

from __future__ import annotations

from collections.abc import Iterator

from cdbench.render.formats import Kind, si_bytes
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.schema import EqualMemory, Result


def memory_table(result: Result) -> Table:
    """Mode, residents, KV of a request; no rows where all modes held equally many by design."""
    found = result.equal_memory
    columns = (
        Column("mode", align="left"),
        Column("residents", direction="up"),
        Column("KV of a request", direction="down"),
    )
    if found is None:
        return Table(columns, ())
    rows = tuple(
        Row(
            (
                text(label),
                Cell(mode.residents, Kind.COUNT),
                Cell(mode.kv_bytes_per_request, Kind.BYTES),
            )
        )
        for label, mode in found.modes.items()
    )
    title = f"equal memory: {si_bytes(found.budget_bytes)} of KV for each mode"
    return Table(columns, rows, title, tuple(_notes(found, result.workload.requests)))


def _notes(found: EqualMemory, requests: int) -> Iterator[str]:
    yield (
        "Residents: requests that fit the budget at once, counted with the largest, and the width "
        "of launches. KV of a request: as it ends, mean over the workload."
    )
    held = {mode.residents for mode in found.modes.values()}
    if len(held) > 1:
        yield (
            "Modes that hold more requests run wider launches: their speed-ups are those of width "
            "as well as of depth."
        )
    every = [label for label, mode in found.modes.items() if mode.residents >= requests]
    if every:
        names = ", ".join(every)
        yield f"All {requests} requests fit at once in {names}: more memory would change nothing."

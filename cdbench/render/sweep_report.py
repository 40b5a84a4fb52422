"""What a sweep prints: its plan before it runs, and the cells' figures side by side after."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from cdbench.metrics.registry import METRICS
from cdbench.render.formats import Kind, seconds
from cdbench.render.table import Cell, Column, Direction, Row, Table, text
from cdbench.schema.sweep import SweepCell, SweepDocument, SweepEstimate
from cdbench.stats.blocks import MIN_BLOCKS
from cdbench.sweep.changes import plain

UNIT_KINDS = {"s": Kind.SECONDS, "s/token": Kind.SECONDS, "fraction": Kind.PERCENT}


def plan_table(document: SweepDocument) -> Table:
    """Number, hash, changed keys, state and expected time of every cell."""
    titles = short_names(document.varied)
    columns = (
        Column("cell"),
        Column("hash", align="left"),
        *(Column(titles[key]) for key in document.varied),
        Column("state", align="left"),
        Column("time left", priority=1),
    )
    rows = tuple(
        Row(
            (
                text(str(cell.number)),
                text(cell.hash),
                *_changed(cell, document.varied),
                text(state_words(cell)),
                Cell(_left(cell, document.estimate), Kind.SECONDS),
            )
        )
        for cell in document.cells
    )
    return Table(columns, rows, f"sweep {document.name}", notes=tuple(document.notes))


def _left(cell: SweepCell, estimate: SweepEstimate | None) -> float | None:
    waiting = estimate.left_per_cell.get(cell.hash, 0) if estimate is not None else 0
    if estimate is None or waiting == 0:
        return 0.0
    one = estimate.per_cell.get(cell.hash)
    return None if one is None else waiting * one


def summary_tables(document: SweepDocument, fits: Callable[[Table], bool]) -> Iterator[Table]:
    """The summary in as many tables as it takes for every figure to be shown.

    Where not even two figures stand side by side it is one table, to be printed as records.
    """
    parts = _parts(document, fits)
    if len(parts) > 1 and len(parts[0]) < 2:
        parts = [list(document.columns)]
    for number, names in enumerate(parts, start=1):
        last = number == len(parts)
        notes = _notes(document) if last else []
        yield _summary(document, names, notes, verdicts=last)


def _parts(document: SweepDocument, fits: Callable[[Table], bool]) -> list[list[str]]:
    """The columns in their order, in as few tables as fit and as even ones as may be."""
    left, parts = list(document.columns), []
    while left:
        count = next(
            (n for n in range(len(left), 1, -1) if fits(_summary(document, left[:n], []))), 1
        )
        parts.append(left[:count])
        left = left[count:]
    if not parts:
        return [[]]
    names, size = document.columns, -(-len(document.columns) // len(parts))
    even = [names[start : start + size] for start in range(0, len(names), size)]
    return even if all(fits(_summary(document, part, [])) for part in even) else parts


def summary_table(document: SweepDocument) -> Table:
    """The changed keys and the figures of every cell, with intervals where there are any."""
    return _summary(document, document.columns, _notes(document))


def _summary(
    document: SweepDocument, names: Sequence[str], notes: Sequence[str], verdicts: bool = True
) -> Table:
    titles = short_names(document.varied)
    columns = [Column("cell"), *(Column(titles[key]) for key in document.varied)]
    columns += [figure_column(name) for name in names]
    rows = [
        [text(str(cell.number)), *_changed(cell, document.varied)]
        + [_figure(cell, name) for name in names]
        for cell in document.cells
    ]
    if verdicts:
        columns.append(Column("verdict", align="left"))
        for row, cell in zip(rows, document.cells, strict=True):
            row.append(text(state_words(cell), note=_why(cell)))
    return Table(
        tuple(columns),
        tuple(Row(tuple(row)) for row in rows),
        f"sweep {document.name}",
        notes=tuple(notes),
    )


def figure_column(name: str) -> Column:
    """``cdb mean depth (loops)`` for ``cdb.mean_depth``: words, which a narrow header can fold."""
    metric = _metric_of(name)
    kind = figure_kind(name)
    unit = METRICS[metric].unit if metric is not None and kind is Kind.NUMBER else ""
    title = re.sub(r"[._]", " ", name)
    said = unit in title.split()  # ms per loop
    return Column(title, unit="" if said else unit, direction=_direction(name))


def estimate_words(estimate: SweepEstimate) -> str:
    """``6 runs left, about 3.2 min (estimate from 4 finished cells)``."""
    left = f"{estimate.cells_left} run{'' if estimate.cells_left == 1 else 's'} left"
    if estimate.cells_left == 0:
        return left
    if estimate.seconds is None:
        return f"{left}; no estimate: no cell has finished here"
    cells = f"{estimate.finished} finished cell{'' if estimate.finished == 1 else 's'}"
    return f"{left}, about {duration(estimate.seconds)} (estimate from {cells})"


def duration(length_s: float) -> str:
    """A length of time in the unit a person would take."""
    if length_s < 90:
        return seconds(length_s)
    return f"{length_s / 60:.0f} min" if length_s < 5400 else f"{length_s / 3600:.1f} h"


def state_words(cell: SweepCell) -> str:
    """One word for a cell, or how far its rounds are."""
    if cell.verdict is not None:
        return cell.verdict
    states = [r.state for r in cell.rounds]
    if len(states) == 1:
        return states[0]
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Each dotted key by its last part, where no other key ends the same."""
    last = [key.rpartition(".")[2] for key in keys]
    return {
        key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)
    }


def _changed(cell: SweepCell, varied: Sequence[str]) -> list[Cell]:
    return [text(plain(cell.changes[key]) if key in cell.changes else "-") for key in varied]


def _figure(cell: SweepCell, name: str) -> Cell:
    found = cell.figures.get(name)
    if found is None:
        return Cell(None) if cell.rounds[0].state == "finished" else text("-")
    return Cell(found.estimate, figure_kind(name), found.low, found.high)


def figure_kind(name: str) -> Kind:
    """How a column's values read."""
    if _is_stage(name):
        return Kind.SECONDS
    if "/" in name and _metric_of(name) is None:
        return Kind.RATIO
    if name.endswith(".accuracy") or ".realised." in name:
        return Kind.PERCENT
    metric = _metric_of(name)
    return UNIT_KINDS.get(METRICS[metric].unit, Kind.NUMBER) if metric else Kind.NUMBER


def _direction(name: str) -> Direction:
    metric = _metric_of(name)
    if metric is None:
        return "down" if _is_stage(name) else "up"
    return METRICS[metric].direction


def _metric_of(name: str) -> str | None:
    """The metric a column shows; None for ratios, shares of a bound and accuracy."""
    parts = name.split(".")
    return next((part for part in reversed(parts[-2:]) if part in METRICS), None)


def _is_stage(name: str) -> bool:
    """Whether a column is the time of a launch: ``core[32]``."""
    return name.endswith("]")


def _why(cell: SweepCell) -> str | None:
    errors = [r.error for r in cell.rounds if r.error is not None]
    return "; ".join(dict.fromkeys([*errors, *cell.reasons])) or None


def _notes(document: SweepDocument) -> list[str]:
    counted = [f.n for cell in document.cells for f in cell.figures.values() if f.low is not None]
    rounds = f" of {document.rounds} rounds" if document.rounds > 1 else ""
    notes = []
    if counted and document.verb == "stages":
        notes.append("Time of one launch of [rows], with the fastest and the slowest pass.")
    elif counted:
        notes.append(f"Means over the blocks{rounds} with 95 % t intervals; a/b: a is faster.")
    elif document.columns:
        notes.append(f"No intervals: they need {MIN_BLOCKS} blocks.")
    flagged = [str(c.number) for c in document.cells if any(r.flags for r in c.rounds)]
    if flagged:
        cells = "Cell {} has" if len(flagged) == 1 else "Cells {} have"
        notes.append(f"{cells.format(', '.join(flagged))} flags to mind: see sweep.json.")
    return notes + document.notes

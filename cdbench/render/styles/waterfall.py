"""Style ``waterfall``: from the loops saved to the measured speed-up, a table for each mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cdbench.errors import UsageError
from cdbench.render.styles.assemble import spoilt
from cdbench.render.styles.facts import FACTS, caption, reasons
from cdbench.render.styles.points import Measured, Point
from cdbench.render.table import Table
from cdbench.render.waterfall import waterfall_table

_SCOPE = (
    "Each row refines both sides by one more effect, so that the factors multiply out; in brackets "
    "t intervals over blocks, widened by what other passes over the stages would change."
)


def tables(measured: Measured) -> list[Table]:
    """A table for each mode of each run that has a waterfall. UsageError where none has."""
    made = [table for point in measured.points for table in _of(point, len(measured.points) > 1)]
    if not made:
        why = next(_why(measured), "nothing was timed, or its result.json is not there")
        raise UsageError(
            f"--style waterfall: {measured.points[0].name} has no waterfall ({why}); run "
            "`cdbench run --work equal --modes static,cdb --set stages=measure`"
        )
    return made


def _of(point: Point, named: bool) -> Iterator[Table]:
    for number, result in enumerate(point.results, start=1):
        rounds = f", round {number}" if len(point.results) > 1 else ""
        for mode, found in (result.waterfall or {}).items():
            if not found.rows:
                continue
            table = waterfall_table(found, mode)
            title = f"{table.title} ({point.name}{rounds})" if named or rounds else table.title
            rows = tuple(
                replace(row, cells=tuple(spoilt(c) for c in row.cells)) if point.invalid else row
                for row in table.rows
            )
            yield replace(
                table,
                rows=rows,
                title=title,
                notes=(*table.notes, *reasons([point])),
                caption=caption([point], FACTS, _SCOPE),
            )


def _why(measured: Measured) -> Iterator[str]:
    for point in measured.points:
        for result in point.results:
            yield from (w.reason for w in (result.waterfall or {}).values() if w.reason)

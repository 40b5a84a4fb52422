"""Style ``exit-sweep``: what an exit threshold buys, and what it costs in answers."""

from __future__ import annotations

from cdbench.errors import UsageError
from cdbench.render.formats import Kind
from cdbench.render.styles.assemble import NOTHING, Line, Look, Measure, assemble, worded
from cdbench.render.styles.facts import EXIT, exit_of, short_exit, subject
from cdbench.render.styles.figures import (
    REALISED_NOTE,
    SCOPE,
    accuracy,
    accuracy_notes,
    baselines,
    depth_of,
    mean_depth,
    metric,
    speedups,
)
from cdbench.render.styles.points import Measured, Point
from cdbench.render.table import Cell, Column, Table
from cdbench.schema import ExitSettings


def tables(measured: Measured) -> list[Table]:
    """One table: a line for each threshold. UsageError where no adaptive mode ran.

    No cell is marked best: other thresholds give other answers, so that more speed alone is not
    better.
    """
    lines = [
        Line(point, mode)
        for point in measured.points
        if (mode := subject(point)) is not None and depth_of(point, mode) is not None
    ]
    if not lines:
        raise UsageError(
            f"--style exit-sweep: {measured.points[0].name} has no adaptive mode with a mean "
            "depth; run `cdbench sweep paper/exit-sweep.cpu`"
        )
    modes = sorted({line.mode for line in lines})
    overs = baselines([line.point for line in lines], modes)
    measures = [
        _rule(),
        _threshold(),
        mean_depth(),
        *accuracy(1),
        metric("output_throughput", Kind.NUMBER, "output", priority=3),
        *speedups(overs),
    ]
    look = Look(
        f"{' and '.join(modes)} by exit threshold",
        SCOPE if overs else "",
        (*((REALISED_NOTE,) if overs else ()), *accuracy_notes(line.point for line in lines)),
        shows=(EXIT,),
        timed=bool(overs),
        by_mode=len(modes) > 1,
    )
    return [assemble(lines, measures, measured, look)]


def _settings(point: Point, mode: str) -> ExitSettings | None:
    return point.first.modes[mode].exit if point.first is not None else None


def _rule() -> Measure:
    """The rule by name, with lag and floor where they are not the usual ones."""

    def words(point: Point, mode: str) -> str | None:
        found = _settings(point, mode)
        if found is None:
            return exit_of(point)
        return short_exit(found.model_copy(update={"threshold": None}))

    made = worded(Column("exit rule", align="left", name="exit.rule"), words)
    return Measure(made.column, made.read, label=True)


def _threshold() -> Measure:
    def cell(point: Point, mode: str) -> Cell:
        found = _settings(point, mode)
        return NOTHING if found is None or found.threshold is None else Cell(found.threshold)

    return Measure(Column("threshold", name="exit.threshold"), cell, label=True)

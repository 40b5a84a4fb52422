"""Style ``width-sweep``: how wide launches must be for the gain to be worth its schedule."""

from __future__ import annotations

from cdbench.errors import UsageError
from cdbench.render.formats import Kind
from cdbench.render.styles import points as read
from cdbench.render.styles.assemble import NOTHING, Line, Look, Measure, assemble, measure
from cdbench.render.styles.facts import WIDTH, subject
from cdbench.render.styles.figures import REALISED_NOTE, SCOPE, baselines, metric, speedups
from cdbench.render.styles.points import Measured, Point
from cdbench.render.table import Cell, Column, Table

_NOTE = (
    "A realised share alone flatters: narrow launches leave static slow as well. ms per loop: core "
    "stage time / core launches; its floor is the most of bytes / measured bandwidth and FLOPs / "
    "measured rate."
)


def tables(measured: Measured) -> list[Table]:
    """One table: a line for each width. UsageError where no adaptive mode was timed."""
    lines = [
        Line(point, mode)
        for point in measured.points
        if (mode := subject(point)) is not None and _timed(point, mode)
    ]
    if not lines:
        raise UsageError(
            f"--style width-sweep: {measured.points[0].name} has no adaptive mode that was timed; "
            "run `cdbench sweep paper/width-sweep.cpu`"
        )
    modes = sorted({line.mode for line in lines})
    overs = baselines([line.point for line in lines], modes)
    measures = [
        _width("width"),
        _width("max_residents"),
        metric("output_throughput", Kind.NUMBER, "output", priority=2),
        *speedups(overs),
        *_loops(),
        metric("core_occupancy", Kind.PERCENT, "occupancy", priority=4),
    ]
    look = Look(
        f"{' and '.join(modes)} by width of a launch",
        SCOPE,
        (REALISED_NOTE, _NOTE),
        shows=(WIDTH,),
        by_mode=len(modes) > 1,
    )
    return [assemble(lines, measures, measured, look)]


def _timed(point: Point, mode: str) -> bool:
    return point.value(read.metric(mode, "output_throughput")) is not None


def _width(name: str) -> Measure:
    def cell(point: Point, mode: str) -> Cell:
        found = point.first.modes[mode] if point.first is not None else None
        asked = point.config.get("engine") or {}
        number = asked.get(name) if found is None else getattr(found, name)
        return NOTHING if number is None else Cell(number, Kind.COUNT)

    title = {"width": "width", "max_residents": "residents"}[name]
    column = Column(title, "rows" if name == "width" else "", name=f"engine.{name}")
    return Measure(column, cell, label=True)


def _loops() -> list[Measure]:
    """Milliseconds of a loop, beside the floor, for the mode and for static."""
    own = [
        metric("ms_per_loop", Kind.NUMBER, "measured", group="ms per loop", priority=3),
        metric("floor_ms_per_loop", Kind.NUMBER, "floor", group="ms per loop", priority=3),
    ]
    static = Column(
        "static", "ms", "down", group="ms per loop", priority=3, name="static.ms_per_loop"
    )
    theirs = measure(
        static, Kind.NUMBER, lambda point, _: point.value(read.metric("static", "ms_per_loop"))
    )
    return [*own, theirs]

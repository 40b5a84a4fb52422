"""Style ``speedup``: every adaptive mode of every run over every baseline, with its bounds."""

from __future__ import annotations

from cdbench.errors import UsageError
from cdbench.render.styles.assemble import Line, Look, assemble
from cdbench.render.styles.facts import ADAPTIVE
from cdbench.render.styles.figures import (
    REALISED_NOTE,
    SCOPE,
    accuracy,
    accuracy_notes,
    baselines,
    mean_depth,
    speedups,
)
from cdbench.render.styles.points import Measured
from cdbench.render.table import Table


def tables(measured: Measured) -> list[Table]:
    """One table: a line for each run and adaptive mode. UsageError where nothing was compared."""
    several = len(measured.points) > 1
    lines = [
        Line(point, mode, point.name if several else None)
        for point in measured.points
        for mode in point.modes
        if mode in ADAPTIVE and baselines([point], [mode])
    ]
    if not lines:
        raise UsageError(
            f"--style speedup: {measured.points[0].name} has no speed-up of an adaptive mode (none "
            "was timed beside another on equal work, or requests arrived at times of their own); "
            "run `cdbench run --work equal --modes static,lockstep,cdb`"
        )
    overs = baselines([line.point for line in lines], ADAPTIVE)
    look = Look(
        "Speed-up on equal work",
        SCOPE,
        (REALISED_NOTE, *accuracy_notes(line.point for line in lines)),
        by_mode=True,
        judged=True,
    )
    return [assemble(lines, [mean_depth(4), *accuracy(1), *speedups(overs)], measured, look)]

"""From passes over the grid to the points of stage curves, of a meter and of its records alike.

And to curves as other passes might have given them, so that what is made from curves can say how
far it depends on the passes that there happened to be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from cdbench.metrics.curves import CURVE_STAGES, CurvePoint, CurveStage, MeasuredCurves
from cdbench.schema.stages import StageFloors, StagePassPoint, StagePassRecord, StagePoint

UNDISTURBED = 0.25
"""The quantile over passes that a point is: interruptions only ever add to a pass, and on a shared
machine they reach half of the passes of a cell."""

REDRAWN = 200
"""Curves of passes drawn again."""
MIN_PASSES = 5
"""Fewer passes say too little of others."""

Place = tuple[CurveStage, int, int]
"""Stage, rows, context."""


def points_of(passes: Sequence[StagePassRecord], floors: StageFloors) -> list[StagePoint]:
    """The points of these passes by stage, context and rows: the quartile of each, its extremes."""
    found = _by_place(passes)
    places = sorted(found, key=lambda p: (CURVE_STAGES.index(p[0]), p[2], p[1]))
    return [_point(place, found[place], floors) for place in places]


def redrawn_curves(passes: Sequence[StagePassRecord], seed: int = 0) -> list[MeasuredCurves]:
    """Curves of as many passes, whole ones, drawn from these with replacement.

    Empty below ``MIN_PASSES``, or where the passes are not all over one whole grid. The same passes
    and seed give the same curves.
    """
    found = _by_place(passes)
    if len(passes) < MIN_PASSES or any(len(points) != len(passes) for points in found.values()):
        return []
    means_s_NP = np.array([[point.mean_s for point in points] for points in found.values()])
    draws = np.random.default_rng(seed).integers(len(passes), size=(REDRAWN, len(passes)))
    times_s_ND = np.quantile(means_s_NP[:, draws], UNDISTURBED, axis=2)
    try:
        return [
            MeasuredCurves(
                CurvePoint(stage, rows, context, float(time_s))
                for (stage, rows, context), time_s in zip(found, times_s, strict=True)
            )
            for times_s in times_s_ND.T
        ]
    except ValueError:  # points are missing from all of them: no curves
        return []


def _by_place(passes: Sequence[StagePassRecord]) -> dict[Place, list[StagePassPoint]]:
    found: dict[Place, list[StagePassPoint]] = defaultdict(list)
    for one in passes:
        for point in one.points:
            found[point.stage, point.rows, point.context].append(point)
    return found


def _point(place: Place, found: Sequence[StagePassPoint], floors: StageFloors) -> StagePoint:
    stage, rows, context = place
    means_s = [point.mean_s for point in found]
    return StagePoint(
        stage=stage,
        rows=rows,
        context=context,
        time_s=float(np.quantile(means_s, UNDISTURBED)),
        low_s=min(means_s),
        high_s=max(means_s),
        passes=len(means_s),
        launches=sum(point.launches for point in found),
        floor_s=floors.floor_s(stage, rows, context),
    )

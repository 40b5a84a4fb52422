"""From passes over the grid to the points of stage curves, of a meter and of its records alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from cdbench.metrics.curves import CURVE_STAGES, CurveStage
from cdbench.schema.stages import StageFloors, StagePassPoint, StagePassRecord, StagePoint

UNDISTURBED = 0.25
"""The quantile over passes that a point is: interruptions only ever add to a pass, and on a shared
machine they reach half of the passes of a cell."""

Place = tuple[CurveStage, int, int]
"""Stage, rows, context."""


def points_of(passes: Sequence[StagePassRecord], floors: StageFloors) -> list[StagePoint]:
    """The points of these passes by stage, context and rows: the quartile of each, its extremes."""
    found: dict[Place, list[StagePassPoint]] = defaultdict(list)
    for one in passes:
        for point in one.points:
            found[point.stage, point.rows, point.context].append(point)
    places = sorted(found, key=lambda p: (CURVE_STAGES.index(p[0]), p[2], p[1]))
    return [_point(place, found[place], floors) for place in places]


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

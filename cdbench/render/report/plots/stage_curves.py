"""The stage curves that a run used: what one launch of each stage takes, by its rows."""

from __future__ import annotations

import math
from typing import Any

from cdbench.render.formats import seconds
from cdbench.render.report.parts import Plot
from cdbench.render.report.plots.style import SMALL_POINTS, frame, legend_below
from cdbench.render.stage_plot import panel
from cdbench.schema.stages import StageCurves, StagePoint

COLUMNS = 2


def stage_curves(document: StageCurves) -> Plot | None:
    """A panel for each stage; None without a point."""
    stages = list(dict.fromkeys(point.stage for point in document.points))
    if not stages:
        return None
    ends = [_ends([p for p in document.points if p.stage == stage]) for stage in stages]
    return Plot(
        name="stage-curves",
        title="Stage curves: time of a launch",
        says=f"Time of one launch. {' '.join(ends)}",
        draw=lambda: _draw(document),
        data={
            "points": [
                p.model_dump(mode="json", include={"stage", "rows", "context", "time_s", "floor_s"})
                for p in document.points
            ]
        },
        notes=(
            "Line: lower quartile over passes, band from the fastest pass to the slowest, dashed: "
            "the least that this machine allows. Both axes are logarithmic.",
        ),
    )


def _ends(points: list[StagePoint]) -> str:
    first = min(points, key=lambda p: (p.rows, p.context))
    last = max(points, key=lambda p: (p.rows, p.context))
    return (
        f"{first.stage}: {seconds(first.time_s)} at {first.rows} rows and context "
        f"{first.context}, {seconds(last.time_s)} at {last.rows} rows and context {last.context}."
    )


def _draw(document: StageCurves) -> Any:
    stages = list(dict.fromkeys(point.stage for point in document.points))
    rows = math.ceil(len(stages) / COLUMNS)
    figure, grid = frame(1.75 * rows + 0.35, rows, COLUMNS)
    cells = list(grid.flat)
    for axes, stage in zip(cells, stages, strict=False):
        panel(axes, stage, [p for p in document.points if p.stage == stage], per_row=False)
        _plain_ticks(axes.yaxis)
        axes.set_title(stage.replace("_", " "), fontsize=SMALL_POINTS + 0.5)
    for axes in cells[len(stages) :]:
        axes.set_axis_off()
    decode = next((i for i, stage in enumerate(stages) if stage != "prefill"), 0)
    handles, _ = cells[decode].get_legend_handles_labels()
    legend_below(figure, handles)
    return figure


def _plain_ticks(axis: Any) -> None:
    """Ticks at 1, 2 and 5, written out: a launch seldom varies by a power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())

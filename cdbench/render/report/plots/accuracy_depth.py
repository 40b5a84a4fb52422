"""Accuracy against mean depth, and the envelope of fixed depths that an adaptive rule must beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cdbench.metrics.envelope import Point, height_at, upper_hull
from cdbench.render.colours import MUTED
from cdbench.render.formats import percent, points
from cdbench.render.report.parts import Plot
from cdbench.render.report.plots.style import (
    SMALL_POINTS,
    ends,
    frame,
    label,
    legend_below,
    look,
)
from cdbench.render.report.source import Styles
from cdbench.schema import IntervalRecord, Result


@dataclass(frozen=True)
class AccuracyAt:
    """A mode's accuracy; ``depth`` None for a decoder without loops."""

    mode: str
    depth: float | None
    rate: IntervalRecord
    fixed: bool

    @property
    def words(self) -> str:
        """Depth and accuracy with its interval."""
        share = percent(self.rate.estimate, self.rate.low, self.rate.high)
        where = "without loops" if self.depth is None else f"at {self.depth:.2f} loops"
        return f"{label(self.mode)} {share} {where}"


def accuracy_points(result: Result) -> list[AccuracyAt]:
    """Every mode that answered questions which are right or wrong, fixed depths by depth first."""
    if result.accuracy is None:
        return []
    found = []
    for name, mode in result.modes.items():
        answered = result.accuracy.modes.get(name)
        if answered is None or answered.rate is None or answered.rate.estimate is None:
            continue
        fixed = mode.schedule == "static"
        depth = float(mode.max_loops) if fixed else mode.answered_depth
        if mode.schedule == "dense":
            depth = None
        elif depth is None:
            continue
        found.append(AccuracyAt(name, depth, answered.rate, fixed))
    return sorted(found, key=lambda p: (not p.fixed, p.depth or 0.0))


def envelope(found: Sequence[AccuracyAt]) -> list[Point]:
    """The upper hull of the fixed depths; ``static@auto`` answered fewer questions and is not in it
    where another row has its depth."""
    best: dict[float, AccuracyAt] = {}
    for point in found:
        if point.fixed and point.depth is not None:
            held = best.get(point.depth)
            if held is None or point.rate.n > held.rate.n:
                best[point.depth] = point
    return list(upper_hull([(depth, best[depth].rate.estimate or 0.0) for depth in sorted(best)]))


def accuracy_depth(result: Result, styles: Styles) -> Plot | None:
    """The picture; None where no mode has an accuracy."""
    found = accuracy_points(result)
    if not found:
        return None
    hull = envelope(found)
    notes = ["Bars: 95% intervals of each accuracy. Up and to the left is better."]
    if len(hull) > 1:
        notes.append(
            "Dashed: what mixing the fixed depths that ran reaches at each mean depth. A rule "
            "below it wastes its loops."
        )
    else:
        notes.append("Only one fixed depth ran, so there is no envelope: add static@1, static@2, …")
    notes += _fewer(found)
    return Plot(
        name="accuracy-against-depth",
        title="Accuracy against mean depth",
        says="; ".join([*(p.words for p in found), *_against(found, hull)]) + ".",
        draw=lambda: _draw(found, hull, styles),
        data={
            "points": [
                {"mode": p.mode, "mean_depth": p.depth, **p.rate.model_dump(mode="json")}
                for p in found
            ],
            "envelope": [list(corner) for corner in hull],
        },
        notes=tuple(notes),
    )


def _fewer(found: Sequence[AccuracyAt]) -> list[str]:
    """Which modes answered fewer questions than the others."""
    most = max(point.rate.n for point in found)
    words = [
        f"{label(point.mode)} answered {point.rate.n:,}" for point in found if point.rate.n < most
    ]
    return [f"Of {most:,} questions {', '.join(words)}."] if words else []


def _against(found: Sequence[AccuracyAt], hull: Sequence[Point]) -> list[str]:
    """Every adaptive point held against the envelope, where that reaches it."""
    said = []
    for point in found:
        there = None if point.fixed or len(hull) < 2 else height_at(hull, point.depth)
        if there is not None:
            said.append(
                f"at the depth of {label(point.mode)} the fixed depths reach {percent(there)} "
                f"({points((point.rate.estimate or 0.0) - there)})"
            )
    return said


def _draw(found: Sequence[AccuracyAt], hull: Sequence[Point], styles: Styles) -> Any:
    figure, ((axes,),) = frame(3.1)
    handles = []
    if len(hull) > 1:
        xs, ys = zip(*hull, strict=True)
        (line,) = axes.plot(xs, ys, color=MUTED.light, linestyle=(0, (4, 2)), linewidth=1)
        line.set_label("fixed depths, mixed")
        handles.append(line)
    for point in found:
        handles.append(_mark(axes, point, styles))
    most = max((p.depth or 0.0 for p in found), default=1.0)
    axes.set_xlim(0, most * 1.08 + 0.1)
    axes.set_xlabel("mean depth (loops, ← fewer is better)")
    axes.set_ylabel("accuracy (↑ better)")
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
    legend_below(figure, handles)
    return figure


def _mark(axes: Any, point: AccuracyAt, styles: Styles) -> Any:
    style = styles[point.mode]
    drawn = look(style, line=False) | {"label": label(point.mode)}
    estimate, colour = point.rate.estimate, style.tone.light
    if point.depth is None:  # no loops, so no place on the axis: a line across
        line = axes.axhline(estimate, color=colour, linestyle=style.line, linewidth=1.1)
        line.set_label(f"{label(point.mode)} (no loops)")
        return line
    if sure := ends(point.rate):
        axes.vlines(point.depth, *sure, color=colour, linewidth=1.1)
    (mark,) = axes.plot([point.depth], [estimate], **drawn)
    if point.fixed:
        axes.annotate(
            f"{point.depth:g}",
            (point.depth, estimate),
            xytext=(5, 3),
            textcoords="offset points",
            fontsize=SMALL_POINTS,
        )
    return mark

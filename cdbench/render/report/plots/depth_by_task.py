"""Exit histograms: the share of later tokens at every depth, of all tasks and of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdbench.render.colours import INK, ModeStyle
from cdbench.render.formats import percent
from cdbench.render.report.parts import Plot
from cdbench.render.report.plots.files import file_stem
from cdbench.render.report.plots.style import (
    SMALL_POINTS,
    WIDTH_INCHES,
    ends,
    frame,
    label,
)
from cdbench.schema import IntervalRecord, Result

MOST_TASKS = 8
COLUMNS = 3
LABELLED_DEPTHS = 6
"""Up to as many bars a panel has room for their shares."""
PANEL_INCHES = 1.35
ABOVE = 1.2
"""Where the mean stands: above any bar and its label."""


@dataclass(frozen=True)
class Panel:
    """One histogram; ``mean`` has an interval where the run compared its tasks."""

    name: str
    counts: tuple[int, ...]
    mean: IntervalRecord

    @property
    def shares(self) -> list[float]:
        """Of later tokens, by depth from 1."""
        total = sum(self.counts)
        return [count / total for count in self.counts]


def depth_by_task(result: Result, mode: str, style: ModeStyle) -> Plot | None:
    """Histograms of one adaptive mode; None where it has no later token."""
    panels = _panels(result, mode)
    if not panels:
        return None
    left_out = len(result.modes[mode].depth_histogram_by_task) - (len(panels) - 1)
    notes = ["Triangle: mean depth, with its interval where one is known."]
    if left_out > 0 and len(panels) > 1:
        notes.append(f"Shown are the {MOST_TASKS} tasks with most tokens; {left_out} are not.")
    return Plot(
        name=f"exit-depths-by-task-{file_stem(mode)}",
        title=f"Exit depths of {label(mode)}, by task",
        says=f"Share of later tokens by depth. {' '.join(_words(panel) for panel in panels)}",
        draw=lambda: _draw(panels, style),
        data={panel.name: list(panel.counts) for panel in panels},
        notes=tuple(notes),
    )


def _panels(result: Result, mode: str) -> list[Panel]:
    found = result.modes[mode]
    if not found.depth_histogram or not sum(found.depth_histogram):
        return []
    intervals = _intervals(result)
    panels = [_panel("all tasks", found.depth_histogram, {})]
    by_task = {name: n for name, n in found.depth_histogram_by_task.items() if sum(n)}
    if len(by_task) < 2:
        return panels
    largest = sorted(by_task, key=lambda name: -sum(by_task[name]))[:MOST_TASKS]
    return panels + [_panel(name, by_task[name], intervals) for name in by_task if name in largest]


def _intervals(result: Result) -> dict[str, tuple[list[int], IntervalRecord]]:
    """Task → the histogram that was compared, and the interval of its mean."""
    if result.exits is None:
        return {}
    return {task.task: (task.histogram, task.mean_depth) for task in result.exits.tasks}


def _panel(
    name: str,
    counts: Sequence[int],
    intervals: Mapping[str, tuple[list[int], IntervalRecord]],
) -> Panel:
    total = sum(counts)
    mean = sum(depth * count for depth, count in enumerate(counts, start=1)) / total
    histogram, interval = intervals.get(name, ([], None))
    # The tasks may have been compared in another pass than the one that is shown.
    if interval is None or list(histogram) != list(counts):
        interval = IntervalRecord(estimate=mean, n=total)
    return Panel(name, tuple(counts), interval)


def _words(panel: Panel) -> str:
    shares = ", ".join(
        f"depth {depth} {percent(share)}" for depth, share in enumerate(panel.shares, start=1)
    )
    mean = panel.mean
    sure = ends(mean)
    interval = f" [{sure[0]:.2f}, {sure[1]:.2f}]" if sure else ""
    tokens = sum(panel.counts)
    return f"{label(panel.name)} ({tokens:,} tokens, mean {mean.estimate:.2f}{interval}): {shares}."


def _draw(panels: Sequence[Panel], style: ModeStyle) -> Any:
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    height = 2.2 if len(panels) == 1 else PANEL_INCHES * rows + 0.4
    figure, grid = frame(height, rows, columns, sharex=True, sharey=True)
    cells = list(grid.flat)
    for axes, panel in zip(cells, panels, strict=False):
        _one(axes, panel, style, WIDTH_INCHES / columns)
    for axes in cells[len(panels) :]:
        axes.set_axis_off()
    for axes in cells[max(0, len(panels) - columns) : len(panels)]:
        axes.tick_params(labelbottom=True)
    figure.supxlabel("depth (loops)")
    figure.supylabel("share of later tokens")
    return figure


def _one(axes: Any, panel: Panel, style: ModeStyle, width_inches: float) -> None:
    depths = list(range(1, len(panel.counts) + 1))
    axes.bar(depths, panel.shares, width=0.72, color=style.tone.light, alpha=0.8)
    mean = panel.mean
    if sure := ends(mean):
        axes.hlines(ABOVE, *sure, color=INK.light, linewidth=1.2)
    axes.plot([mean.estimate], [ABOVE], marker="v", markersize=3.5, color=INK.light)
    axes.set_title(label(panel.name, int(width_inches * 12)))
    axes.set_ylim(0, 1.3)
    axes.set_yticks([0, 0.5, 1], ["0", "50%", "100%"])
    axes.grid(visible=False, axis="x")
    few = len(depths) <= LABELLED_DEPTHS
    axes.set_xticks(depths if few else [d for d in depths if d == 1 or d % 4 == 0])
    for depth, share in zip(depths, panel.shares, strict=True):
        if few and share > 0:
            text = f"{share:.0%}" if share >= 0.005 else "<1%"
            axes.annotate(
                text,
                (depth, share),
                xytext=(0, 1.5),
                textcoords="offset points",
                ha="center",
                fontsize=SMALL_POINTS - 0.5,
            )

"""Occupancy over time, and the launches behind it."""

from __future__ import annotations

from cdbench.render.full_report import launch_table
from cdbench.render.report.parts import Part, Pictures, Prose, Section, tables
from cdbench.render.report.plots.occupancy import occupancy as occupancy_plot
from cdbench.render.report.sections.throughput import NOT_TIMED
from cdbench.render.report.source import ReportRun


def occupancy(run: ReportRun) -> Section:
    """The picture needs the launches themselves; the table does not."""
    found = tables(launch_table(run.result))
    parts: list[Part] = []
    if run.raw is not None:
        plot = occupancy_plot(run.raw.repeats, run.styles)
        if plot is not None:
            parts.append(Pictures((plot,)))
    elif found:
        parts.append(Prose((run.without_raw,)))
    parts += found
    if not parts:
        parts.append(Prose((NOT_TIMED,)))
    return Section("occupancy", "Occupancy over time", tuple(parts))

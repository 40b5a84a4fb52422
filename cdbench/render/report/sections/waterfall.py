"""Bounds and the waterfall: what adaptive depth could gain, and where the rest went."""

from __future__ import annotations

from cdbench.render.bounds import bounds_table
from cdbench.render.report.parts import Folded, Part, Pictures, Prose, Section, tables
from cdbench.render.report.plots.waterfall import waterfall_plot
from cdbench.render.report.source import ReportRun
from cdbench.render.waterfall import waterfall_table

FIRST = ("cdb", "lockstep")


def waterfall(run: ReportRun) -> Section:
    """A picture and its table for each mode, cdb's first, then the bounds."""
    found = run.result.waterfall or {}
    modes = [*(mode for mode in FIRST if mode in found), *(m for m in found if m not in FIRST)]
    drawn = [waterfall_plot(found[mode], mode, run.styles[mode]) for mode in modes]
    plots = tuple(plot for plot in drawn if plot is not None)
    parts: list[Part] = [Pictures(plots)] if plots else []
    for mode in modes:
        table = tables(waterfall_table(found[mode], mode))
        parts += table if mode == modes[0] else (Folded(f"Waterfall of {mode} as a table", table),)
    if not parts:
        why = "No waterfall: it needs an adaptive mode and static, timed, and stage curves."
        parts.append(Prose((why,)))
    parts += tables(bounds_table(run.result))
    return Section("waterfall", "Waterfall and bounds", tuple(parts))

"""Latency: whole distributions, and percentiles where there are requests enough."""

from __future__ import annotations

from cdbench.render.full_report import latency_table
from cdbench.render.report.parts import Part, Pictures, Prose, Section, tables
from cdbench.render.report.plots.latency_ecdf import latency_ecdfs
from cdbench.render.report.sections.throughput import NOT_TIMED
from cdbench.render.report.source import ReportRun


def latency(run: ReportRun) -> Section:
    """The pictures need the requests themselves; the table does not."""
    found = tables(latency_table(run.result))
    parts: list[Part] = []
    if run.raw is not None:
        plots = latency_ecdfs(run.raw.repeats, run.styles)
        if plots:
            parts.append(Pictures(tuple(plots)))
    elif found:
        parts.append(Prose((run.without_raw,)))
    parts += found
    if not parts:
        parts.append(Prose((NOT_TIMED,)))
    return Section("latency", "Latency", tuple(parts))

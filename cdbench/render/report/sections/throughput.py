"""Throughput against latency, and the rates on equal work."""

from __future__ import annotations

from cdbench.render.full_report import rates_table
from cdbench.render.report.parts import Part, Pictures, Prose, Section, tables
from cdbench.render.report.plots.throughput_latency import throughput_latency
from cdbench.render.report.source import ReportRun

NOT_TIMED = "No mode was timed in this run."


def throughput(run: ReportRun) -> Section:
    """Picture and table, or that nothing was timed."""
    parts: list[Part] = []
    plot = throughput_latency(run.result, run.styles)
    if plot is not None:
        parts.append(Pictures((plot,)))
    parts += tables(rates_table(run.result))
    if not parts:
        parts.append(Prose((NOT_TIMED,)))
    return Section("throughput", "Throughput against latency", tuple(parts))

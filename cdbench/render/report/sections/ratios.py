"""Speed-ups block by block, and the table of every pair of modes."""

from __future__ import annotations

from cdbench.render.full_report import pair_table
from cdbench.render.report.parts import Part, Pictures, Prose, Section, tables
from cdbench.render.report.plots.block_ratios import block_ratios
from cdbench.render.report.source import ReportRun


def ratios(run: ReportRun) -> Section:
    """One picture a scope, or why no ratio was formed."""
    scopes = (block_ratios(run.result, scope, run.styles) for scope in ("e2e", "decode"))
    plots = tuple(plot for plot in scopes if plot is not None)
    parts: list[Part] = [Pictures(plots)] if plots else []
    table = pair_table(run.result)
    parts += tables(table) if table.rows else ()
    if not parts:
        why = (
            "No ratio was formed: it needs an adaptive mode and a baseline on equal work, and "
            "requests that do not arrive at times of their own."
        )
        parts.append(Prose((why,)))
    return Section("ratios", "Speed-ups, block by block", tuple(parts))

"""The main table, accuracy task by task, and what targets and a price make of the run."""

from __future__ import annotations

from dataclasses import replace

from cdbench.render.asked import asked_tables
from cdbench.render.report.parts import Prose, Section, tables
from cdbench.render.report.source import ReportRun
from cdbench.render.run_report import main_table
from cdbench.render.tasks_report import task_table


def results(run: ReportRun) -> Section:
    """Every mode in one line."""
    whole = replace(main_table(run.result), title="all modes")
    found = tables(whole, task_table(run.result), *asked_tables(run.result))
    return Section("results", "Results", found or (Prose(("Nothing was measured.",)),))

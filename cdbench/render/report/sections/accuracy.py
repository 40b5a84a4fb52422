"""Accuracy against mean depth."""

from __future__ import annotations

from cdbench.render.report.parts import Pictures, Prose, Section
from cdbench.render.report.plots.accuracy_depth import accuracy_depth
from cdbench.render.report.source import ReportRun
from cdbench.render.run_report import is_random


def accuracy(run: ReportRun) -> Section:
    """The picture, or why there is none."""
    title = "Accuracy against mean depth"
    if is_random(run.result):
        why = "The weights are random: nothing can be said about accuracy."
        return Section("accuracy", title, (Prose((why,)),))
    plot = accuracy_depth(run.result, run.styles)
    if plot is not None:
        return Section("accuracy", title, (Pictures((plot,)),))
    why = "No mode answered questions that are right or wrong."
    if run.result.accuracy is None:
        why = "No question was asked in this run (it had no live pass)."
    return Section("accuracy", title, (Prose((why,)),))

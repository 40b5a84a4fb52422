"""The stage curves, where the run measured or read them."""

from __future__ import annotations

from pydantic import ValidationError

from cdbench.render.report.parts import Folded, Part, Pictures, Points, Prose, Section, Tabular
from cdbench.render.report.plots.stage_curves import stage_curves
from cdbench.render.report.source import ReportRun
from cdbench.render.stage_table import stage_lines, stage_table
from cdbench.schema.stages import StageCurves


def curves(run: ReportRun) -> Section | None:
    """Picture and folded table; None where the run has no curves."""
    if run.result.stages is None:
        return None
    title = "Stage curves"
    try:
        document = StageCurves.model_validate(run.result.stages)
    except ValidationError:
        why = "The section stages of result.json holds no stage curves that can be read."
        return Section("stages", title, (Prose((why,)),))
    plot = stage_curves(document)
    parts: list[Part] = [Points(tuple(stage_lines(document)))]
    if plot is not None:
        parts.append(Pictures((plot,)))
    parts.append(Folded("Every point", (Tabular(stage_table(document)),)))
    return Section("stages", title, tuple(parts))

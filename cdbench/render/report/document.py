"""A whole report: which sections each run has, in which order, and the strip above several runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cdbench.render.report.parts import Folded, Part, Plot, Section, Tabular, plots_of
from cdbench.render.report.sections.accuracy import accuracy
from cdbench.render.report.sections.curves import curves
from cdbench.render.report.sections.exits import exits
from cdbench.render.report.sections.latency import latency
from cdbench.render.report.sections.manifest import manifest
from cdbench.render.report.sections.occupancy import occupancy
from cdbench.render.report.sections.predictor import predictor
from cdbench.render.report.sections.ratios import ratios
from cdbench.render.report.sections.reproduce import reproduce
from cdbench.render.report.sections.results import results
from cdbench.render.report.sections.runs import DAGGER_NOTE
from cdbench.render.report.sections.runs import runs as runs_section
from cdbench.render.report.sections.throughput import throughput
from cdbench.render.report.sections.validity import validity
from cdbench.render.report.sections.verdict import marks, verdict
from cdbench.render.report.sections.waterfall import waterfall
from cdbench.render.report.source import ReportRun

SECTIONS: tuple[Callable[[ReportRun], Section | None], ...] = (
    verdict,
    results,
    exits,
    predictor,
    accuracy,
    throughput,
    waterfall,
    occupancy,
    latency,
    ratios,
    validity,
    curves,
    manifest,
    reproduce,
)
"""In the order of the page. A new section is a file, and a line here."""

MEASURED = (results, exits, predictor, accuracy, throughput, waterfall, occupancy, latency, ratios)
"""Sections that a run in which nothing was measured goes without."""


@dataclass(frozen=True)
class Chapter:
    """One run. ``marks`` belong beside each of its numbers."""

    run: ReportRun
    marks: tuple[str, ...]
    sections: tuple[Section, ...]

    @property
    def plots(self) -> list[Plot]:
        """Every picture, in the order of the page."""
        return [plot for section in self.sections for plot in plots_of(section.parts)]


@dataclass(frozen=True)
class Report:
    """``strip`` stands above the chapters where there are several."""

    title: str
    strip: Section | None
    chapters: tuple[Chapter, ...]


def make_report(runs: Sequence[ReportRun]) -> Report:
    """The report of one run or of several."""
    chapters = tuple(_chapter(run) for run in runs)
    if len(runs) == 1:
        return Report(f"cdbench report: {runs[0].name}", None, chapters)
    return Report(f"cdbench report: {len(runs)} runs", runs_section(runs), chapters)


def _chapter(run: ReportRun) -> Chapter:
    made = [section(run) for section in SECTIONS if run.result.modes or section not in MEASURED]
    found = tuple(section for section in made if section is not None)
    if run.result.validity.verdict == "INVALID":
        found = tuple(replace(s, parts=_daggered(s.parts)) for s in found)
    return Chapter(run, tuple(marks(run.result)), found)


def _daggered(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The parts with every number in a table marked as one of an INVALID run."""
    return tuple(_dagger(part) for part in parts)


def _dagger(part: Part) -> Part:
    if isinstance(part, Folded):
        return replace(part, parts=_daggered(part.parts))
    if isinstance(part, Tabular) and part.table.rows:
        rows = tuple(
            replace(row, cells=tuple(replace(cell, invalid=True) for cell in row.cells))
            for row in part.table.rows
        )
        return Tabular(replace(part.table, rows=rows, notes=(*part.table.notes, DAGGER_NOTE)))
    return part


def data_of(chapter: Chapter, most_bytes: int) -> dict[str, Any]:
    """What the page carries of a run: its result, and what each picture shows.

    Where that would be more than ``most_bytes`` of JSON the largest sections go first, and
    ``left_out`` names them.
    """
    figures = {plot.name: dict(plot.data) for plot in chapter.plots}
    result = chapter.run.result.model_dump(mode="json")
    left_out = _shorten(result, most_bytes)
    return {
        "run": chapter.run.name,
        "marks": list(chapter.marks),
        "left_out": left_out,
        "result": result,
        "figures": figures,
    }


def _shorten(result: dict[str, Any], most_bytes: int) -> list[str]:
    """Take the largest sections away until the rest fits; answer their names."""
    sizes = {name: len(json.dumps(section)) for name, section in result.items()}
    left_out: list[str] = []
    for name in sorted(_MAY_GO, key=lambda section: -sizes.get(section, 0)):
        if sum(sizes.values()) <= most_bytes:
            break
        if name in result:
            del result[name]
            sizes.pop(name)
            left_out.append(name)
    return left_out


_MAY_GO = ("blocks", "stages", "scores", "waterfall", "exits", "accuracy")

"""Several runs side by side, before each of them has its own part of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cdbench.render.formats import Kind
from cdbench.render.intervals import interval_cell
from cdbench.render.report.parts import Part, Pictures, Section, Tabular
from cdbench.render.report.plots.runs import BASELINE, runs_plot
from cdbench.render.report.sections.verdict import marks
from cdbench.render.report.source import ReportRun
from cdbench.render.run_report import exit_words, is_random, speedup_cell
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.schema import ModeResult, Result

DAGGER_NOTE = "†: of an INVALID run; quote none of these numbers."
MODE_ORDER = ("cdb", "lockstep")
_COLUMNS = (
    Column("run", align="left"),
    Column("verdict", align="left"),
    Column("model", align="left"),
    Column("mode", align="left"),
    Column("exit", align="left"),
    Column("width"),
    Column("workload", align="left", note="the first of the sha256 over its requests"),
    Column("accuracy", direction="up"),
    Column("mean depth", unit="loops", direction="down"),
    Column("tokens/s", direction="up"),
    Column(f"over {BASELINE}", direction="up"),
)


def runs(found: Sequence[ReportRun]) -> Section:
    """A line for the adaptive mode of each run, and their speed-ups in one picture."""
    rows = tuple(_row(run) for run in found)
    notes = tuple(_notes(found))
    parts: list[Part] = [Tabular(Table(_COLUMNS, rows, "the runs of this report", notes))]
    plot = runs_plot(found, found[0].styles)
    if plot is not None:
        parts.append(Pictures((plot,)))
    return Section("runs", "The runs side by side", tuple(parts))


def _row(run: ReportRun) -> Row:
    result = run.result
    named = [name for name in MODE_ORDER if name in result.modes] or list(result.modes)
    if not named:
        return Row((text(run.name), _verdict(result), *(text("-"),) * (len(_COLUMNS) - 2)))
    mode = named[0]
    found = result.modes[mode]
    cells: tuple[Cell, ...] = (
        text(run.name),
        _verdict(result),
        text(found.model),
        text(mode),
        text(exit_words(found.exit)),
        Cell(found.width, Kind.COUNT) if found.width is not None else text("-"),
        text(result.workload.hash[:12] if result.workload.requests else "-"),
        _accuracy(result, mode),
        Cell(_depth(found)),
        _rate(found),
        speedup_cell(result, mode, BASELINE, "e2e"),
    )
    if result.validity.verdict == "INVALID":
        cells = tuple(replace(cell, invalid=True) for cell in cells)
    return Row(cells)


def _verdict(result: Result) -> Cell:
    """The verdict with its marks; what was replayed, as in nearly every run, below the table."""
    found = dict.fromkeys([result.validity.verdict, *marks(result)])
    replayed = [mark for mark in found if mark.startswith("replayed")]
    words = ", ".join(mark for mark in found if mark not in replayed)
    return text(words, f"{replayed[0]} of one recorded run" if replayed else None)


def _accuracy(result: Result, mode: str) -> Cell:
    found = result.accuracy.modes.get(mode) if result.accuracy is not None else None
    if found is None or is_random(result):
        return text("-")
    return interval_cell(found.rate, Kind.PERCENT)


def _depth(found: ModeResult) -> float | None:
    depth = found.answered_depth
    return found.metrics.get("mean_depth") if depth is None else depth


def _rate(found: ModeResult) -> Cell:
    over_blocks = found.intervals.get("output_throughput")
    if over_blocks is not None:
        return interval_cell(over_blocks)
    return Cell(found.metrics.get("output_throughput"))


def _notes(found: Sequence[ReportRun]) -> Iterator[str]:
    yield (
        "One line a run: its cdb mode, else lockstep, else its first. Speed-ups are end to end, of "
        "each run over its own static; no ratio is formed between runs."
    )
    hashes = {run.result.workload.hash for run in found if run.result.workload.requests}
    if len(hashes) > 1:
        yield "The runs did different work, so that their tokens/s cannot be held against another."
    if any(run.result.validity.verdict == "INVALID" for run in found):
        yield DAGGER_NOTE
    machines = {(r.result.manifest.cpu.model, r.result.manifest.device.name) for r in found}
    if len(machines) > 1:
        yield "The runs were made on different machines."

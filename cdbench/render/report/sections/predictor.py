"""The lookahead gate, where there is one: its figures, and its precision and recall over time."""

from __future__ import annotations

from cdbench.bench.repeats import StoredRepeat
from cdbench.metrics.predictor import calls_over_time
from cdbench.render.formats import Kind
from cdbench.render.predictor_table import predictor_table
from cdbench.render.report.parts import Prose, Section, tables
from cdbench.render.report.source import ReportRun
from cdbench.render.table import Cell, Column, Row, Table, text


def predictor(run: ReportRun) -> Section | None:
    """None for a run without a gate; calls over time need the requests themselves."""
    whole = predictor_table(run.result)
    if not whole.rows:
        return None
    if run.raw is None:
        return Section("predictor", "Predictor", (*tables(whole), Prose((run.without_raw,))))
    return Section("predictor", "Predictor", tables(whole, over_time(run.raw.repeats)))


def over_time(repeats: tuple[StoredRepeat, ...]) -> Table:
    """A row for each stretch of tokens and mode, of the first timed run of each mode."""
    columns = (
        Column("mode", align="left"),
        Column("later tokens", align="left"),
        Column("asked about", unit="tokens"),
        Column("precision", direction="up"),
        Column("recall", direction="up"),
    )
    first = {run.trace.mode: run.trace for run in reversed(repeats)}
    rows = tuple(
        Row(
            (
                text(mode),
                text(f"{stretch.first} to {stretch.last}"),
                Cell(stretch.tokens, Kind.COUNT),
                Cell(stretch.calls.precision, Kind.PERCENT),
                Cell(stretch.calls.recall, Kind.PERCENT),
            )
        )
        for mode, trace in first.items()
        for stretch in calls_over_time(trace)
    )
    notes = ("By how far into its request a token is; after a request fell back no gate is asked.",)
    return Table(columns, rows, "the gate over time", notes if rows else ())

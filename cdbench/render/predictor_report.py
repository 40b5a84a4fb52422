"""What ``cdbench predictor`` prints, from its documents alone."""

from __future__ import annotations

from collections.abc import Iterator

from cdbench.render.formats import Kind, percent
from cdbench.render.run_report import exit_words
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.schema.lookahead import (
    GateDocument,
    GateFigures,
    GateJudgement,
    GateSetting,
    PreLoopFigures,
    StateRecording,
)


def recording_lines(document: StateRecording) -> list[str]:
    """What was recorded."""
    setting = document.setting
    return [
        f"recorded  {len(document.requests)} requests, {document.tokens:,} later tokens, states "
        f"after loops 1 to {setting.max_loops - 1} of {setting.state_size} numbers",
        f"at        {_where(setting)} on {document.device}; {document.seconds:.1f} s",
        *_remarks(document.notes, document.marks),
    ]


def gate_lines(document: GateDocument) -> list[str]:
    """What was fitted, on what, and at what cost."""
    trained, calibration = document.trained_on, document.calibration
    parts = ", ".join(
        f"{count:,} {name} ({trained.decisions[name]:,} decisions)"
        for name, count in trained.requests.items()
    )
    error = "n/a" if calibration.error is None else f"{calibration.error:.3f}"
    return [
        f"gate      {document.gate}, {document.parameters:,} parameters, "
        f"{document.flops_per_row:,.0f} FLOPs a row and loop",
        f"for       {document.setting.model.name}, {_where(document.setting)}",
        f"fitted on {parts}; seed {trained.seed}, {trained.seconds:.1f} s, "
        f"{trained.flops:.3g} FLOPs",
        f"calls at  {document.threshold:.4f}; calibration error on held-out requests {error}",
        *_pre_loop_lines(document.pre_loop),
        *_remarks(document.notes, document.marks),
    ]


def _pre_loop_lines(figures: PreLoopFigures | None) -> Iterator[str]:
    if figures is None:
        return
    error = figures.calibration.error
    due = ", ".join(f"{count:,} {name}" for name, count in figures.due.items())
    yield (
        f"pre-loop  {figures.parameters:,} parameters, {figures.flops_per_row:,.0f} FLOPs a token; "
        f"due after loop 1: {due}"
    )
    yield (
        f"calls at  {figures.threshold:.4f} before loop 1; calibration error on held-out requests "
        f"{'n/a' if error is None else f'{error:.3f}'}"
    )


def figures_table(figures: GateFigures, title: str) -> Table:
    """The gate by loop, with the whole in the last row."""
    columns = (
        Column("after loop", align="left"),
        Column("asked"),
        Column("called"),
        Column("right"),
        Column("missed"),
        Column("precision", direction="up"),
        Column("recall", direction="up"),
    )
    rows = [
        _row(str(one.loop or "prelude"), one.asked, one.called, one.right, one.missed)
        for one in figures.by_loop
    ]
    asked, called, right, missed = (
        sum(getattr(one, name) for one in figures.by_loop)
        for name in ("asked", "called", "right", "missed")
    )
    rows.append(_row("all", asked, called, right, missed))
    note = (
        "Called: exits after the next loop; right: the rule asks for one there; missed: it does "
        "and none was called, so the token leaves one loop late."
    )
    return Table(columns, tuple(rows), title=title, notes=(note,))


def figures_lines(figures: GateFigures) -> list[str]:
    """Depths against the rule's, and loops against lag 0 and plain lag 1."""
    error = "n/a" if figures.depth_error is None else f"{figures.depth_error:.4f}"
    return [
        f"depths    {percent(figures.exact)} of {figures.tokens:,} later tokens exactly the "
        f"rule's; mean error {error} loops",
        f"loops     {figures.token_loops:,} with the gate at lag 1, {figures.token_loops_lag0:,} "
        f"by the rule at lag 0 with the same floor ({_over(figures.loops_over_lag0)}), "
        f"{figures.token_loops_lag1:,} by the rule at lag 1 ({_over(figures.lag1_over_lag0)})",
    ]


def judgement_lines(document: GateJudgement) -> list[str]:
    """The gate at work."""
    share = document.flops_per_row / document.core_flops_per_row
    return [
        f"gate      {document.gate} ({document.kind_of_gate}), calls at {document.threshold:.4f}",
        f"for       {document.setting.model.name}, {_where(document.setting)}",
        *figures_lines(document.figures),
        f"watched   {document.fallen_back} of {document.figures.requests} requests went on with "
        f"the plain rule; the gate was asked about {document.asked_tokens:,} tokens",
        f"cost      {document.flops_per_row:,.0f} FLOPs a row and loop, {share:.3%} of a loop's",
        *_remarks(document.notes, document.marks),
    ]


def position_table(document: GateJudgement) -> Table:
    """The gate over time: by the place of a token in its output."""
    columns = (
        Column("later tokens", align="left"),
        Column("tokens"),
        Column("precision", direction="up"),
        Column("recall", direction="up"),
        Column("exact", direction="up"),
        Column("mean depth", unit="loops"),
        Column("the rule's at lag 0", unit="loops"),
    )
    rows = tuple(
        Row(
            (
                text(f"{one.first} to {one.last}"),
                Cell(one.tokens, Kind.COUNT),
                Cell(one.precision, Kind.PERCENT),
                Cell(one.recall, Kind.PERCENT),
                Cell(one.exact, Kind.PERCENT),
                Cell(one.mean_depth),
                Cell(one.mean_due),
            )
        )
        for one in document.by_position
    )
    return Table(columns, rows, title="By place in the output")


def _row(name: str, asked: int, called: int, right: int, missed: int) -> Row:
    return Row(
        (
            text(name),
            Cell(asked, Kind.COUNT),
            Cell(called, Kind.COUNT),
            Cell(right, Kind.COUNT),
            Cell(missed, Kind.COUNT),
            Cell(right / called if called else None, Kind.PERCENT),
            Cell(right / (right + missed) if right + missed else None, Kind.PERCENT),
        )
    )


def _where(setting: GateSetting) -> str:
    return (
        f"{exit_words(setting.exit)}, R {setting.max_loops}, {setting.kv_layout}, {setting.dtype}"
    )


def _over(ratio: float | None) -> str:
    return "n/a" if ratio is None else f"{100 * (ratio - 1):+.2f}%"


def _remarks(notes: list[str], marks: list[str]) -> Iterator[str]:
    yield from (f"note      {note}" for note in notes)
    yield from (f"MARK      {mark}" for mark in marks)

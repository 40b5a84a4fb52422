"""What ``cdbench compare`` prints of two runs: who they are, what changed, and what differs."""

from __future__ import annotations

from collections.abc import Iterator

from cdbench.compare.timed import REASONS
from cdbench.render.formats import Kind
from cdbench.render.intervals import interval_cell
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.schema.comparing import (
    AccuracyChange,
    ComparisonDocument,
    HistogramChange,
    MetricChange,
    SideRecord,
)

HEADLINE = (
    "output_throughput",
    "decode_throughput",
    "ms_per_loop",
    "host_share",
    "peak_kv_bytes",
    "mean_depth",
    "token_loops",
)
"""Metrics shown without being asked for; others only where they changed without noise."""

KINDS = {
    "byte": Kind.BYTES,
    "fraction": Kind.PERCENT,
    "s": Kind.SECONDS,
    "loops": Kind.COUNT,
    "launches": Kind.COUNT,
    "tokens": Kind.COUNT,
    "count": Kind.COUNT,
}
"""How a metric reads, by its unit."""

SHOWN_DIFFERENCES = 12


def side_lines(document: ComparisonDocument) -> list[str]:
    """The two runs, a line each, with what must be known of them."""
    return [*_side("base", document.base), *_side("run", document.run)]


def _side(role: str, side: SideRecord) -> Iterator[str]:
    facts = [side.started_utc[:16], side.model or "no model", f"{side.blocks} blocks", side.verdict]
    checked = [] if side.rechecked else ["from result.json alone"]
    yield f"{role:<5} {side.name} ({', '.join([*facts, *checked])})"
    yield from (f"      {mark}" for mark in side.marks)
    yield from (f"      INVALID: {reason}" for reason in side.reasons)


def tables(document: ComparisonDocument, full: bool) -> Iterator[Table]:
    """Every table with something to say; ``full``: every metric, bound and live figure."""
    found = [
        metric_table(document, full),
        speedup_table(document, full),
        accuracy_table(document, full),
        histogram_table(document, full),
        *([bound_table(document), live_table(document)] if full else []),
        difference_table(document, full),
    ]
    yield from (table for table in found if table.rows)


def metric_table(document: ComparisonDocument, full: bool) -> Table:
    """Metrics of both sides, their ratio and its verdict, a group a mode."""
    columns = (
        Column("metric", align="left"),
        Column("base"),
        Column("run"),
        Column("run / base"),
        Column("verdict", align="left"),
    )
    rows = tuple(
        Row(
            (
                text(_metric_name(change), _own(change.note)),
                _value(change, change.base),
                _value(change, change.run),
                _ratio(change),
                text(change.verdict or "-"),
            ),
            group=change.mode,
        )
        for change in document.metrics
        if full or change.metric in HEADLINE or (change.exact and change.verdict not in ("~", None))
    )
    notes = (
        "Base and run are means over the timed runs; run / base is of geometric means, with a 95 % "
        "interval over blocks (Welch). ~: the interval holds 1, or the change lies within "
        f"{100 * document.margin:.3g} %; what the machine did between the two "
        "runs is in no interval (`cdbench compare --pair` measures both at once). Figures without "
        "an interval did not vary.",
    )
    return Table(columns, rows, "equal work, mode by mode", notes if rows else ())


def _metric_name(change: MetricChange) -> str:
    arrow = {"up": " ↑", "down": " ↓", "none": ""}[change.direction]
    unit = "" if change.unit in KINDS else f" ({change.unit})"
    return f"{change.metric}{unit}{arrow}"


def _own(note: str | None) -> str | None:
    """A note of this row alone: what holds for all is said once, in the last lines."""
    return None if note in REASONS else note


def _value(change: MetricChange, value: float | None) -> Cell:
    return Cell(value, KINDS.get(change.unit, Kind.NUMBER))


def _ratio(change: MetricChange) -> Cell:
    if change.ratio is None:
        return text("-")
    if change.exact and change.base == change.run:
        return text("=")
    return interval_cell(change.ratio, Kind.RATIO)


def speedup_table(document: ComparisonDocument, full: bool) -> Table:
    """Speed-ups within each run, and how they moved."""
    columns = (
        Column("speed-up", align="left"),
        Column("scope", align="left", priority=1),
        Column("base"),
        Column("run"),
        Column("run / base"),
        Column("verdict", align="left"),
    )
    rows = tuple(
        Row(
            (
                text(f"{change.mode} over {change.over}", _own(change.note)),
                text(change.scope),
                interval_cell(change.base, Kind.RATIO),
                interval_cell(change.run, Kind.RATIO),
                interval_cell(change.ratio, Kind.RATIO),
                text(change.verdict or "-"),
            )
        )
        for change in document.speedups
        if full or (change.over == "static" and change.mode in ("cdb", "lockstep"))
    )
    return Table(columns, rows, "speed-ups within each run")


def accuracy_table(document: ComparisonDocument, full: bool) -> Table:
    """Answers of both sides, question by question."""
    columns = (
        Column("mode", align="left"),
        *([Column("task", align="left")] if full else []),
        Column("base"),
        Column("run"),
        Column("shared", note="questions that both were asked word for word"),
        Column("run - base"),
        Column("lost", priority=1),
        Column("gained", priority=1),
        Column("texts alike", priority=2),
        Column("verdict", align="left"),
    )
    rows = tuple(
        Row(
            (
                text(change.mode, change.note),
                *([text(change.task or "all")] if full else []),
                interval_cell(change.base, Kind.PERCENT),
                interval_cell(change.run, Kind.PERCENT),
                Cell(change.shared, Kind.COUNT),
                _difference(change),
                *_moved(change),
                _alike(change),
                text("within 1 pt" if change.verdict == "within" else change.verdict or "-"),
            )
        )
        for change in document.accuracy
        if full or change.task is None
    )
    notes = (
        "Base and run: over all that each was asked. Their difference: paired, question by "
        "question, over the shared ones; better and worse by more than 1 point (95 % interval), "
        "within it by the 90 % interval.",
    )
    return Table(columns, rows, "accuracy", notes if rows else ())


def _difference(change: AccuracyChange) -> Cell:
    if change.paired is not None:
        return interval_cell(change.paired.difference, Kind.POINTS)
    return interval_cell(change.difference)


def _moved(change: AccuracyChange) -> tuple[Cell, Cell]:
    if change.paired is None:
        return text("-"), text("-")
    return Cell(change.paired.lost, Kind.COUNT), Cell(change.paired.gained, Kind.COUNT)


def _alike(change: AccuracyChange) -> Cell:
    found = change.agreement
    return text("-") if found is None else Cell(found.identical / found.n, Kind.PERCENT)


def histogram_table(document: ComparisonDocument, full: bool) -> Table:
    """Shares of later tokens by depth, side by side, and how far apart they lie."""
    shown = [c for c in document.histograms if full or (c.task is None and _varies(c))]
    depths = max((max(len(c.base), len(c.run)) for c in shown), default=0)
    columns = (
        Column("depths", align="left"),
        Column("side", align="left"),
        *(Column(str(depth), unit="loops" if depth == 1 else "") for depth in range(1, depths + 1)),
        Column("distance", note="half the sum over depths of |share - share|, 0 to 1"),
        Column("by chance", priority=1, note="what two equal sets of these questions show"),
        Column("p", priority=1),
    )
    rows = tuple(row for change in shown for row in _histogram_rows(change, depths))
    return Table(columns, rows, "executed depths of later tokens")


def _varies(change: HistogramChange) -> bool:
    """Whether a side has more than one depth: of a fixed one there is nothing to see."""
    return any(sum(map(bool, counts)) > 1 for counts in (change.base, change.run))


def _histogram_rows(change: HistogramChange, depths: int) -> Iterator[Row]:
    name = change.mode if change.task is None else f"{change.mode}, {change.task}"
    yield Row(
        (
            text(name),
            text("base"),
            *_shares(change.base, depths),
            Cell(change.distance),
            text("-") if change.by_chance is None else Cell(change.by_chance),
            text("-") if change.p_value is None else Cell(change.p_value),
        )
    )
    yield Row((text(""), text("run"), *_shares(change.run, depths), *[text("")] * 3))


def _shares(counts: list[int], depths: int) -> Iterator[Cell]:
    total = sum(counts)
    for depth in range(depths):
        share = counts[depth] / total if depth < len(counts) and total else None
        yield text("-") if share is None else Cell(share, Kind.PERCENT)


def bound_table(document: ComparisonDocument) -> Table:
    """Bounds and realised shares, side by side."""
    columns = (
        Column("mode", align="left"),
        Column("bound over static", align="left"),
        Column("base"),
        Column("run"),
        Column("base realised"),
        Column("run realised"),
    )
    rows = tuple(
        Row(
            (
                text(change.mode),
                text(change.bound),
                Cell(change.base, Kind.RATIO),
                Cell(change.run, Kind.RATIO),
                interval_cell(change.base_realised, Kind.PERCENT),
                interval_cell(change.run_realised, Kind.PERCENT),
            )
        )
        for change in document.bounds
    )
    return Table(columns, rows, "bounds, and the share of them realised")


def live_table(document: ComparisonDocument) -> Table:
    """Figures of the live passes, side by side."""
    columns = (Column("live pass", align="left"), Column("base"), Column("run"))
    rows = tuple(
        Row(
            (text(change.figure), Cell(change.base), Cell(change.run)),
            group=change.mode,
        )
        for change in document.live
    )
    return Table(columns, rows, "the models' own texts: no times")


def difference_table(document: ComparisonDocument, full: bool) -> Table:
    """What the two runs differ in beside their numbers, and what that means."""
    columns = (
        Column("differs", align="left"),
        Column("base", align="left"),
        Column("run", align="left"),
        Column("effect", align="left", priority=1),
    )
    shown = document.differences if full else document.differences[:SHOWN_DIFFERENCES]
    rows = tuple(
        Row((text(d.what), text(d.base), text(d.run), text(EFFECTS[d.effect]))) for d in shown
    )
    left = len(document.differences) - len(shown)
    notes = [f"and {left} more (--full)."] if left else []
    notes += document.missing
    return Table(columns, rows, "what else differs", tuple(notes))


EFFECTS = {
    "work": "other work: no ratio of times",
    "machine": "another machine: no verdict on times",
    "setting": "setting",
    "code": "code",
    "questions": "what was asked",
}

"""What a profile prints: the cells, the tail by R, the tasks' exit depths, the recommendation."""

from __future__ import annotations

from collections.abc import Iterator

from cdbench.render.exit_report import exit_tables
from cdbench.render.formats import Kind
from cdbench.render.intervals import interval_cell
from cdbench.render.sweep_report import short_names
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.schema.profile import AccuracyPoint, ProfileCell, ProfileDocument, SloRecord
from cdbench.sweep.changes import plain

MAX_LOOPS = "exit.max_loops"
SHOWN = ("p50", "p90", "p95", "p99")


def tables(document: ProfileDocument) -> Iterator[Table]:
    """Every table that has something to say."""
    yield cell_table(document)
    yield latency_table(document)
    if len({cell.max_loops for cell in document.cells if cell.tail is not None}) > 1:
        yield tail_table(document)
    if document.answers:
        yield answer_table(document)
    if document.exits is not None:
        yield from exit_tables(document.exits)


def answer_table(document: ProfileDocument) -> Table:
    """Accuracy against mean depth, the fixed depths among them as what there is to beat."""
    columns = (
        Column("operating point", align="left"),
        Column("R", priority=2),
        Column("mean depth", unit="loops", direction="down"),
        Column("accuracy", direction="up"),
        Column("fixed depths there", priority=1),
        Column("verdict over static", align="left"),
    )
    rows = tuple(
        Row(
            (
                text(_operating_point(point)),
                Cell(point.max_loops, Kind.COUNT),
                Cell(point.mean_depth),
                interval_cell(point.accuracy, Kind.PERCENT),
                Cell(point.static_at_depth, Kind.PERCENT),
                text(point.verdict or "-"),
            ),
            emphasis=point.mode == document.mode,
        )
        for point in document.answers
    )
    note = (
        "Fixed depths there: what mixing the fixed depths that answered reaches at the same mean "
        "depth (their upper hull). An adaptive point below it wastes its loops."
    )
    return Table(columns, rows, "accuracy against mean depth", notes=(note,))


def _operating_point(point: AccuracyPoint) -> str:
    if point.mode.startswith("static"):
        return point.mode
    at = "" if point.threshold is None else f"@{point.threshold:g}"
    return f"{point.mode}, {point.rule}{at}"


def cell_table(document: ProfileDocument) -> Table:
    """Setting, depth, rates, accuracy and the verdict on the targets, a line a cell."""
    answered = any(cell.accuracy is not None for cell in document.cells)
    columns = (
        *_setting_columns(document),
        *([Column("accuracy", direction="up", priority=1)] if answered else []),
        Column("mean depth", unit="loops", direction="down"),
        Column("tokens/s", direction="up", priority=2),
        Column("goodput", unit="req/s", direction="up"),
        Column("within targets", direction="up"),
        Column("targets", align="left"),
        Column("verdict", align="left"),
    )
    rows = tuple(
        Row(
            (
                *_setting(cell, document),
                *([interval_cell(cell.accuracy, Kind.PERCENT)] if answered else []),
                Cell(cell.mean_depth),
                interval_cell(cell.output_throughput),
                interval_cell(cell.goodput),
                interval_cell(cell.attained, Kind.PERCENT),
                text(cell.slo or "-"),
                text(cell.state),
            ),
            emphasis=cell.number == document.recommendation.cell,
        )
        for cell in document.cells
    )
    notes = [f"Profile of {document.mode}. Targets: {target_words(document.slo)}.", *document.notes]
    if not answered:
        notes.insert(1, "Accuracy was not measured (--questions N does).")
    return Table(columns, rows, notes=tuple(notes))


def latency_table(document: ProfileDocument) -> Table:
    """Percentiles of each latency, a line a cell; those that no cell has are left out."""
    cells = document.cells
    shown = [
        (name, [q for q in SHOWN if any(_percentile(c, name, q) is not None for c in cells)])
        for name in ("ttft", "tpot", "e2e")
    ]
    columns = (
        *_setting_columns(document),
        Column("requests"),
        *(
            # The highest that there is stays where there is little room.
            Column(f"{name} {q}", direction="down", priority=0 if q == found[-1] else place)
            for place, (name, found) in enumerate(shown, start=1)
            for q in found
        ),
    )
    rows = tuple(
        Row(
            (
                *_setting(cell, document),
                Cell(float(cell.requests), Kind.COUNT),
                *(
                    Cell(_percentile(cell, name, q), Kind.SECONDS)
                    for name, found in shown
                    for q in found
                ),
            )
        )
        for cell in cells
    )
    note = "A percentile needs so many distinct requests: 11 p50, 64 p90, 130 p95, 662 p99."
    return Table(columns, rows, "latencies, mean over the timed runs", notes=(note,))


def tail_table(document: ProfileDocument) -> Table:
    """What a larger R costs: the tail against the median, and whose requests it is made of."""
    measured = [cell for cell in document.cells if cell.tail is not None]
    columns = (
        *_setting_columns(document),
        *([] if _varies(document) else [Column("R")]),
        Column("tail"),
        Column("tpot tail/p50", direction="down"),
        Column("e2e tail/p50", direction="down", priority=2),
        Column("at depth R", priority=1),
        Column("deepest task", align="left"),
        Column("its requests"),
        Column("of the slowest tenth"),
    )
    rows = tuple(
        Row((*_setting(cell, document), *([] if _varies(document) else _loops(cell)), *_tail(cell)))
        for cell in sorted(measured, key=lambda c: (c.max_loops or 0, c.number))
    )
    note = (
        "Deepest task: the one with most of its later tokens at depth R. Where it fills the "
        "slowest tenth, a larger R buys its tokens' depth with the tail of everyone's latency."
    )
    return Table(columns, rows, "the tail by max_loops (R)", notes=(note,))


def _varies(document: ProfileDocument) -> bool:
    """Whether R has a column already, as a key that varies."""
    return MAX_LOOPS in _unlike(document)


def _loops(cell: ProfileCell) -> list[Cell]:
    return [Cell(cell.max_loops, Kind.COUNT)]


def _tail(cell: ProfileCell) -> tuple[Cell, ...]:
    found = cell.tail
    assert found is not None, "only measured cells are listed"
    q = "n/a" if found.percentile is None else f"p{found.percentile:g}"
    return (
        text(q),
        Cell(found.tpot_ratio, Kind.RATIO),
        Cell(found.e2e_ratio, Kind.RATIO),
        Cell(found.full_depth_share, Kind.PERCENT),
        text(found.task or "-"),
        Cell(found.task_request_share, Kind.PERCENT),
        Cell(found.task_slow_share, Kind.PERCENT),
    )


def target_words(slo: SloRecord) -> str:
    """The targets in one clause."""
    given = [
        f"{name} ≤ {limit:g} s"
        for name, limit in (("ttft", slo.ttft_s), ("tpot", slo.tpot_s), ("e2e", slo.e2e_s))
        if limit is not None
    ]
    if not given:
        return "none given"
    return f"{' and '.join(given)} for {slo.percentile:g} % of requests"


def closing_lines(document: ProfileDocument) -> list[str]:
    """Recommendation and sustained rates, in words."""
    return [*document.sustained, *document.recommendation.sentences]


def _setting_columns(document: ProfileDocument) -> tuple[Column, ...]:
    titles = short_names(document.varied)
    return (Column("cell"), *(Column(titles[key]) for key in _unlike(document)))


def _unlike(document: ProfileDocument) -> list[str]:
    """The keys that differ between cells: an axis of one value needs no column."""
    return [
        key
        for key in document.varied
        if len({plain(cell.changes.get(key)) for cell in document.cells}) > 1
    ]


def _setting(cell: ProfileCell, document: ProfileDocument) -> tuple[Cell, ...]:
    return (
        text(str(cell.number)),
        *(text(plain(cell.changes[k]) if k in cell.changes else "-") for k in _unlike(document)),
    )


def _percentile(cell: ProfileCell, latency: str, q: str) -> float | None:
    return cell.percentiles.get(latency, {}).get(q)

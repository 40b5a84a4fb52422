"""Exit depths of tasks, and how unlike each two are."""

from __future__ import annotations

from collections.abc import Iterator

from cdbench.render.formats import Kind
from cdbench.render.intervals import interval_cell
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.schema.exits import ExitDistributions, TaskDifference
from cdbench.stats.distributions import MIN_REQUESTS


def exit_tables(exits: ExitDistributions) -> Iterator[Table]:
    """Mean exit depth of every task, and how unlike each two are."""
    columns = (
        Column("task", align="left"),
        Column("requests"),
        Column("later tokens", priority=1),
        Column("mean depth", unit="loops"),
        Column("shares of depth 1, 2, …", align="left", priority=1),
    )
    rows = tuple(
        Row(
            (
                text(task.task),
                Cell(task.requests, Kind.COUNT),
                Cell(task.tokens, Kind.COUNT),
                interval_cell(task.mean_depth),
                text(" ".join(f"{count / task.tokens:.0%}" for count in task.histogram)),
            )
        )
        for task in exits.tasks
    )
    notes = ["95 % bootstrap-t intervals over requests: the tokens of one depend on one another."]
    untested = sum(pair.p_value is None for pair in exits.differences)
    if untested:
        notes.append(
            f"{untested} of {len(exits.differences)} pairs of tasks are not compared: a task has "
            f"fewer than {MIN_REQUESTS} requests."
        )
    yield Table(columns, rows, f"exit depths by task: {exits.where}", notes=tuple(notes))
    if any(pair.p_value is not None for pair in exits.differences):
        yield _difference_table(exits)


def _difference_table(exits: ExitDistributions) -> Table:
    tested = [pair for pair in exits.differences if pair.p_value is not None]
    columns = (
        Column("tasks", align="left"),
        Column("mean depth difference", unit="loops"),
        Column("distance"),
        Column("distance by chance", priority=1),
        Column("p (Holm)"),
        Column("alike?", align="left"),
    )
    rows = tuple(
        Row(
            (
                text(f"{pair.first} - {pair.second}"),
                interval_cell(pair.difference),
                Cell(pair.distance),
                Cell(pair.by_chance),
                Cell(pair.adjusted_p),
                text(difference_words(pair)),
            )
        )
        for pair in tested
    )
    note = (
        "Distance: total variation of the shares per depth (0 equal, 1 disjoint); p: permutation "
        f"of requests, corrected over {len(tested)} pairs."
    )
    return Table(columns, rows, "do tasks exit alike?", notes=(note,))


def difference_words(pair: TaskDifference) -> str:
    """``differ`` where chance would not do it (5 %, all pairs together), else ``cannot tell``."""
    return "differ" if pair.adjusted_p is not None and pair.adjusted_p <= 0.05 else "cannot tell"

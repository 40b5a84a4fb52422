"""Style ``accuracy-by-depth``: answers by fixed depth and under early exits, task by task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from cdbench.errors import UsageError
from cdbench.render.formats import Kind
from cdbench.render.intervals import interval_cell
from cdbench.render.styles.assemble import NOTHING, Line, Look, Measure, assemble, counted, worded
from cdbench.render.styles.facts import EXIT, short_exit
from cdbench.render.styles.figures import accuracy
from cdbench.render.styles.points import Measured, Point
from cdbench.render.styles.published import published_for
from cdbench.render.table import Cell, Column, Table
from cdbench.render.tasks_report import metric_words, task_value
from cdbench.schema import TaskAccuracy

Reader = Callable[[Point, str], Cell]

OURS, THEIRS = "here", "published"
_SCOPE = (
    "Accuracy of each mode's own text, first tokens at full depth; in brackets 95 % intervals "
    "(Wilson's for shares). Differences and verdicts are paired over static, question by question, "
    "for a margin of 1 point."
)
_WORSE = "worse than static on this task by more than 1 point"
_NOT_ADAPTIVE = "not adaptive: continuations of one token, none of which could exit early"


def tables(measured: Measured) -> list[Table]:
    """One table: a line for each mode of each run. UsageError where no run has a live pass.

    What a fixed depth answers is the same under every threshold: lines that are alike show once.
    """
    answered = [point for point in measured.points if _modes(point)]
    if not answered:
        raise UsageError(
            f"--style accuracy-by-depth: {measured.points[0].name} has no accuracy (no live pass, "
            "or its result.json is not there); run `cdbench run --work live "
            "--modes static,static@1,static@2,cdb`"
        )
    lines = list(_lines(answered))
    look = Look(
        "Accuracy by depth",
        _SCOPE,
        tuple(_notes(answered, once=len(lines) < sum(len(_modes(p)) for p in answered))),
        shows=(EXIT, "loops R"),
        timed=False,
        by_mode=True,
        judged=True,
    )
    measures = [*_what(), *accuracy(), _difference(), *_tasks(answered)]
    return [assemble(lines, measures, measured, look)]


def _modes(point: Point) -> tuple[str, ...]:
    found = point.first
    if found is None or found.accuracy is None:
        return ()
    return tuple(mode for mode in found.modes if mode in found.accuracy.modes)


def _lines(answered: Sequence[Point]) -> Iterator[Line]:
    """Every mode of every run; a fixed depth whose answers are those of an earlier line is not."""
    seen: list[object] = []
    for point in answered:
        for mode in _modes(point):
            result = point.first
            assert result is not None
            assert result.accuracy is not None, "it has modes"
            row = result.modes[mode]
            same = (result.model, result.accuracy.questions, row.exit, result.accuracy.modes[mode])
            if row.schedule in ("static", "dense"):
                if (mode, same) in seen:
                    continue
                seen.append((mode, same))
            yield Line(point, mode)


def _what() -> Iterator[Measure]:
    """Exit rule, loops at most and mean depth: what kind of depth the line is of."""

    def exits(point: Point, mode: str) -> str | None:
        row = point.first.modes[mode] if point.first is not None else None
        return None if row is None or row.exit.rule == "none" else short_exit(row.exit)

    def loops(point: Point, mode: str) -> float | None:
        row = point.first.modes[mode] if point.first is not None else None
        return None if row is None or row.schedule == "dense" else row.max_loops

    def depth(point: Point, mode: str) -> float | None:
        return point.first.modes[mode].answered_depth if point.first is not None else None

    rule = worded(Column(EXIT, align="left", priority=1, name="exit"), exits)
    yield Measure(rule.column, rule.read, label=True)
    most = counted(Column("most loops", name="max_loops"), Kind.COUNT, loops)
    yield Measure(most.column, most.read, label=True)
    column = Column("mean depth", "loops", "down", name="mean_depth")
    yield counted(column, Kind.NUMBER, depth)


def _difference() -> Measure:
    def cell(point: Point, mode: str) -> Cell:
        found = point.first.accuracy if point.first is not None else None
        paired = found.modes[mode].paired if found is not None else None
        return interval_cell(paired.difference if paired is not None else None, Kind.POINTS)

    return Measure(Column("difference", priority=1, name="difference"), cell)


def _tasks(answered: Sequence[Point]) -> Iterator[Measure]:
    asked = (_of(point, mode) for point in answered for mode in _modes(point))
    names = dict.fromkeys(task for tasks in asked for task in tasks)
    for task in names:
        column = Column(task, direction="up", group="by task", priority=2, name=task)
        if not any(_theirs(p, m, task) != NOTHING for p in answered for m in _modes(p)):
            yield Measure(column, _ours_of(task))
            continue
        yield Measure(
            Column(OURS, direction="up", group=task, priority=2, name=task), _ours_of(task)
        )
        beside = Column(THEIRS, group=task, priority=2, name=f"{task}.{THEIRS}")
        yield Measure(beside, _theirs_of(task), label=True)


def _of(point: Point, mode: str) -> dict[str, TaskAccuracy]:
    found = point.first.accuracy if point.first is not None else None
    return found.modes[mode].tasks if found is not None else {}


def _ours_of(task: str) -> Reader:
    def cell(point: Point, mode: str) -> Cell:
        found = _of(point, mode).get(task)
        if found is None or point.first is None:
            return NOTHING
        note = None if found.adaptive else _NOT_ADAPTIVE
        if found.paired is not None and found.paired.verdict == "worse":
            note = _WORSE
        return replace(task_value(point.first, mode, task), note=note)

    return cell


def _theirs_of(task: str) -> Reader:
    return lambda point, mode: _theirs(point, mode, task)


def _theirs(point: Point, mode: str, task: str) -> Cell:
    """A published figure, marked as such; it is nobody's run here, so no run can spoil it."""
    known = published_for(point.first, mode, task) if point.first is not None else None
    if known is None:
        return NOTHING
    who, share = known
    return Cell(share, Kind.PERCENT, note=who.source)


def _notes(answered: Sequence[Point], *, once: bool) -> Iterator[str]:
    metrics = dict.fromkeys(
        metric_words(p.first.accuracy) for p in answered if p.first and p.first.accuracy
    )
    yield f"Primary metrics: {'; '.join(metrics)}."
    notes = (
        f"{mode}{f' ({p.name})' if len(answered) > 1 else ''}: {p.first.modes[mode].note}."
        for p in answered
        if p.first is not None
        for mode in _modes(p)
        if p.first.modes[mode].note
    )
    yield from dict.fromkeys(notes)
    if once:
        yield "Fixed depths that answer alike in several runs show once, under the first of them."

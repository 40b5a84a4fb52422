"""Accuracy task by task: the metric, what changed against full depth, and how the texts compare."""

from __future__ import annotations

from collections.abc import Iterator

from cdbench.render.formats import Kind
from cdbench.render.intervals import interval_cell
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.schema import Accuracy, PairedRecord, Result, ScoreRecord, TaskAccuracy

VERDICT_WORDS = {"within": "within 1 pt", "worse": "worse", "cannot tell": "cannot tell"}
SELECTED = (
    "first_token: select: continuations of one token, each read from the loop that the rule picked "
    "after all had run: adaptive accuracy, no compute saved"
)
FEW_TASKS = 3
"""As many are shown without being asked for."""


def task_table(result: Result) -> Table:
    """A row for each task and mode; no row without a live pass."""
    columns = (
        Column("mode", align="left"),
        Column("metric", align="left", priority=4),
        Column(
            "questions", priority=3, note="with a value; of static@auto those it was not chosen on"
        ),
        Column("value"),
        Column("difference", note="mode - static on the same questions, in points"),
        Column("lost", priority=2, note="questions right under static only"),
        Column("gained", priority=2, note="right under this mode only"),
        Column("verdict", align="left", priority=1),
        Column("mean depth", "loops", direction="down"),
        Column("identical", priority=3, note="texts with exactly static's tokens"),
        Column("parts at", "token", priority=6, note="median place of the first other token"),
        Column("length", priority=5, note="tokens of the texts / static's"),
        Column("no answer", priority=4, note="texts without an answer in them"),
        Column("capped", priority=5, note="texts ended by the length limit"),
    )
    accuracy = result.accuracy
    if accuracy is None:
        return Table(columns, ())
    rows = tuple(_rows(accuracy, result))
    return Table(columns, rows, "accuracy by task", tuple(_notes(accuracy)) if rows else ())


def shows_tasks(result: Result) -> bool:
    """Whether the tasks are few enough to be shown without being asked for."""
    return 0 < len(_tasks(result.accuracy)) <= FEW_TASKS


def metric_words(accuracy: Accuracy) -> str:
    """The primary metrics of the tasks, as one phrase."""
    found = sorted(
        {task.metric for mode in accuracy.modes.values() for task in mode.tasks.values()}
    )
    return ", ".join(name.replace("_", " ") for name in found) or "exact match"


def _tasks(accuracy: Accuracy | None) -> list[str]:
    if accuracy is None:
        return []
    return sorted({task for mode in accuracy.modes.values() for task in mode.tasks})


def _rows(accuracy: Accuracy, result: Result) -> Iterator[Row]:
    for task in _tasks(accuracy):
        for label in result.modes:
            found = accuracy.modes.get(label)
            if found is not None and task in found.tasks:
                # What static@auto answered is the half of the questions it was not chosen on.
                note = result.modes[label].note if label == "static@auto" else None
                shown = _asked(result, label, task), task_value(result, label, task)
                cells = _cells(label, found.tasks[task], accuracy, *shown)
                yield Row((text(label, note), *cells), group=task)


def task_value(result: Result, label: str, name: str) -> Cell:
    """The mean over questions; of a metric that is no mean (a perplexity) lm-eval's aggregate."""
    task = _task(result, label, name)
    if task.rate is not None:
        return interval_cell(task.rate, Kind.PERCENT if task.difference is None else Kind.NUMBER)
    found = _aggregate(result, label, name)
    return text("-") if found is None or found.value is None else Cell(found.value)


def _asked(result: Result, label: str, name: str) -> Cell:
    """How many questions the value is made of."""
    task = _task(result, label, name)
    if task.rate is not None:
        return _count(task.rate.n)
    found = _aggregate(result, label, name)
    return _count(None if found is None else found.n)


def _task(result: Result, label: str, name: str) -> TaskAccuracy:
    assert result.accuracy is not None, "there is a row"
    return result.accuracy.modes[label].tasks[name]


def _aggregate(result: Result, label: str, name: str) -> ScoreRecord | None:
    """What lm-eval makes of a task's primary metric; None of half of the questions."""
    task = _task(result, label, name)
    scores = result.scores.tasks.get(label, {}).get(name, []) if result.scores else []
    return next((s for s in scores if (s.metric, s.filter) == (task.metric, task.filter)), None)


def _cells(
    label: str, task: TaskAccuracy, accuracy: Accuracy, asked: Cell, value: Cell
) -> tuple[Cell, ...]:
    agreement = task.agreement
    return (
        text(f"{task.metric}, {task.filter}"),
        asked,
        value,
        _difference(task),
        _count(task.paired.lost if task.paired else None),
        _count(task.paired.gained if task.paired else None),
        text(_verdict(label, task, accuracy)),
        _depth(task),
        _share(agreement.identical, agreement.n) if agreement else text("-"),
        Cell(agreement.first_divergence) if agreement else text("-"),
        Cell(agreement.length_ratio, Kind.RATIO) if agreement else text("-"),
        _count(task.unparseable),
        _count(task.capped),
    )


def _depth(task: TaskAccuracy) -> Cell:
    if task.adaptive:
        return Cell(task.mean_depth)
    if task.first_token_loop is not None:
        return text(f"read at {task.first_token_loop:.2f}", SELECTED)
    return text("not adaptive")


def _difference(task: TaskAccuracy) -> Cell:
    if task.paired is not None:
        return interval_cell(task.paired.difference, Kind.POINTS)
    return interval_cell(task.difference)


def _verdict(label: str, task: TaskAccuracy, accuracy: Accuracy) -> str:
    if label == accuracy.baseline:
        return "baseline"
    return _words(task.paired)


def _words(paired: PairedRecord | None) -> str:
    return "-" if paired is None else VERDICT_WORDS[paired.verdict]


def _count(number: int | None) -> Cell:
    return text("-") if number is None else Cell(number, Kind.COUNT)


def _share(part: int, whole: int) -> Cell:
    return Cell(part / whole if whole else None, Kind.PERCENT)


def _notes(accuracy: Accuracy) -> Iterator[str]:
    yield (
        "The value of a task is its primary metric; in brackets 95 % intervals (Wilson's for "
        "shares). Differences are paired, question by question. 'cannot tell': too few questions "
        "for a margin of 1 point."
    )
    tasks = [t for mode in accuracy.modes.values() for t in mode.tasks.values()]
    if any(not task.adaptive and task.first_token_loop is None for task in tasks):
        yield (
            "'not adaptive': continuations of one token, none of which could exit early. "
            "first_token: select reads them from the loop that the rule picks; no compute is saved."
        )
    if any(task.scored_tokens for task in tasks):
        yield (
            "Given texts are scored as they would be generated: the context at full depth, every "
            "later token forced through the mode's exits. They count in no throughput."
        )
    if any(task.cut for task in tasks):
        yield "Prompts longer than the model lost their beginnings; result.json counts them."

"""From lines and measures to a table: labels where lines differ, caption, daggers, best cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cdbench.render.best import mark_best
from cdbench.render.formats import Kind
from cdbench.render.styles import facts as said
from cdbench.render.styles.facts import FACTS, Fact
from cdbench.render.styles.keys import differing_keys, key_cell, key_columns, speaks_of
from cdbench.render.styles.points import Measured, Point
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.schema import IntervalRecord
from cdbench.stats.blocks import MIN_BLOCKS
from cdbench.sweep.summary import mixed_code

NOTHING = text("-")
"""No such figure; a figure that is undefined is ``n/a``."""


@dataclass(frozen=True)
class Line:
    """A row to be: the point and the mode that it is about."""

    point: Point
    mode: str
    group: str | None = None


@dataclass(frozen=True)
class Measure:
    """A column, and how a line fills it. One that no line fills is left out.

    ``label``: it says what the line is rather than what was measured.
    """

    column: Column
    read: Callable[[Point, str], Cell]
    label: bool = False


@dataclass(frozen=True)
class Look:
    """How a style's table is made. ``shows`` names the facts and ``keys`` that its columns say.

    ``scope`` says in the caption what the numbers cover; ``timed`` whether timed work is meant;
    ``by_mode`` whether lines differ in their mode; ``judged`` whether the cells of a group may be
    compared where they are of one run, so that the best is marked.
    """

    title: str
    scope: str
    notes: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    timed: bool = True
    by_mode: bool = False
    judged: bool = False


def assemble(
    lines: Sequence[Line], measures: Sequence[Measure], measured: Measured, look: Look
) -> Table:
    """The table of these lines."""
    points = list({id(line.point): line.point for line in lines}.values())
    own, varied = _own_labels(points, lines, look), _varied_labels(points, look)
    labels = [*own, *varied]
    columns = [*labels, *measures]
    cells = [[_read(measure, line) for measure in columns] for line in lines]
    kept = [
        at
        for at, measure in enumerate(columns)
        if measure in labels or any(row[at] != NOTHING for row in cells)
    ]
    table = Table(
        tuple(columns[at].column for at in kept),
        tuple(
            Row(tuple(row[at] for at in kept), line.group)
            for row, line in zip(cells, lines, strict=True)
        ),
        look.title,
        tuple(_notes(points, measured, look)),
        said.caption(points, _relevant(look), look.scope),
    )
    return mark_best(table) if look.judged and _one_run_a_group(lines) else table


def measure(
    column: Column, kind: Kind, value: Callable[[Point, str], IntervalRecord | None]
) -> Measure:
    """A column of figures with their intervals and numbers of observations."""

    def read(point: Point, mode: str) -> Cell:
        found = value(point, mode)
        if found is None:
            return NOTHING
        # Without an interval the count is shown, and says why only where there were too few.
        few = found.low is not None or found.n < MIN_BLOCKS
        return Cell(found.estimate, kind, found.low, found.high, found.n if few else None)

    return Measure(column, read)


def counted(column: Column, kind: Kind, value: Callable[[Point, str], float | None]) -> Measure:
    """A column of figures that need no interval: they follow from the work alone."""

    def read(point: Point, mode: str) -> Cell:
        found = value(point, mode)
        return NOTHING if found is None else Cell(found, kind)

    return Measure(column, read)


def worded(column: Column, words: Callable[[Point, str], str | None]) -> Measure:
    """A column of texts."""
    return Measure(column, lambda point, mode: text(words(point, mode) or "-"))


def _read(found: Measure, line: Line) -> Cell:
    cell = found.read(line.point, line.mode)
    return spoilt(cell) if line.point.invalid and not found.label else cell


def spoilt(cell: Cell) -> Cell:
    """The cell of an INVALID run: a number gets its dagger, a text stays as it is."""
    return (
        cell if cell.value is None or isinstance(cell.value, str) else replace(cell, invalid=True)
    )


def _relevant(look: Look) -> list[Fact]:
    return [fact for fact in FACTS if look.timed or not fact.timed]


def _own_labels(points: Sequence[Point], lines: Sequence[Line], look: Look) -> list[Measure]:
    """Run, mode and the keys that the style is about."""
    labels: list[Measure] = []
    groups = {line.group: id(line.point) for line in lines if line.group is not None}
    if len(points) > 1 and len(groups) < len(points):
        labels.append(_label(Column("run", align="left"), lambda point, _: point.name))
    if look.by_mode:
        labels.append(_label(Column("mode", align="left"), lambda _, mode: mode))
    return [*labels, *_keys(look.keys)]


def _varied_labels(points: Sequence[Point], look: Look) -> list[Measure]:
    """Every fact and key that varies and that the style does not show itself."""
    varied = [
        fact
        for fact in _relevant(look)
        if fact.title not in look.shows
        and said.varies(fact, points)
        and not any(speaks_of(fact.keys, key) for key in look.keys)
    ]
    shown = [f for f in FACTS if f in varied or f.title in look.shows or _tells(f, points)]
    spoken = [key for fact in shown for key in fact.keys]
    rest = [
        key
        for key in differing_keys(points)
        if key not in look.keys and not speaks_of(spoken, key) and not _hushed(key, look)
    ]
    return [*(_fact(fact) for fact in varied), *_keys(rest)]


def _tells(fact: Fact, points: Sequence[Point]) -> bool:
    """Whether the caption says, for every point, all that the keys of a fact came to."""
    return fact.whole and None not in said.values_of(fact, points)


def _one_run_a_group(lines: Sequence[Line]) -> bool:
    """Whether the lines of every group are modes of one run.

    Only these were measured in turns, or answered the same questions. Between runs the machine
    itself moves, by more than the interval within either tells: so nothing is best among runs.
    """
    seen: dict[str | None, set[int]] = {}
    for line in lines:
        seen.setdefault(line.group, set()).add(id(line.point))
    return all(len(found) == 1 for found in seen.values())


def _hushed(key: str, look: Look) -> bool:
    """Whether a key belongs to timed work in a table of answers."""
    return not look.timed and any(speaks_of(fact.keys, key) for fact in FACTS if fact.timed)


def _label(column: Column, words: Callable[[Point, str], str | None]) -> Measure:
    return replace(worded(column, words), label=True)


def _fact(fact: Fact) -> Measure:
    name = fact.title.replace(" ", "_")
    column = Column(fact.title, align="left", priority=fact.priority, name=name)
    return _label(column, lambda point, _: fact.words(point))


def _keys(keys: Sequence[str]) -> list[Measure]:
    return [_key(column, key) for column, key in zip(key_columns(keys), keys, strict=True)]


def _key(column: Column, key: str) -> Measure:
    return Measure(column, lambda point, _: key_cell(point, key), label=True)


def _notes(points: Sequence[Point], measured: Measured, look: Look) -> list[str]:
    results = [result for point in points for result in point.results]
    model = [note for result in results if result.model for note in result.model.notes]
    swept = [note for document in measured.sweeps for note in document.notes]
    marked = {"RANDOM WEIGHTS: timings only; the text means nothing"} if results else set()
    marked |= {result.workload.synthetic or "" for result in results}
    mixed = [note.replace("cells", "runs") for note in mixed_code(results)]
    told = [
        *(mixed_code(results) if measured.sweeps else mixed),
        *model,
        *swept,
        *measured.left_out,
    ]
    sentences = [_sentence(note) for note in told if note not in marked]
    return list(dict.fromkeys([*look.notes, *sentences, *said.reasons(points)]))


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")

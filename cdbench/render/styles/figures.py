"""The columns that several styles share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from cdbench.metrics.registry import METRICS
from cdbench.render.formats import Kind
from cdbench.render.run_report import ACCURACY_WORDS, is_random
from cdbench.render.styles import points as read
from cdbench.render.styles.assemble import Measure, counted, measure, worded
from cdbench.render.styles.points import Point
from cdbench.render.table import Column
from cdbench.schema import IntervalRecord

E2E, DECODE = "end to end", "decoding"
SCOPE = (
    "Speed-ups: how many times as fast the same work was done, by wall time; end to end with "
    "prompts and first tokens, decoding of later tokens alone; geometric means over interleaved "
    "blocks with 95 % t intervals (wider where a run looked several times): the machine's noise, "
    "not that of other requests."
)
REALISED_NOTE = (
    "Realised: measured speed-up over static / bound, both of decoding. flop_bound: matrix "
    "products alone; time_bound: stage times measured on the machine, ideally packed, and how far "
    "other passes over the stages would move it is part of the interval."
)
Reader = Callable[[Point, str], IntervalRecord | None]

_ORDER = ("static", "static@auto", "static@", "lockstep", "cdb", "dense:")


def baselines(points: Sequence[Point], modes: Sequence[str]) -> list[str]:
    """What these modes were timed against, by kind: static rows first, dense ones last."""
    compared = (_compared(point, mode) for point in points for mode in modes)
    found = dict.fromkeys(name for names in compared for name in names)
    return sorted(found, key=_place)


def _compared(point: Point, mode: str) -> Iterator[str]:
    if point.first is not None:
        yield from (c.over for c in point.first.comparisons if c.mode == mode)
    start = f"{mode}/"
    for name in point.kept if point.first is None else ():
        if name.startswith(start):
            yield name.removeprefix(start).removesuffix(".decode")


def _place(name: str) -> int:
    fits = [at for at, start in enumerate(_ORDER) if name == start or name.startswith(start)]
    exact = [at for at, start in enumerate(_ORDER) if name == start]
    return min(exact or fits or [len(_ORDER)])


def speedups(overs: Sequence[str]) -> Iterator[Measure]:
    """End to end over every baseline, then decoding over static with its bounds."""
    for over in overs:
        column = Column(
            f"over {over}",
            direction="up",
            group=E2E,
            priority=0 if over == "static" else 1,
            name=f"over.{over}",
        )
        yield measure(column, Kind.RATIO, _over(over, "e2e"))
    column = Column("over static", direction="up", group=DECODE, name="over.static.decode")
    yield measure(column, Kind.RATIO, _over("static", "decode"))
    yield from bounds()


def _over(over: str, scope: str) -> Reader:
    return lambda point, mode: point.value(read.speedup(mode, over, scope))


def bounds() -> Iterator[Measure]:
    """Both decoding bounds, each with the share of it realised."""
    for name, priority in (("flop_bound", 2), ("time_bound", 3)):
        bound = Column(name, group=DECODE, priority=priority, name=name)
        yield counted(bound, Kind.RATIO, _bound(name))
        share = Column(
            f"realised {name.removesuffix('_bound')}",
            direction="up",
            group=DECODE,
            priority=priority,
            name=f"realised.{name}",
        )
        yield measure(share, Kind.PERCENT, _share(name))


def _share(bound: str) -> Reader:
    return lambda point, mode: point.value(read.realised(mode, bound))


def _bound(name: str) -> Callable[[Point, str], float | None]:
    def value(point: Point, mode: str) -> float | None:
        found = [result.bounds.get(mode, {}).get(name) for result in point.results]
        known = [b.value for b in found if b is not None and b.value is not None]
        return sum(known) / len(known) if known and len(known) == len(found) else None

    return value


def metric(name: str, kind: Kind, title: str = "", **column: Any) -> Measure:
    """A metric of the line's mode: mean over blocks with its interval."""
    known = METRICS[name]
    unit = known.unit if kind in (Kind.NUMBER, Kind.COUNT) and known.unit != "count" else ""
    words = title or name.replace("_", " ")
    own = Column(words, unit, known.direction, name=name, **column)
    return measure(own, kind, lambda point, mode: point.value(read.metric(mode, name)))


def mean_depth(priority: int = 0) -> Measure:
    """Mean loops of later tokens: of the timed requests, else of the live pass."""
    column = Column("mean depth", "loops", "down", priority=priority, name="mean_depth")
    return counted(column, Kind.NUMBER, depth_of)


def depth_of(point: Point, mode: str) -> float | None:
    """As ``mean_depth``; None where neither was run."""
    found = point.value(read.metric(mode, "mean_depth"))
    if found is not None:
        return found.estimate
    row = point.first.modes.get(mode) if point.first is not None else None
    return row.answered_depth if row is not None else None


def accuracy(priority: int = 0) -> Iterator[Measure]:
    """The rate of the live pass, and what the questions say of it against full depth."""
    column = Column("accuracy", direction="up", priority=priority, name="accuracy")
    yield measure(column, Kind.PERCENT, lambda point, mode: point.value(read.accuracy(mode)))
    verdict = Column("accuracy verdict", align="left", priority=priority + 3, name="verdict")
    yield worded(verdict, verdict_of)


def verdict_of(point: Point, mode: str) -> str | None:
    """Whether a mode is as accurate as full depth; None where that was not asked, or is moot."""
    found = point.first.accuracy if point.first is not None else None
    if point.first is None or found is None or mode not in found.modes or is_random(point.first):
        return None
    if mode == found.baseline:
        return "baseline"
    paired, adaptive = found.modes[mode].paired, found.modes[mode].adaptive
    if paired is None:
        return None
    return ACCURACY_WORDS[paired.verdict] + ("" if adaptive else " (not adaptive)")


def accuracy_notes(points: Iterable[Point]) -> tuple[str, ...]:
    """What an accuracy is, or that there is none."""
    answered = [p for p in points if p.first is not None and p.first.accuracy is not None]
    if not answered:
        return ("No accuracy: the runs have no live pass (`work: live`).",)
    return (
        "Accuracy: questions answered right in the live pass, each mode's own text; in brackets "
        "95 % intervals.",
    )

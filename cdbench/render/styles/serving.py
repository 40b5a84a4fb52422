"""Style ``serving``: latency, goodput and what is kept up with, by arrival rate and mode."""

from __future__ import annotations

from collections.abc import Sequence

from cdbench.errors import UsageError
from cdbench.metrics.sustained import ATTAINMENT, COMPLETED_SHARE, is_sustained
from cdbench.render.asked import targets
from cdbench.render.formats import Kind
from cdbench.render.full_report import LATENCY_WORDS, PERCENTILES
from cdbench.render.styles import points as read
from cdbench.render.styles.assemble import NOTHING, Line, Look, Measure, assemble
from cdbench.render.styles.facts import ARRIVALS
from cdbench.render.styles.figures import mean_depth, metric
from cdbench.render.styles.points import Measured, Point
from cdbench.render.table import Cell, Column, Table, text
from cdbench.sweep.sustained import offered_load
from cdbench.workloads.arrivals import parse_arrivals

LATENCIES = ("ttft", "tpot", "e2e")
_SCOPE = (
    "Latency counts from the scheduled arrival; percentiles over requests, mean over the timed "
    "runs. Wall times form no ratio here: arrivals set the pace."
)


def tables(measured: Measured) -> list[Table]:
    """One table: a line for each mode under a group for each rate.

    UsageError where no run had requests that arrive by themselves.
    """
    served = [point for point in measured.points if _is_served(point)]
    if not served:
        raise UsageError(
            f"--style serving: the requests of {measured.points[0].name} did not arrive by "
            "themselves, or its result.json is not there; run `cdbench sweep "
            "paper/serving-rate.cpu` or `cdbench run --set workload.arrivals=open-loop:40`"
        )
    lines = [
        Line(point, mode, _group(point, served))
        for point in served
        for mode in point.modes
        if point.first is not None and point.first.modes[mode].percentiles
    ]
    look = Look(
        "Serving by arrival rate",
        _SCOPE,
        tuple(_notes(served, measured)),
        shows=(ARRIVALS,),
        by_mode=True,
        judged=True,
    )
    measures = [
        *(_percentile(name, q) for name in LATENCIES for q in _shown(name, served)),
        metric("normalized_latency", Kind.SECONDS, priority=2),
        metric("goodput", Kind.NUMBER),
        metric("request_throughput", Kind.NUMBER, "completed", priority=1),
        metric("output_throughput", Kind.NUMBER, "output", priority=3),
        mean_depth(4),
        Measure(Column("keeps up", align="left", name="sustained"), _keeps_up),
    ]
    return [assemble(lines, measures, measured, look)]


def _is_served(point: Point) -> bool:
    found = point.first
    if found is None or not found.workload.requests:
        return False
    return found.workload.arrivals != "all-at-once" and any(
        mode.percentiles for mode in found.modes.values()
    )


def _group(point: Point, served: Sequence[Point]) -> str:
    """The arrivals, and the point where others have the same."""
    arrivals = [each.first.workload.arrivals for each in served if each.first is not None]
    own = point.first.workload.arrivals if point.first is not None else ""
    words = f"arrivals {own}"
    return words if arrivals.count(own) == 1 else f"{words}, {point.name}"


def _shown(name: str, served: Sequence[Point]) -> list[str]:
    """The percentiles that some mode has; the median at least, to say that there are too few."""
    known = [
        q
        for q in PERCENTILES
        if any(
            mode.percentiles.get(name, {}).get(q) is not None
            for point in served
            for result in point.results
            for mode in result.modes.values()
        )
    ]
    return known or ["p50"]


def _percentile(name: str, q: str) -> Measure:
    column = Column(
        q,
        direction="down",
        group=name,
        priority=0 if q in ("p50", "p90") else 2,
        name=f"{name}.{q}",
    )

    def cell(point: Point, mode: str) -> Cell:
        found = point.value(read.percentile(mode, name, q))
        if found is None:
            n = point.first.workload.requests if point.first is not None else None
            return Cell(None, Kind.SECONDS, n=n)
        return Cell(found.estimate, Kind.SECONDS)

    return Measure(column, cell)


def _keeps_up(point: Point, mode: str) -> Cell:
    """Whether this rate is kept up with; a dash where the engine sets the pace."""
    rate = _rate(point)
    load = None if rate is None else offered_load(mode, rate, point.results)
    if load is None:
        return NOTHING
    return text("cannot say" if point.invalid else "yes" if is_sustained(load) else "no")


def _rate(point: Point) -> float | None:
    found = point.first
    return None if found is None else parse_arrivals(found.workload.arrivals).mean_rate


def _notes(served: Sequence[Point], measured: Measured) -> list[str]:
    notes = [LATENCY_WORDS]
    limits = list(dict.fromkeys(" and ".join(targets(point.config)) for point in served))
    if any(limits):
        notes.append(
            f"Goodput: finished requests per second with {'; '.join(filter(None, limits))}."
        )
    notes.append(
        f"Keeps up: requests finish at {COMPLETED_SHARE:.0%} of the offered rate or more"
        + (f", and {ATTAINMENT:.0%} of them within the targets." if any(limits) else ".")
    )
    highest = [words for document in measured.sweeps for words in document.sustained]
    if highest:
        notes.append(f"Highest sustained rates: {'; '.join(highest)}.")
    return notes

"""The highest arrival rate that each setting of a sweep keeps up with, in words.

A setting is all that a cell has but its arrivals and the number of its requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cdbench.config import RunConfig
from cdbench.metrics.sustained import ATTAINMENT, OfferedLoad, highest_sustained_rate
from cdbench.schema import Result
from cdbench.schema.sweep import SweepCell
from cdbench.sweep.cells import Cell
from cdbench.sweep.changes import plain
from cdbench.workloads.arrivals import parse_arrivals

PACE = ("arrivals", "requests")
"""Keys of ``workload`` that a setting leaves out: a longer run belongs to a higher rate."""


@dataclass(frozen=True)
class Trial:
    """One setting at one mean rate, req/s; ``load`` None where its cell is missing or INVALID.

    ``setting`` tells settings apart, ``words`` name them.
    """

    setting: str
    words: str
    rate: float
    load: OfferedLoad | None


def setting_of(config: RunConfig) -> str:
    """What must be alike in cells whose rates are compared."""
    return config.model_dump_json(exclude={"out": True, "workload": set(PACE)})


def offered_rate(config: RunConfig) -> float | None:
    """Requests per second that a cell offers; None where the engine sets the pace, or a trace."""
    return parse_arrivals(config.workload.arrivals).mean_rate


def sustained_words(trials: Iterable[Trial], attainment: float = ATTAINMENT) -> list[str]:
    """One sentence a setting; ``attainment`` is the share of requests that must meet the limits."""
    settings: dict[str, list[Trial]] = {}
    for trial in trials:
        settings.setdefault(trial.setting, []).append(trial)
    return [_sentence(found, attainment) for found in settings.values()]


def _sentence(trials: Sequence[Trial], attainment: float) -> str:
    words = next((t.words for t in trials if t.load is not None), trials[0].words)
    loads = [t.load for t in trials if t.load is not None]
    unjudged = [t.rate for t in trials if t.load is None]
    found = highest_sustained_rate(loads, attainment=attainment, unjudged=unjudged)
    failed, unknown = found.first_failed, found.unjudged
    if found.rate is None and unknown is None:
        return f"{words}: not shown to keep up with even {failed:g} requests/s"
    if found.rate is None:
        also = "" if failed is None else f", and it does not keep up with {failed:g}"
        return f"{words}: {unknown:g} requests/s, the lowest rate, was not judged{also}"
    limits = [] if failed is None else [f"but not {failed:g}"]
    limits += [] if unknown is None else [f"{unknown:g} was not judged"]
    more = "" if limits else " or more"
    return ", ".join([f"{words}: keeps up with {found.rate:g} requests/s{more}", *limits])


def sustained_rates(
    cells: Sequence[Cell], seen: Sequence[SweepCell], results: Sequence[Sequence[Result]]
) -> list[str]:
    """A sentence for every setting and mode of a sweep over arrival rates; empty for any other.

    ``seen`` and ``results`` are what the cells are found to be, in their order.
    """
    if len({cell.config.workload.arrivals for cell in cells}) < 2:
        return []
    timed = [
        (cell, rate, document.verdict, found)
        for cell, document, found in zip(cells, seen, results, strict=True)
        if (rate := offered_rate(cell.config)) is not None and "equal" in cell.config.work
    ]
    modes = dict.fromkeys(str(m) for cell, *_ in timed for m in cell.config.resolved_modes)
    return sustained_words(
        Trial(
            setting=f"{mode} {setting_of(cell.config)}",
            words=_words(cell, mode),
            rate=rate,
            load=offered_load(mode, rate, found) if verdict == "VALID" else None,
        )
        for mode in modes
        for cell, rate, verdict, found in timed
        if mode in {str(m) for m in cell.config.resolved_modes}
    )


def _words(cell: Cell, mode: str) -> str:
    """The mode, and what the cell changes beside its arrivals."""
    changes: dict[str, object] = {}
    for key, value in cell.changes.items():
        if key == "workload" and isinstance(value, dict):
            changes |= {f"workload.{name}": inner for name, inner in value.items()}
        else:
            changes[key] = value
    pace = {f"workload.{name}" for name in PACE}
    left = [f"{key}={plain(value)}" for key, value in changes.items() if key not in pace]
    return ", ".join([mode, *left])


def offered_load(mode: str, rate: float, results: Sequence[Result]) -> OfferedLoad | None:
    """Means over the mode's runs of all rounds; None where it has none.

    A run in which no request finished has no throughput: it completed none. Goodput times the wall
    is the number of requests within every limit.
    """
    runs = [(result, run) for result in results for run in result.blocks if run.mode == mode]
    if not runs:
        return None
    completed = [run.metrics.get("request_throughput") or 0.0 for _, run in runs]
    met = [
        goodput * run.wall_s / result.workload.requests
        for result, run in runs
        if (goodput := run.metrics.get("goodput")) is not None
    ]
    attained = sum(met) / len(met) if met else None
    return OfferedLoad(rate, sum(completed) / len(completed), attained)

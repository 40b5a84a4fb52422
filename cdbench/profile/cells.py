"""One cell of the profile: its setting, and what its run shows of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cdbench.errors import UsageError
from cdbench.metrics.sustained import OfferedLoad
from cdbench.profile.served import (
    Served,
    attained,
    completed_rate,
    goodput_interval,
    has_target,
    judged,
    served,
    slo_of,
)
from cdbench.profile.tail import tail
from cdbench.schema import IntervalRecord, ModeResult, Result
from cdbench.schema.profile import ProfileCell, SloRecord
from cdbench.schema.sweep import SweepCell
from cdbench.sweep.cells import Cell
from cdbench.sweep.directory import SweepDirectory
from cdbench.sweep.figures import Figure, value
from cdbench.sweep.sustained import Trial, offered_rate, setting_of, sustained_words

UNREADABLE = "unreadable"
"""The state of a cell that has finished and whose raw records cannot be read."""
LATENCIES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True)
class Measured:
    """A cell, its record, and the raw runs behind it; ``served`` None where it has not finished.

    ``unreadable`` says why its raw records cannot be read, where they cannot.
    """

    cell: Cell
    record: ProfileCell
    served: Served | None
    unreadable: str | None = None


def measured_cell(
    directory: SweepDirectory, cell: Cell, seen: SweepCell, mode: str, slo: SloRecord
) -> Measured:
    """What is known of a cell; only its setting where it has not finished."""
    record = ProfileCell(
        number=cell.number,
        hash=cell.hash,
        changes=cell.changes,
        state=seen.verdict or seen.rounds[0].state,
        width=cell.config.engine.width,
        arrivals=cell.config.workload.arrivals,
    )
    results = directory.results(cell, 1)
    result = results[0] if results else None
    if result is None or mode not in result.modes:
        return Measured(cell, record, None)
    try:
        runs = served(directory.cell(cell, 1), result, mode)
    except UsageError as error:
        return Measured(cell, record.model_copy(update={"state": UNREADABLE}), None, str(error))
    return Measured(cell, _with_numbers(record, result, runs, mode, slo), runs)


def _with_numbers(
    record: ProfileCell, result: Result, runs: Served, name: str, slo: SloRecord
) -> ProfileCell:
    mode = result.modes[name]
    return record.model_copy(
        update={
            "rule": mode.exit.rule,
            "threshold": mode.exit.threshold,
            "max_loops": mode.max_loops,
            "requests": runs.requests,
            "mean_depth": mode.metrics.get("mean_depth"),
            "output_throughput": value(Figure("metric", name, "output_throughput"), [result]),
            "percentiles": {
                latency: mode.percentiles[latency]
                for latency in LATENCIES
                if latency in mode.percentiles
            },
            "tail": tail(runs, mode),
            **accuracy_fields(result, mode, name),
            **_against(runs, slo),
        }
    )


def accuracy_fields(result: Result, mode: ModeResult, name: str) -> dict[str, Any]:
    """``accuracy`` and ``accuracy_verdict`` of the live pass, where there was one.

    Random weights have none that means anything.
    """
    found = result.accuracy.modes.get(name) if result.accuracy is not None else None
    random = result.model is not None and result.model.random_weights_seed is not None
    if found is None or random:
        return {}
    verdict = found.paired.verdict if found.paired is not None else None
    return {"accuracy": found.rate, "accuracy_verdict": verdict}


def _against(runs: Served, slo: SloRecord) -> dict[str, object]:
    """How the runs stand to the targets; nothing without one."""
    if not has_target(slo):
        return {}
    share = attained(runs, slo_of(slo))
    return {
        "goodput": goodput_interval(runs, slo_of(slo)),
        "attained": None if share is None else IntervalRecord.of(share),
        "slo": judged(share, slo.percentile),
    }


def sustained(cells: list[Measured], slo: SloRecord) -> list[str]:
    """The highest offered rate that each setting keeps up with, in words; over open loops only."""
    return sustained_words(
        (
            Trial(setting_of(found.cell.config), _setting(found), rate, _load(found, rate))
            for found in cells
            if (rate := offered_rate(found.cell.config)) is not None
        ),
        slo.percentile / 100,
    )


def _load(found: Measured, rate: float) -> OfferedLoad | None:
    """What a valid cell shows of its rate."""
    if found.served is None or found.record.state != "VALID":
        return None
    share = found.record.attained.estimate if found.record.attained is not None else None
    return OfferedLoad(rate, completed_rate(found.served), share)


def _setting(found: Measured) -> str:
    """The rule as it ran; of a cell that has not, what it changes."""
    cell = found.record
    if cell.rule is None:
        return found.cell.words
    at = f"{cell.rule}@{cell.threshold:g}" if cell.threshold is not None else cell.rule
    return f"{at}, max_loops {cell.max_loops}, width {cell.width}"

"""Summaries made again from a run directory alone, and compared with what ``result.json`` says.

The very functions that summarised the run are given its raw records instead of live engines, so a
difference means that a file was changed, lost or written by another version, and never that two
implementations disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cdbench.bench.accuracy import accuracy_of
from cdbench.bench.derived import EqualWork, break_evens, equal_sections, exits_of
from cdbench.bench.figures import mode_figures
from cdbench.bench.raw import ContradictionError, RawRun, read_run
from cdbench.bench.repeats import Repeat
from cdbench.config import EngineConfig
from cdbench.metrics.identities import broken_identities
from cdbench.schema import ModeResult, Result, Workload
from cdbench.schema.stages import StageCurves
from cdbench.stats.blocks import LEVEL
from cdbench.workloads.arrival_times import ArrivalSchedule
from cdbench.workloads.arrivals import parse_arrivals
from cdbench.workloads.identity import workload_hash

REL_TOL = 1e-9
"""Raw records hold every number exactly; another build of the mathematics moves last digits."""
ABS_TOL = 1e-12

SECTIONS = (
    "workload",
    "modes",
    "blocks",
    "comparisons",
    "bounds",
    "waterfall",
    "break_even",
    "accuracy",
    "exits",
)
"""The sections of ``result.json`` that are made again. Stage curves are measurements: they are read
from ``result.json`` as the raw records are from their files."""


def rederive(result: Result, raw: RawRun) -> Result:
    """``result`` with every section in ``SECTIONS`` made again from the raw records.

    What no record holds (how a mode was set up, its notes) stays as it was.
    """
    work = EqualWork.of(
        raw.repeats,
        raw.facts,
        raw.workload,
        _prefill_tokens(result),
        _stages(result),
        _level(result),
    )
    sections = equal_sections(work)
    made = vars(sections) | {
        "break_even": break_evens(_price_per_hour(result), sections.comparisons),
        "workload": _workload(result, raw),
        "modes": _modes(result, raw, work.runs),
        "accuracy": accuracy_of(raw.passes),
        "exits": exits_of(
            raw.passes,
            raw.repeats,
            {label: mode.max_loops for label, mode in result.modes.items()},
        ),
    }
    return result.model_copy(update=made)


def check(directory: Path) -> list[str]:
    """Where a run's ``result.json`` differs from its raw records, one sentence each; else empty.

    Raises:
        UsageError: a file is missing or unreadable, or the run is older than these records.
    """
    try:
        result, raw = read_run(directory)
    except ContradictionError as error:
        return [f"raw records: {error}; nothing was recomputed"]
    lost = sorted(raw.labels - set(result.modes))
    again = rederive(result, raw)
    found = [f"modes: {label} was measured, but result.json has no such mode" for label in lost]
    for name in SECTIONS:
        found += differences(_plain(getattr(result, name)), _plain(getattr(again, name)), name)
    found += (why for run in raw.repeats for why in broken_identities(run.trace))
    return found


def differences(said: Any, made: Any, where: str) -> Iterator[str]:
    """What two JSON values disagree in. An undefined value and an absent key are the same."""
    if isinstance(said, dict) and isinstance(made, dict):
        for key in dict.fromkeys((*said, *made)):
            yield from differences(said.get(key), made.get(key), f"{where}.{key}")
    elif isinstance(said, list) and isinstance(made, list) and len(said) == len(made):
        for place, (one, other) in enumerate(zip(said, made, strict=True)):
            yield from differences(one, other, f"{where}[{place}]")
    elif not _same(said, made):
        yield f"{where}: result.json has {_short(said)}, the raw records give {_short(made)}"


def _same(said: Any, made: Any) -> bool:
    numbers = [isinstance(x, int | float) and not isinstance(x, bool) for x in (said, made)]
    if all(numbers):
        return math.isclose(said, made, rel_tol=REL_TOL, abs_tol=ABS_TOL)
    return bool(said == made)


def _modes(result: Result, raw: RawRun, runs: Sequence[Repeat]) -> dict[str, ModeResult]:
    return {
        label: ModeResult.model_validate(
            dict(mode) | vars(mode_figures(label, runs, raw.passes, mode.max_loops, _level(result)))
        )
        for label, mode in result.modes.items()
    }


def _workload(result: Result, raw: RawRun) -> Workload:
    if not raw.workload:
        return result.workload
    arrivals = ArrivalSchedule(parse_arrivals(result.workload.arrivals), raw.offsets_s)
    return result.workload.model_copy(
        update={
            "hash": workload_hash(raw.workload, arrivals),
            "requests": len(raw.workload),
            "prompt_tokens": sum(len(r.prompt) for r in raw.workload),
            "output_tokens": sum(len(r.tokens) for r in raw.workload),
        }
    )


def _stages(result: Result) -> StageCurves | None:
    return None if result.stages is None else StageCurves.model_validate(result.stages)


def _level(result: Result) -> float:
    return LEVEL if result.looks is None else result.looks.level


def _price_per_hour(result: Result) -> float | None:
    found = result.config.get("price_per_hour")
    return float(found) if isinstance(found, int | float) else None


def _prefill_tokens(result: Result) -> int:
    engine = result.config.get("engine")
    found = engine.get("prefill_tokens") if isinstance(engine, dict) else None
    return found if isinstance(found, int) else EngineConfig().prefill_tokens


def _plain(value: Any) -> Any:
    """A section as JSON values."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} entries"
    if isinstance(value, dict):
        return "a section"
    return "nothing" if value is None else repr(value)

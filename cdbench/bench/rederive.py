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

from pydantic import JsonValue, ValidationError

from cdbench.bench.accuracy import accuracy_of
from cdbench.bench.consistency import check_consistent
from cdbench.bench.derived import EqualWork, break_evens, equal_sections, exits_of, looks_of
from cdbench.bench.figures import mode_figures
from cdbench.bench.memory_held import equal_memory_of
from cdbench.bench.raw import ContradictionError, RawRun, read_run
from cdbench.bench.rejudge import compute_threads, verdict_errors
from cdbench.bench.repeats import StoredRepeat
from cdbench.config import EngineConfig, RepeatsConfig
from cdbench.machine.summary import summarise as summarise_machine
from cdbench.schema import STAGE_PASSES_FILE, Environment, ModeResult, Result, Workload
from cdbench.schema.looks import LooksRecord
from cdbench.schema.stages import StageCurves
from cdbench.stages.points import points_of
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
    "looks",
    "equal_memory",
    "environment",
    "stages",
)
"""The sections of ``result.json`` that are made again. Of stage curves these are the points, from
the passes of the run; the floors are measurements of their own. Curves that the run read from a
file stay as they are."""


def rederive(result: Result, raw: RawRun) -> Result:
    """``result`` with every section in ``SECTIONS`` made again from the raw records.

    What no record holds (how a mode was set up, its notes) stays as it was.

    Raises:
        ContradictionError: the records cannot be summarised.
    """
    stages, looks = _stages(result), _looks(result, raw)
    level = LEVEL if looks is None else looks.level
    work = EqualWork.of(
        raw.repeats,
        raw.facts,
        raw.workload,
        _prefill_tokens(result),
        stages,
        level,
        raw.stage_passes,
    )
    sections = equal_sections(work)
    made = vars(sections) | {
        "break_even": break_evens(_price_per_hour(result), sections.comparisons),
        "workload": _workload(result, raw),
        "modes": _modes(result, raw, work.runs, level),
        "accuracy": accuracy_of(
            raw.passes, result.accuracy.questions if result.accuracy is not None else None
        ),
        "exits": exits_of(
            raw.passes,
            raw.repeats,
            {label: mode.max_loops for label, mode in result.modes.items()},
        ),
        "looks": looks,
        "equal_memory": equal_memory_of(
            raw.repeats, result.equal_memory.budget_bytes if result.equal_memory else None
        ),
        "environment": _environment(result, raw),
        "stages": _stages_again(stages, raw) or result.stages,
    }
    return result.model_copy(update=made)


def check(directory: Path) -> list[str]:
    """Where a run's ``result.json`` differs from its raw records, one sentence each; else empty.

    Raises:
        UsageError: a file is missing or unreadable, or the run is older than these records.
    """
    try:
        result, raw = read_run(directory)
        check_consistent(result, raw)
        again, verdict = rederive(result, raw), verdict_errors(result, raw)
    except ContradictionError as error:
        return [f"raw records: {error}; nothing was recomputed"]
    except (ValueError, ArithmeticError) as error:  # metrics refuse what no run can have
        return [f"raw records: they cannot be summarised ({_one_line(error)})"]
    lost = sorted(raw.labels - set(result.modes))
    found = [f"modes: {label} was measured, but result.json has no such mode" for label in lost]
    for name in SECTIONS:
        found += differences(_plain(getattr(result, name)), _plain(getattr(again, name)), name)
    return [*found, *_lost_passes(result, raw), *verdict]


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return " ".join(str(error).split())


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


def _modes(
    result: Result, raw: RawRun, runs: Sequence[StoredRepeat], level: float
) -> dict[str, ModeResult]:
    return {
        label: ModeResult.model_validate(
            dict(mode) | vars(mode_figures(label, runs, raw.passes, mode.max_loops, level))
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
    """The stage curves that the run says it used."""
    if result.stages is None:
        return None
    try:
        stages = StageCurves.model_validate(result.stages)
        stages.check()
    except ValueError as error:
        raise ContradictionError(f"stage curves of result.json: {error}") from None
    return stages


def _stages_again(stages: StageCurves | None, raw: RawRun) -> JsonValue:
    """Stage curves with the points of the passes; None without either."""
    if stages is None or not raw.stage_passes:
        return None
    points = points_of(raw.stage_passes, stages.floors)
    made = stages.model_copy(update={"points": points, "passes": len(raw.stage_passes)})
    return made.model_dump(mode="json")


def _lost_passes(result: Result, raw: RawRun) -> Iterator[str]:
    """Stage curves without the passes that they were made from, or passes without curves."""
    measured = "stages" in result.files or result.config.get("stages") == "measure"
    passes = len(raw.stage_passes)
    if result.stages is not None and measured and not passes:
        yield f"stages: measured in the run, but {STAGE_PASSES_FILE} has no pass"
    if result.stages is None and passes and result.status == "complete":
        yield f"stages: {STAGE_PASSES_FILE} has {passes} passes, but result.json has no curves"


def _looks(result: Result, raw: RawRun) -> LooksRecord | None:
    repeats = result.config.get("repeats")
    asked = repeats if isinstance(repeats, dict) else {}
    blocks, interval = asked.get("blocks"), asked.get("interval")
    try:
        return looks_of(
            raw.repeats,
            blocks if isinstance(blocks, int) else RepeatsConfig().blocks,
            float(interval) if isinstance(interval, int | float) else None,
        )
    except ValueError as error:
        raise ContradictionError(f"looks: {error}") from None


def _environment(result: Result, raw: RawRun) -> Environment | None:
    seen = raw.environments
    return summarise_machine(seen, compute_threads(result)) if seen else None


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

"""Where a ``result.json`` contradicts itself: what can be told without its raw records.

Its blocks give its speed-ups, means and their intervals; counts of questions give rates and paired
differences; reasons, blocks and the machine's figures bound its verdict. What follows from single
requests or launches (percentiles, depths, bounds) only the raw records tell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from cdbench.bench.rederive import differences
from cdbench.config import RepeatsConfig
from cdbench.machine.disturbance import LIMITS, OFTEN
from cdbench.schema import (
    Accuracy,
    BlockRecord,
    IntervalRecord,
    ModeAccuracy,
    PairedRecord,
    Result,
    TaskAccuracy,
)
from cdbench.schema.looks import LooksRecord
from cdbench.stats.blocks import (
    LEVEL,
    MIN_BLOCKS,
    RUNS_PER_BLOCK,
    BlockRun,
    geometric_mean,
    log_ratios,
    mean,
)
from cdbench.stats.interval import Interval
from cdbench.stats.looks import looks_for
from cdbench.stats.paired import mcnemar, non_inferiority, paired_difference, wilson

COUNT_TOL = 1e-6
"""A share times its number of questions is a whole number, up to rounding."""


def contradictions(result: Result) -> Iterator[str]:
    """What a result says that its other parts do not bear out, one sentence each."""
    yield from _looks(result)
    yield from _speedups(result)
    yield from _metrics(result)
    if result.accuracy is not None:
        yield from _accuracy(result, result.accuracy)
    yield from _verdict(result)


def block_values(blocks: list[BlockRecord]) -> dict[str, dict[str, list[float]]]:
    """Mode → metric → one mean for each whole block; one undefined in some run is left out."""
    whole = _whole_blocks(blocks)
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    undefined: set[tuple[str, str]] = set()
    for runs in whole:
        for label in {run.mode: None for run in runs}:
            own = [run.metrics for run in runs if run.mode == label]
            for name in dict.fromkeys(key for metrics in own for key in metrics):
                values = [v for metrics in own if (v := metrics.get(name)) is not None]
                if len(values) < len(own):
                    undefined.add((label, name))
                else:
                    found[label][name].append(sum(values) / len(values))
    return {
        label: {name: v for name, v in metrics.items() if (label, name) not in undefined}
        for label, metrics in found.items()
    }


def _whole_blocks(blocks: list[BlockRecord]) -> list[list[BlockRecord]]:
    """The blocks in which every mode ran twice, in their order."""
    places = RUNS_PER_BLOCK * len({run.mode for run in blocks})
    by_block: dict[int, list[BlockRecord]] = defaultdict(list)
    for run in blocks:
        by_block[run.index].append(run)
    return [runs for _, runs in sorted(by_block.items()) if len(runs) == places]


def _logs(result: Result, mode: str, over: str, scope: str) -> list[float]:
    """The log ratios of two modes, from the walls of the blocks."""
    walls = ((run, run.wall_s if scope == "e2e" else run.decode_wall_s) for run in result.blocks)
    runs = [BlockRun(run.index, run.mode, wall) for run, wall in walls if wall is not None]
    return log_ratios(runs, mode, over)


def _level(result: Result) -> float:
    return LEVEL if result.looks is None else result.looks.level


def _looks(result: Result) -> Iterator[str]:
    """The level of every interval, where it was looked several times, follows from the plan."""
    repeats = result.config.get("repeats")
    asked = repeats if isinstance(repeats, dict) else {}
    blocks, target = asked.get("blocks"), asked.get("interval")
    if not isinstance(target, int | float):
        if result.looks is not None:
            yield "looks: there are some, but the configuration asks for none"
        return
    looks = looks_for(blocks if isinstance(blocks, int) else RepeatsConfig().blocks, float(target))
    logs = _logs(result, "cdb", "static", "e2e")
    last = looks.after(logs) or looks.cut_short(logs)
    made = None if last is None else LooksRecord.of(looks, last)
    yield from differences(_plain(result.looks), _plain(made), "looks")


def _speedups(result: Result) -> Iterator[str]:
    for found in result.comparisons:
        name = f"speed-up of {found.mode} over {found.over} ({found.scope})"
        logs = _logs(result, found.mode, found.over, found.scope)
        yield from differences(found.log_ratios, logs, f"log_ratios of the {name}")
        yield from _interval(found.speedup, geometric_mean(logs, _level(result)), name)


def _metrics(result: Result) -> Iterator[str]:
    """Means of blocks and their intervals; a constant has no interval."""
    for label, metrics in block_values(result.blocks).items():
        mode = result.modes.get(label)
        if mode is None:
            yield f"modes: {label} was timed, but has no section"
            continue
        for name, values in metrics.items():
            where = f"modes.{label}.metrics.{name}"
            if mode.metrics.get(name) is not None:
                yield from differences(mode.metrics[name], sum(values) / len(values), where)
            made = mean(values, _level(result)) if len(set(values)) > 1 else None
            if name in mode.intervals or made is not None:
                where = f"modes.{label}.intervals.{name}"
                yield from _interval(mode.intervals.get(name), made, where)


def _accuracy(result: Result, found: Accuracy) -> Iterator[str]:
    base = found.modes.get(found.baseline) if found.baseline is not None else None
    for label, mode in found.modes.items():
        where = f"accuracy.{label}"
        yield from _rate(mode.rate, where)
        yield from _pair(mode.paired, mode, base, where)
        for task, own in mode.tasks.items():
            theirs = base.tasks.get(task) if base is not None else None
            if task in mode.by_task:
                rate = _plain(mode.by_task[task])
                yield from differences(_plain(own.rate), rate, f"{where}.{task}.rate")
            if task in mode.by_task or own.paired is not None:
                yield from _rate(own.rate, f"{where}.{task}")
            yield from _pair(own.paired, own, theirs, f"{where}.{task}")
        yield from _pooled(result, label, mode)


def _rate(said: IntervalRecord | None, where: str) -> Iterator[str]:
    """A share of right answers: a whole number of them, in Wilson's interval."""
    if said is None or said.estimate is None:
        return
    right = said.estimate * said.n
    whole = round(right)
    if abs(right - whole) > COUNT_TOL * max(1, said.n) or not 0 <= whole <= said.n:
        yield f"{where}: {said.estimate:g} of {said.n} questions is no whole number of them"
        return
    yield from _interval(said, wilson(whole, said.n), f"{where}.rate")


def _pair(
    said: PairedRecord | None,
    own: ModeAccuracy | TaskAccuracy,
    base: ModeAccuracy | TaskAccuracy | None,
    where: str,
) -> Iterator[str]:
    """A paired difference follows from what was lost and gained, and is that of the rates."""
    if said is None:
        return
    if said.n <= 0 or min(said.lost, said.gained) < 0 or said.lost + said.gained > said.n:
        yield f"{where}: {said.lost} lost and {said.gained} gained of {said.n} questions"
        return
    made = paired_difference(said.lost, said.gained, said.n)
    yield from _interval(said.difference, made, f"{where}.difference")
    yield from differences(
        said.mcnemar_p, mcnemar(said.lost, said.gained), f"{where}.paired.mcnemar_p"
    )
    verdict = non_inferiority(said.lost, said.gained, said.n, said.delta).value
    yield from differences(said.verdict, verdict, f"{where}.paired.verdict")
    rates = [each.rate if each is not None else None for each in (own, base)]
    shares = [rate.estimate for rate in rates if rate is not None and rate.n == said.n]
    if len(shares) == len(rates) and None not in shares:
        between = (shares[0] or 0.0) - (shares[1] or 0.0)
        yield from differences(said.difference.estimate, between, f"{where}.difference")


def _pooled(result: Result, label: str, mode: ModeAccuracy) -> Iterator[str]:
    """The rate of a mode pools its tasks, and is its live accuracy where no task is graded."""
    known = [rate for rate in mode.by_task.values() if rate.estimate is not None]
    if mode.rate is not None and known:
        right, n = sum((r.estimate or 0.0) * r.n for r in known), sum(r.n for r in known)
        yield from differences(mode.rate.estimate, right / n, f"accuracy.{label}.rate")
        yield from differences(mode.rate.n, n, f"accuracy.{label}.rate.n")
    row = result.modes.get(label)
    live = row.live.get("accuracy") if row is not None else None
    if mode.rate is not None and live is not None and set(mode.tasks) == set(mode.by_task):
        where = f"modes.{label}.live.accuracy"
        yield from differences(live, mode.rate.estimate, where)


def _verdict(result: Result) -> Iterator[str]:
    """A verdict is that of its reasons, and may not leave out those that can be told here."""
    said = result.validity
    if (said.verdict == "INVALID") != bool(said.reasons):
        yield f"validity: {said.verdict} with {len(said.reasons)} reasons"
    yield from (
        f"validity.timing: {reason!r} is none of its reasons"
        for reason in said.timing
        if reason not in said.reasons
    )
    if said.verdict == "VALID":
        yield from (f"validity: VALID, but {reason}" for reason in _spoiling(result))


def _spoiling(result: Result) -> Iterator[str]:
    if result.status == "interrupted":
        yield "the run was interrupted"
    whole = len(_whole_blocks(result.blocks))
    if result.blocks and whole < MIN_BLOCKS:
        yield f"{whole} whole blocks were timed; an interval needs {MIN_BLOCKS}"
    figures = result.environment.figures if result.environment is not None else {}
    for limit in LIMITS:
        found = figures.get(limit.figure)
        # Of the spans only median and extremes are kept: half of them lie at the median or above.
        if found is not None and (
            found.median > limit.spoils or (found.high > limit.spoils and OFTEN * found.n < 1)
        ):
            yield f"environment.figures.{limit.figure} was above {limit.spoils:g}, which spoils it"


def _interval(said: IntervalRecord | None, made: Interval | None, where: str) -> Iterator[str]:
    yield from differences(
        _plain(said), None if made is None else _plain(IntervalRecord.of(made)), where
    )


def _plain(record: Any) -> Any:
    return None if record is None else record.model_dump(mode="json")

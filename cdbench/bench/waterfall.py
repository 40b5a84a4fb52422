"""The waterfall of every timed mode of the looped model over ``static``.

Made from raw records and stage curves alone, so that it can be made again without the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from cdbench.bench.repeats import Repeat
from cdbench.metrics.curves import Curves
from cdbench.metrics.ideal import CachedCurves, LaterTokens, Packing, later_tokens
from cdbench.metrics.trace import RunTrace
from cdbench.metrics.waterfall import (
    CURVE_LIMIT,
    NoWaterfallError,
    RunTimes,
    Side,
    Step,
    curve_error,
    effect_times,
    waterfall,
)
from cdbench.schema import IntervalRecord, Waterfall, WaterfallRow
from cdbench.schema.repeats import ModeFacts
from cdbench.schema.workload import RecordedWork
from cdbench.stats.blocks import LEVEL
from cdbench.stats.interval import Interval

STATIC = "static"


def waterfalls_of(
    runs: Sequence[Repeat],
    facts: Mapping[str, ModeFacts],
    workload: Sequence[RecordedWork],
    curves: Curves,
    level: float = LEVEL,
) -> dict[str, Waterfall]:
    """Mode → its waterfall over ``static``; empty where static was not timed.

    ``facts`` are of every timed mode. A dense model runs other stages than those the curves are of,
    so it has none. Where a waterfall cannot be made, the record has no rows and gives the reason.
    """
    by_mode: dict[str, list[Repeat]] = {}
    for run in runs:
        if not facts[run.trace.mode].dense:
            by_mode.setdefault(run.trace.mode, []).append(run)
    if STATIC not in by_mode:
        return {}
    shared = CachedCurves(curves)
    times = {mode: _times(own, facts[mode], workload, shared) for mode, own in by_mode.items()}
    traces = {mode: own[0].trace for mode, own in by_mode.items()}
    return {
        mode: _record(
            mode,
            found,
            times[STATIC],
            level,
            _narrow_s({name: traces[name] for name in (STATIC, mode)}, facts, workload, shared),
        )
        for mode, found in times.items()
        if mode != STATIC
    }


def asked_depths(work: RecordedWork, facts: ModeFacts, max_loops: int) -> Sequence[int]:
    """The depths at which a mode asks for a request's tokens: the rule's, or its own R for all."""
    return work.requested_depths if facts.adaptive else [max_loops] * len(work.tokens)


def requested_tokens(
    workload: Sequence[RecordedWork], facts: ModeFacts, max_loops: int
) -> LaterTokens:
    """The workload's later tokens at the depths that a mode asks for."""
    return later_tokens((len(r.prompt), asked_depths(r, facts, max_loops)) for r in workload)


def packing(facts: ModeFacts, width: int, curves: Curves) -> Packing:
    """How a mode's launches are costed before its exit rule is paid for."""
    return Packing(curves, width, readout_every_loop=facts.readout_every_loop)


def _times(
    runs: Sequence[Repeat], facts: ModeFacts, workload: Sequence[RecordedWork], curves: Curves
) -> list[RunTimes] | str:
    """T(1) … T(10) of each run of one mode; or why there are none."""
    first = runs[0].trace
    requested = requested_tokens(workload, facts, first.max_loops)
    ideal = packing(facts, first.width, curves)
    # A scripted rule computes nothing, and its curves are the plain ones.
    actual = ideal.with_exit() if facts.rule_computes else ideal
    try:
        return [
            RunTimes(run.block, first.mode, effect_times(Side(run.trace, requested, ideal, actual)))
            for run in runs
        ]
    except NoWaterfallError as error:
        return str(error)


def _narrow_s(
    sides: Mapping[str, RunTrace],
    facts: Mapping[str, ModeFacts],
    workload: Sequence[RecordedWork],
    curves: Curves,
) -> dict[str, float] | None:
    """T(2) of both sides at the width of the narrower one; None where they are equally wide."""
    widths = {trace.width for trace in sides.values()}
    if len(widths) == 1:
        return None
    try:
        return {
            mode: packing(facts[mode], min(widths), curves)
            .ideal_s(requested_tokens(workload, facts[mode], trace.max_loops))
            .total
            for mode, trace in sides.items()
        }
    except ValueError:
        return None  # curves that do not reach so far; the record without rows says so


def _record(
    label: str,
    mode: list[RunTimes] | str,
    static: list[RunTimes] | str,
    level: float,
    narrow_s: Mapping[str, float] | None,
) -> Waterfall:
    if isinstance(mode, str) or isinstance(static, str):
        return Waterfall(reason=mode if isinstance(mode, str) else str(static))
    both = [*static, *mode]
    steps = waterfall(both, label, STATIC, level, narrow_s)
    if not steps:
        return Waterfall(reason=f"{label}: no whole block of it and static was timed")
    errors = {
        name: error
        for name in (STATIC, label)
        if (error := curve_error(both, name, level)) is not None
    }
    return Waterfall(
        rows=[_row(step) for step in steps],
        curve_error={name: IntervalRecord.of(error) for name, error in errors.items()},
        notes=[*_curve_notes(steps, errors), *_drain_notes(label, steps)],
    )


def _row(step: Step) -> WaterfallRow:
    return WaterfallRow(
        effect=step.effect,
        speedup=IntervalRecord.of(step.speedup),
        factor=IntervalRecord.of(step.factor),
        over_t=step.over_t,
        mode_t=step.mode_t,
    )


def _curve_notes(steps: Sequence[Step], errors: dict[str, Interval]) -> Iterator[str]:
    """What both sides miss the curves by alike leaves every row as it is; the rest does not."""
    factor = next(step.factor for step in steps if step.effect == "stage_curves")
    sizes = ", ".join(f"{name} {error.estimate:+.1%}" for name, error in errors.items())
    if abs(factor.estimate - 1) <= CURVE_LIMIT:
        if any(abs(error.estimate) > CURVE_LIMIT for error in errors.values()):
            yield (
                f"launches measured in place differ from the stage curves on both sides alike "
                f"({sizes}): the rows are ratios, which that leaves as they are"
            )
    elif 1.0 in factor:
        yield (
            f"the stage curves miss one side's launches by over {CURVE_LIMIT:.0%} more than the "
            f"other's ({sizes}), but no further than the blocks differ among themselves"
        )
    else:
        yield (
            f"the curves do not describe this run: they miss one side's launches by over "
            f"{CURVE_LIMIT:.0%} more than the other's ({sizes}); read the rows before stage_curves "
            "with care"
        )


def _drain_notes(label: str, steps: Sequence[Step]) -> Iterator[str]:
    by_effect = {step.effect: step for step in steps}
    drained, on_curves = by_effect["fill_and_drain"], by_effect["small_boundary_launches"]
    if math.isclose(drained.mode_t, on_curves.mode_t, rel_tol=1e-12):
        yield (
            f"{label} never had as many requests runnable as its cap, so all its launches belong "
            "to fill and drain"
        )

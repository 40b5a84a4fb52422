"""The waterfall of every timed mode of the looped model over ``static``.

Made from raw records and stage curves alone, so that it can be made again without the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cdbench.bench.repeats import Repeat
from cdbench.metrics.curves import Curves
from cdbench.metrics.ideal import LaterTokens, Packing, later_tokens
from cdbench.metrics.waterfall import (
    CURVE_LIMIT,
    ON_PASSES,
    NoWaterfallError,
    RunTimes,
    RunWork,
    Side,
    Step,
    curve_error,
    effect_times,
    one_by_one,
    waterfall,
)
from cdbench.schema import IntervalRecord, Waterfall, WaterfallRow
from cdbench.schema.repeats import ModeFacts
from cdbench.schema.workload import RecordedWork
from cdbench.stats.blocks import LEVEL
from cdbench.stats.interval import Interval
from cdbench.stats.resampling import moved

STATIC = "static"


@dataclass(frozen=True)
class Redrawn:
    """Curves as other passes over the stages might have given them, and how many there were."""

    curves: Sequence[Curves] = ()
    passes: int = 0


NOTHING_REDRAWN = Redrawn()


def waterfalls_of(
    runs: Sequence[Repeat],
    facts: Mapping[str, ModeFacts],
    workload: Sequence[RecordedWork],
    curves: Curves,
    level: float = LEVEL,
    redrawn: Redrawn = NOTHING_REDRAWN,
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
    found = {
        label: _Mode.of(own, facts[label], workload, curves, redrawn)
        for label, own in by_mode.items()
    }
    return {
        label: _record(label, mode, found[STATIC], level, curves, redrawn)
        for label, mode in found.items()
        if label != STATIC
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


@dataclass(frozen=True)
class _Mode:
    """T(1) … T(10) of each timed run of one mode; ``reason`` says why there are none.

    ``drawn`` are those of the first run on each set of redrawn curves: runs of a mode make nearly
    the same launches, so one says how far the passes matter. Empty where one does not reach them.
    """

    facts: ModeFacts
    width: int
    requested: LaterTokens
    runs: tuple[RunTimes, ...] = ()
    drawn: tuple[RunTimes, ...] = ()
    reason: str | None = None

    @staticmethod
    def of(
        runs: Sequence[Repeat],
        facts: ModeFacts,
        workload: Sequence[RecordedWork],
        curves: Curves,
        redrawn: Redrawn,
    ) -> _Mode:
        first = runs[0].trace
        requested = requested_tokens(workload, facts, first.max_loops)
        ideal = packing(facts, first.width, curves)
        # A scripted rule computes nothing, and its curves are the plain ones.
        actual = ideal.with_exit() if facts.rule_computes else ideal
        mode = _Mode(facts, first.width, requested)
        try:
            sides = [Side(RunWork.of(run.trace), requested, ideal, actual) for run in runs]
            times = [
                RunTimes(run.block, first.mode, effect_times(side))
                for run, side in zip(runs, sides, strict=True)
            ]
        except NoWaterfallError as error:
            return replace(mode, reason=str(error))
        try:
            drawn = [replace(times[0], times=effect_times(sides[0].on(c))) for c in redrawn.curves]
        except NoWaterfallError:
            drawn = []
        return replace(mode, runs=tuple(times), drawn=tuple(drawn))

    def narrow_s(self, width: int, curves: Curves) -> float:
        """T(2) with launches of up to ``width`` rows. ValueError where the curves end before."""
        return packing(self.facts, width, curves).ideal_s(self.requested).total


def _narrow_s(label: str, mode: _Mode, static: _Mode, curves: Curves) -> dict[str, float] | None:
    """T(2) of both sides at the width of the narrower one; None where they are equally wide."""
    if mode.width == static.width:
        return None
    width = min(mode.width, static.width)
    return {STATIC: static.narrow_s(width, curves), label: mode.narrow_s(width, curves)}


def _record(
    label: str, mode: _Mode, static: _Mode, level: float, curves: Curves, redrawn: Redrawn
) -> Waterfall:
    reason = mode.reason or static.reason
    if reason is not None:
        return Waterfall(reason=reason)
    both = [*static.runs, *mode.runs]
    narrow_s = _narrow_s(label, mode, static, curves)
    steps = waterfall(both, label, STATIC, level, narrow_s)
    if not steps:
        return Waterfall(reason=f"{label}: no whole block of it and static was timed")
    errors = {
        name: error
        for name in (STATIC, label)
        if (error := curve_error(both, name, level)) is not None
    }
    base = one_by_one(mode.runs[0], static.runs[0], narrow_s)
    drawn = [
        one_by_one(own, over, _narrow_s(label, mode, static, other))
        for own, over, other in zip(mode.drawn, static.drawn, redrawn.curves, strict=False)
    ]
    spreads = _over_passes(steps, base, drawn, redrawn.passes, level)
    return Waterfall(
        rows=[_row(step, spreads.get(step.effect)) for step in steps],
        curve_error={name: IntervalRecord.of(error) for name, error in errors.items()},
        notes=[*_curve_notes(steps, errors, spreads), *_drain_notes(label, steps)],
    )


def _over_passes(
    steps: Sequence[Step],
    base: Mapping[str, float],
    drawn: Sequence[Mapping[str, float]],
    passes: int,
    level: float,
) -> dict[str, Interval]:
    """How other passes would move the factor of each effect that depends on them.

    ``base`` and ``drawn``: factors of the first runs on the curves and on redrawn ones. Empty where
    nothing was drawn.
    """
    if not drawn:
        return {}
    return {
        step.effect: moved(
            step.factor.estimate,
            base[step.effect],
            [factors[step.effect] for factors in drawn],
            passes,
            level,
        )
        for step in steps
        if step.effect in ON_PASSES
    }


def _row(step: Step, spread: Interval | None) -> WaterfallRow:
    return WaterfallRow(
        effect=step.effect,
        speedup=IntervalRecord.of(step.speedup),
        factor=IntervalRecord.of(step.factor),
        over_passes=None if spread is None else IntervalRecord.of(spread),
        over_t=step.over_t,
        mode_t=step.mode_t,
    )


def _curve_notes(
    steps: Sequence[Step], errors: Mapping[str, Interval], spreads: Mapping[str, Interval]
) -> Iterator[str]:
    """What both sides miss the curves by alike leaves every row as it is; the rest does not."""
    spread = spreads.get("stage_curves")
    differ = "the blocks" if spread is None else "blocks and passes"
    factor = next(step.factor for step in steps if step.effect == "stage_curves").widened(spread)
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
            f"other's ({sizes}), but no further than {differ} differ among themselves"
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

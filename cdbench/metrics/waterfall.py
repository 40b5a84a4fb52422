"""The waterfall: from the loops saved to the measured speed-up, one effect a row.

Both sides, ``static`` and the mode, are costed by the same ten times T(1) … T(10), each of which
takes in one more effect than the one before. S_i = T_static(i) / T_mode(i), and the factor of a
row is S_i / S_{i−1}: so the factors multiply out to the last S_i, the measured end-to-end speed-up,
and a factor above 1 means that ``static`` suffers more from that effect.

T(1)      requested loops of the later tokens (a count: every loop is worth the same)
T(2)      t̂_prelude + requested loops·t̂_core + t̂_coda a token: ideal packing, own context
T(3)      the same with the exit rule's signal, test and readback at every loop, and settled slots
T(4)      executed loops in place of the requested ones
T(5)      launches made while fewer requests are runnable than the cap: at their own width
T(6)      all other core launches as well
T(7)      all other prelude and coda launches as well, so all decode launches are on their curves
T(8)      their times measured in place
T(9)      the decode wall: what the host does between launches as well
T(10)     the wall: prompts and first tokens as well

Between T(4) and T(7) launches go from ideal cost to the cost of their own width and context. A
launch records the positions that its longest row attends to, not each row's, so the ideal cost of
all tokens is handed out to a stage's launches in proportion to rows·t̂(context of the launch); what
is handed out adds up to T(4) exactly.

Where a mode held more requests than ``static`` in the same memory, its launches are wider, which
has nothing to do with depth. Then T(2) stands twice: first with the launches of both sides no wider
than those of the narrower, then with each side's own. The second row is ``WIDER_LAUNCHES``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cdbench.metrics.curves import Curves, CurveStage, FloatArray
from cdbench.metrics.ideal import LaterTokens, Packing, StageSums, later_tokens
from cdbench.metrics.rates import decode_wall_s, prefill_share
from cdbench.metrics.trace import LaunchTrace, RunTrace
from cdbench.stats.blocks import LEVEL, BlockRun, geometric_mean, log_ratios
from cdbench.stats.interval import Interval

EFFECTS = (
    "loops_saved",
    "boundary_stages",
    "exit_rule",
    "wasted_loops",
    "fill_and_drain",
    "empty_rows",
    "small_boundary_launches",
    "stage_curves",
    "host_time",
    "prefill_and_first_tokens",
)
"""The rows, in order. ``boundary_stages`` ends at the decode ``time_bound``, ``host_time`` at the
measured decode speed-up, the last row at the end-to-end one."""

BOUNDARY_STAGES = EFFECTS[1]
WIDER_LAUNCHES = "wider_launches"
"""The row after ``boundary_stages`` where the sides' widths differ; it ends at ``time_bound``."""

ON_CURVES = EFFECTS.index("small_boundary_launches")
IN_PLACE = EFFECTS.index("stage_curves")
ON_PASSES = (*EFFECTS[1 : IN_PLACE + 1], WIDER_LAUNCHES)
"""The rows that other passes over the stages would move."""

CURVE_LIMIT = 0.05
"""Stage curves further than this from the launches of a run do not describe it."""


class NoWaterfallError(ValueError):
    """Why a run has no waterfall, in one sentence."""


@dataclass(frozen=True)
class StageLaunches:
    """The decode launches of one stage of a run, as many of a kind as there were.

    Kinds ``[K]``: the ``rows`` of a launch and the ``contexts`` that its longest row attends to;
    ``rest`` were made with as many requests runnable as the cap, ``drain`` with fewer.
    """

    rows: FloatArray
    contexts: FloatArray
    rest: FloatArray
    drain: FloatArray
    measured_s: float

    @staticmethod
    def of(trace: RunTrace, stage: str) -> StageLaunches:
        """Those of a trace, without prompt rows that rode in them."""
        launches = trace.decode_launches(stage)
        kinds = np.array([(x.decode_rows, x.context) for x in launches], np.float64).reshape(-1, 2)
        drains = np.array([x.runnable < trace.max_residents for x in launches], np.bool_)
        kinds, place = np.unique(kinds, axis=0, return_inverse=True)
        place = place.reshape(-1)
        rest, drain = (
            np.bincount(place[chosen], minlength=len(kinds)).astype(np.float64)
            for chosen in (~drains, drains)
        )
        measured_s = sum(_decode_s(trace, x) for x in launches)
        return StageLaunches(kinds[:, 0], kinds[:, 1], rest, drain, measured_s)


@dataclass(frozen=True)
class RunWork:
    """What a timed run did: read from its trace once, to be costed on any curves."""

    mode: str
    executed: LaterTokens
    launches: Mapping[str, StageLaunches]
    decode_s: float
    wall_s: float

    @staticmethod
    def of(trace: RunTrace) -> RunWork:
        """Raises NoWaterfallError where nothing decodes or a mixed launch cannot be split."""
        executed = later_tokens((r.prompt_tokens, r.executed_depths) for r in trace.requests)
        if not executed.count:
            raise NoWaterfallError(f"{trace.mode}: no later token was decoded")
        decode_s = decode_wall_s(trace)
        if decode_s is None:
            raise NoWaterfallError(
                f"{trace.mode}: launches mix prompt and decode rows and cannot be split without "
                "the curves' prefill share"
            )
        launches = {stage: StageLaunches.of(trace, stage) for stage in StageSums._fields}
        return RunWork(trace.mode, executed, launches, decode_s, trace.wall_s)


@dataclass(frozen=True)
class Side:
    """One timed run as the waterfall reads it.

    ``requested`` are its later tokens at the depths that the rule asked for at lag 0. ``ideal``
    costs launches without the exit rule, ``actual`` as the mode ran them.
    """

    work: RunWork
    requested: LaterTokens
    ideal: Packing
    actual: Packing

    def on(self, curves: Curves) -> Side:
        """The same run, costed on other curves."""
        ideal, actual = (replace(x, curves=curves) for x in (self.ideal, self.actual))
        return replace(self, ideal=ideal, actual=actual)


@dataclass(frozen=True)
class RunTimes:
    """T(1) … T(10) of one timed run: loops, then seconds."""

    block: int
    mode: str
    times: tuple[float, ...]


@dataclass(frozen=True)
class Step:
    """One row. ``over_t`` and ``mode_t`` are T(i) of a run, on average."""

    effect: str
    speedup: Interval
    factor: Interval
    over_t: float
    mode_t: float


@dataclass(frozen=True)
class _Costed:
    """The decode launches of one stage on curves: three ways to cost them, in seconds."""

    ideal_rest_s: float
    curve_rest_s: float
    curve_drain_s: float


def effect_times(side: Side) -> tuple[float, ...]:
    """T(1) … T(10) of one run, in the order of ``EFFECTS``.

    Raises:
        NoWaterfallError: the curves do not reach a launch, or the launches did other work than the
        tokens listed.
    """
    work = side.work
    try:
        executed_s = side.actual.ideal_s(work.executed)
        costs_s = [
            float(side.requested.loops.sum()),
            side.ideal.ideal_s(side.requested).total,
            side.actual.ideal_s(side.requested).total,
            executed_s.total,
        ]
        prelude, core, coda = _launches(side, executed_s)
    except NoWaterfallError:
        raise
    except ValueError as error:  # what the curves say to a launch beyond them
        raise NoWaterfallError(f"{work.mode}: {error}") from None
    boundary = (prelude, coda)
    drain_s = sum(x.curve_drain_s for x in (prelude, core, coda))
    boundary_ideal_s = sum(x.ideal_rest_s for x in boundary)
    return (
        *costs_s,
        drain_s + core.ideal_rest_s + boundary_ideal_s,
        drain_s + core.curve_rest_s + boundary_ideal_s,
        drain_s + core.curve_rest_s + sum(x.curve_rest_s for x in boundary),
        sum(x.measured_s for x in work.launches.values()),
        work.decode_s,
        work.wall_s,
    )


def _launches(side: Side, ideal_s: StageSums) -> tuple[_Costed, _Costed, _Costed]:
    """Prelude, core and coda launches of a run, costed; ``ideal_s``: its tokens' ideal cost."""
    packing = side.actual
    rows = packing.rows(side.work.executed)
    return (
        _stage(side, "prelude", packing.prelude, rows.prelude, ideal_s.prelude),
        _stage(side, "core", packing.core, rows.core, ideal_s.core),
        _stage(side, "coda", packing.coda, rows.coda, ideal_s.coda),
    )


def _stage(side: Side, stage: str, curve: CurveStage, rows: float, ideal_s: float) -> _Costed:
    launches, packing = side.work.launches[stage], side.actual
    held = float((launches.rows * (launches.rest + launches.drain)).sum())
    if held != rows:
        raise NoWaterfallError(
            f"{side.work.mode}: {stage} launches held {held:g} decode rows, but the tokens listed "
            f"need {rows:g} (stop or cancelled tokens, or a launch that was not recorded)"
        )
    own_s_K = packing.curves.launches_s(curve, launches.rows, launches.contexts)
    row_s_K = packing.curves.ideal_row_s(curve, packing.width, launches.contexts)
    ideal_s_K = launches.rows * row_s_K
    rest_s, drain_s = (float((ideal_s_K * n).sum()) for n in (launches.rest, launches.drain))
    return _Costed(
        ideal_rest_s=ideal_s * rest_s / (rest_s + drain_s),
        curve_rest_s=float((own_s_K * launches.rest).sum()),
        curve_drain_s=float((own_s_K * launches.drain).sum()),
    )


def _decode_s(trace: RunTrace, launch: LaunchTrace) -> float:
    share = prefill_share(trace, launch)
    assert share is not None, "the decode wall exists"
    return (1 - share) * launch.duration_s


def waterfall(
    runs: Iterable[RunTimes],
    mode: str,
    over: str,
    level: float = LEVEL,
    narrow_s: Mapping[str, float] | None = None,
) -> tuple[Step, ...]:
    """The rows of a mode over another; empty without a whole block of both.

    A block's T(i) are sums over a mode's two runs. Factors and S_i are geometric means over blocks
    with t intervals of this ``level``, so that the estimates multiply out exactly. ``narrow_s``, by
    mode: T(2) of a run at the width of the narrower side, where the widths differ.
    """
    kept = [run for run in runs if run.mode in (mode, over)]
    steps: list[Step] = []
    before: Sequence[float] | None = None
    for effect, times in _columns(kept, narrow_s):
        walls = [BlockRun(run.block, run.mode, t) for run, t in zip(kept, times, strict=True)]
        logs = log_ratios(walls, mode, over)
        changes = logs if before is None else [a - b for a, b in zip(logs, before, strict=True)]
        speedup, factor = geometric_mean(logs, level), geometric_mean(changes, level)
        if speedup is None or factor is None:
            return ()
        over_t, mode_t = (_mean(walls, label) for label in (over, mode))
        steps.append(Step(effect, speedup, factor, over_t, mode_t))
        before = logs
    return tuple(steps)


def _columns(
    runs: Sequence[RunTimes], narrow_s: Mapping[str, float] | None
) -> Iterator[tuple[str, list[float]]]:
    """Each effect with its T(i) of every run."""
    for place, effect in enumerate(EFFECTS):
        times = [run.times[place] for run in runs]
        if effect != BOUNDARY_STAGES or narrow_s is None:
            yield effect, times
        else:
            yield effect, [narrow_s[run.mode] for run in runs]
            yield WIDER_LAUNCHES, times


def one_by_one(
    mode: RunTimes, over: RunTimes, narrow_s: Mapping[str, float] | None = None
) -> dict[str, float]:
    """The factor of each effect, from one run of each side; ``narrow_s`` as in ``waterfall``."""
    factors, before = {}, 1.0
    for effect, (over_t, mode_t) in _columns([over, mode], narrow_s):
        factors[effect] = over_t / mode_t / before
        before = over_t / mode_t
    return factors


def curve_error(runs: Iterable[RunTimes], mode: str, level: float = LEVEL) -> Interval | None:
    """Launch times measured in place / on the curves − 1, over all decode launches of a mode.

    A geometric mean over blocks like the rows, so that ``stage_curves``'s factor is the ratio of
    both sides'. None without a whole block.
    """
    own = [run for run in runs if run.mode == mode]
    in_place = [BlockRun(run.block, "in place", run.times[IN_PLACE]) for run in own]
    on_curves = [BlockRun(run.block, "on curves", run.times[ON_CURVES]) for run in own]
    ratio = geometric_mean(log_ratios([*in_place, *on_curves], "on curves", "in place"), level)
    return None if ratio is None else ratio.shifted(-1)


def _mean(walls: Iterable[BlockRun], mode: str) -> float:
    values = [wall.wall_s for wall in walls if wall.mode == mode]
    return sum(values) / len(values)

"""What each timed adaptive mode could gain over ``static`` at most, and the share it realised.

Made from raw records and stage curves alone, so that it can be made again without the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cdbench.bench.repeats import Repeat
from cdbench.bench.waterfall import (
    NOTHING_REDRAWN,
    STATIC,
    Redrawn,
    asked_depths,
    packing,
    requested_tokens,
)
from cdbench.metrics.bounds import (
    REALISED,
    Bound,
    Residents,
    Scope,
    Speedup,
    above_one,
    flop_bound,
    flop_bound_paper,
    no_share,
    realised,
    time_bound,
    unequal_words,
)
from cdbench.metrics.curves import Curves
from cdbench.metrics.ideal import LaterTokens, Packing, later_tokens, prefill_s
from cdbench.metrics.steady import SteadyRun, steady_run, steady_share
from cdbench.metrics.trace import RunTrace, StageCosts
from cdbench.metrics.work import ModelWork, decode_flops, prompt_flops, work_bound
from cdbench.schema import BoundRecord, Comparison, IntervalRecord
from cdbench.schema.repeats import ModeFacts
from cdbench.schema.workload import RecordedWork
from cdbench.stats.blocks import LEVEL
from cdbench.stats.interval import Interval
from cdbench.stats.resampling import moved, ratio_over_requests

TIME_BOUND_E2E = "time_bound_e2e"
TIME_BOUND_STEADY = "time_bound_steady"
PREFIXES = "prompt tokens found in the prefix cache are counted all the same"


def bounds_of(
    runs: Sequence[Repeat],
    facts: Mapping[str, ModeFacts],
    workload: Sequence[RecordedWork],
    comparisons: Sequence[Comparison],
    curves: Curves | None,
    prefill_tokens: int,
    level: float = LEVEL,
    redrawn: Redrawn = NOTHING_REDRAWN,
) -> dict[str, dict[str, BoundRecord]]:
    """Mode → name → bound, with the share realised where ``static`` was timed beside it.

    ``flop_bound``, ``flop_bound_paper``, ``work_bound``; with curves also ``time_bound`` (decode),
    ``time_bound_e2e`` and, where both modes had a steady window, ``time_bound_steady``. A bound
    that the curves do not reach has no value and says why. Where a mode held more requests than
    static, it has no share of the FLOP bounds. ``facts`` are of every timed mode,
    ``prefill_tokens`` the most prompt tokens of one launch. Time bounds say how they would move on
    ``redrawn`` curves.
    """
    first: dict[str, RunTrace] = {}
    for run in runs:
        if facts[run.trace.mode].adaptive:
            first.setdefault(run.trace.mode, run.trace)
    static = next((run.trace for run in runs if run.trace.mode == STATIC), None)
    modes = {mode: _Mode.of(trace, facts[mode], workload) for mode, trace in first.items()}
    found: dict[str, dict[str, BoundRecord]] = {}
    for label, mode in modes.items():
        if not mode.requested.count:
            continue
        held = _unequal(mode.trace, static)
        measured = {
            c.scope: Speedup(
                c.speedup.to_interval(), c.mode, c.over, Scope(c.scope), residents=held
            )
            for c in comparisons
            if (c.mode, c.over) == (label, STATIC) and c.speedup.estimate is not None
        }
        others = _over_requests(mode, facts[label], workload)
        found[label] = {
            key: _record(bound, measured.get(bound.scope.value)).model_copy(
                update={"over_requests": others.get(key)}
            )
            for key, bound in _flop_bounds(mode).items()
        }
        if curves is None:
            continue
        try:
            width = mode.trace.width if static is None else static.width
            timed = partial(_time_bounds, mode, width, prefill_tokens)
            drawn = [timed(other) for other in redrawn.curves]
            for key, bound in timed(curves).items():
                redone = [values[key].value for values in drawn]
                spread = _spread(bound, redone, redrawn.passes, level)
                found[label][key] = _record(bound, measured.get(bound.scope.value), spread)
            found[label] |= _steady(label, runs, facts, workload, curves, level, redrawn)
        except ValueError as error:
            found[label]["time_bound"] = BoundRecord(value=None, scope="decode", note=str(error))
    return found


def with_other_requests(
    comparisons: Sequence[Comparison], bounds: Mapping[str, Mapping[str, BoundRecord]]
) -> list[Comparison]:
    """Speed-ups over ``static``, with how they would move with other requests.

    The share realised of the bound in the same scope is held: what is drawn again is how many loops
    the requests leave to save.
    """
    held = {Scope.DECODE.value: "flop_bound", Scope.E2E.value: "work_bound"}
    found = []
    for comparison in comparisons:
        bound = bounds.get(comparison.mode, {}).get(held[comparison.scope])
        estimate = comparison.speedup.estimate
        if comparison.over == STATIC and bound is not None and bound.realised and estimate:
            moved = bound.over_requests
            if moved is not None and moved.estimate:
                scaled = moved.to_interval().scaled(estimate / moved.estimate)
                comparison = comparison.model_copy(
                    update={"over_requests": IntervalRecord.of(scaled)}
                )
        found.append(comparison)
    return found


@dataclass(frozen=True)
class _Mode:
    """An adaptive mode and its workload: later tokens as asked for, and as static runs them."""

    trace: RunTrace
    facts: ModeFacts
    prompts: list[int]
    requested: LaterTokens
    static: LaterTokens
    work: ModelWork

    @staticmethod
    def of(trace: RunTrace, facts: ModeFacts, workload: Sequence[RecordedWork]) -> _Mode:
        full = ((len(r.prompt), [trace.max_loops] * len(r.tokens)) for r in workload)
        return _Mode(
            trace,
            facts,
            [len(r.prompt) for r in workload],
            requested_tokens(workload, facts, trace.max_loops),
            later_tokens(full),
            ModelWork(**facts.work),
        )


class _Costs:
    """F_p, F_c and F_k of a model's work."""

    def __init__(self, work: ModelWork) -> None:
        self.prelude, self.core = work.prelude, work.core
        self.coda = work.coda_body + work.head


def _flop_bounds(mode: _Mode) -> dict[str, Bound]:
    costs: StageCosts = _Costs(mode.work)
    reading, requested = mode.facts.readout_every_loop, mode.requested
    # First tokens are read at R, whichever loop `first_token: select` took them from.
    firsts = len(mode.prompts)
    all_loops = float(requested.loops.sum()) + firsts * mode.trace.max_loops
    work = work_bound(mode.work, mode.prompts, mode.static, requested, readout_every_loop=reading)
    if mode.trace.kv is not None and mode.trace.kv.prefix_hit_rate is not None:
        work = replace(work, note=_joined(work.note, PREFIXES))
    return {
        "flop_bound": flop_bound(
            costs, mode.trace.max_loops, float(requested.loops.mean()), readout_every_loop=reading
        ),
        "flop_bound_paper": flop_bound_paper(
            costs,
            mode.trace.max_loops,
            all_loops / (requested.count + firsts),
            readout_every_loop=reading,
        ),
        "work_bound": work,
    }


def _over_requests(
    mode: _Mode, facts: ModeFacts, workload: Sequence[RecordedWork]
) -> dict[str, IntervalRecord]:
    """How the FLOP bounds would move with other requests; those without a later token are out."""
    loops, reading = mode.trace.max_loops, facts.readout_every_loop
    matrices = replace(mode.work, attention=0.0)
    costs: dict[str, tuple[list[float], list[float]]] = {
        "flop_bound": ([], []),
        "work_bound": ([], []),
    }
    for request in workload:
        if len(request.tokens) < 2:
            continue
        prompt = len(request.prompt)
        full = later_tokens([(prompt, [loops] * len(request.tokens))])
        own = later_tokens([(prompt, asked_depths(request, facts, loops))])
        for key, work, shared in (
            ("flop_bound", matrices, 0.0),
            ("work_bound", mode.work, prompt_flops(mode.work, [prompt])),
        ):
            costs[key][0].append(shared + decode_flops(work, full))
            costs[key][1].append(shared + decode_flops(work, own, readout_every_loop=reading))
    return {
        key: IntervalRecord.of(ratio_over_requests(full, own))
        for key, (full, own) in costs.items()
        if full
    }


def _time_bounds(
    mode: _Mode, static_width: int, prefill_tokens: int, curves: Curves
) -> dict[str, Bound]:
    """Free of the exit rule's cost: what a gate costs is a loss, and the waterfall shows it."""
    width = mode.trace.width
    static_s = Packing(curves, static_width).ideal_s(mode.static).total
    adaptive_s = packing(mode.facts, width, curves).ideal_s(mode.requested).total
    prompts_s = prefill_s(mode.prompts, curves, prefill_tokens)
    return {
        "time_bound": time_bound(static_s, adaptive_s),
        TIME_BOUND_E2E: time_bound(static_s, adaptive_s, prompts_s),
    }


def _steady(
    label: str,
    runs: Sequence[Repeat],
    facts: Mapping[str, ModeFacts],
    workload: Sequence[RecordedWork],
    curves: Curves,
    level: float,
    redrawn: Redrawn,
) -> dict[str, BoundRecord]:
    """The bound of the steady windows' tokens, where both modes had such windows."""
    windows = []
    for run in runs:
        trace = run.trace
        if trace.mode in (STATIC, label):
            own = facts[trace.mode]
            asked = {r.id: asked_depths(r, own, trace.max_loops) for r in workload}
            window = steady_run(run.block, trace, asked, packing(own, trace.width, curves))
            windows += [] if window is None else [window]
    share = steady_share(windows, label, STATIC, level)
    if share is None:
        return {}
    bound = Bound("time_bound", share.bound.estimate, Scope.DECODE)
    spread = _steady_spread(share.bound.estimate, windows, label, redrawn, level)
    realised_share = share.realised.widened(spread)
    note = (
        f"steady window: later tokens came {share.speedup.estimate:.3g} times as fast as static's"
    )
    record = BoundRecord(
        value=bound.value,
        scope=bound.scope.value,
        realised=IntervalRecord.of(realised_share),
        over_passes=None if spread is None else IntervalRecord.of(spread),
        note=_joined(note, above_one(bound, realised_share)),
    )
    return {TIME_BOUND_STEADY: record}


def _steady_spread(
    bound: float, windows: Sequence[SteadyRun], label: str, redrawn: Redrawn, level: float
) -> Interval | None:
    """How the bound of steady windows would move with other passes: one whole block says it.

    Windows of the other blocks hold nearly the same tokens.
    """
    for block in sorted({window.block for window in windows}):
        own = [window for window in windows if window.block == block]
        base = steady_share(own, label, STATIC)
        if base is None or not redrawn.curves:
            continue
        shares = [steady_share([w.on(c) for w in own], label, STATIC) for c in redrawn.curves]
        drawn = [share.bound.estimate for share in shares if share is not None]
        return moved(bound, base.bound.estimate, drawn, redrawn.passes, level)
    return None


def _spread(
    bound: Bound, drawn: Sequence[float | None], passes: int, level: float
) -> Interval | None:
    """How a time bound would move with other passes; None where nothing was drawn."""
    values = [value for value in drawn if value is not None]
    if not values or bound.value is None:
        return None
    return moved(bound.value, bound.value, values, passes, level)


def _unequal(trace: RunTrace, static: RunTrace | None) -> Residents | None:
    """The requests that static and a mode held, where they are not equally many."""
    if static is None or trace.max_residents == static.max_residents:
        return None
    return Residents(static.max_residents, trace.max_residents)


def _record(bound: Bound, measured: Speedup | None, spread: Interval | None = None) -> BoundRecord:
    """A bound as the result has it, with its share where it was measured in the same scope.

    ``spread``: how other passes over the stages would move it, and so its share as well.
    """
    share, note = None, bound.note
    if measured is not None and bound.name in REALISED:
        why = no_share(measured, bound)
        if why is None:
            share = realised(measured, bound).widened(spread)
            note = _joined(note, above_one(bound, share))
            if measured.residents is not None:
                note = _joined(note, unequal_words(measured))
        else:
            note = _joined(note, why)
    return BoundRecord(
        value=bound.value,
        scope=bound.scope.value,
        realised=None if share is None else IntervalRecord.of(share),
        over_passes=None if spread is None else IntervalRecord.of(spread),
        note=note,
    )


def _joined(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None

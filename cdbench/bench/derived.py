"""What follows from equal work: the same sections for a run that has just ended and a stored one.

Timed runs, the facts of their modes, the workload and the stage curves go in; nothing of the model
or of its engine does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from cdbench.bench.bounds import bounds_of, with_other_requests
from cdbench.bench.compared import compare, e2e_log_ratios
from cdbench.bench.exits import exit_distributions
from cdbench.bench.figures import block_record
from cdbench.bench.repeats import Answers, Repeat, StoredRepeat
from cdbench.bench.waterfall import NOTHING_REDRAWN, Redrawn, waterfalls_of
from cdbench.metrics.cost import break_even
from cdbench.metrics.curves import CurveStage, MeasuredCurves
from cdbench.metrics.launches import with_floors
from cdbench.metrics.riding import mixed, with_prefill_shares
from cdbench.metrics.work import ModelWork
from cdbench.schema import BlockRecord, BoundRecord, Comparison, Waterfall
from cdbench.schema.cost import BreakEvenRecord
from cdbench.schema.exits import ExitDistributions
from cdbench.schema.looks import LooksRecord
from cdbench.schema.repeats import ModeFacts
from cdbench.schema.stages import StageCurves, StagePassRecord
from cdbench.schema.workload import RecordedWork
from cdbench.stages.points import redrawn_curves
from cdbench.stats.blocks import LEVEL
from cdbench.stats.looks import looks_for


@dataclass(frozen=True)
class EqualWork:
    """Timed runs and all that their summaries are made from besides.

    ``facts`` are of every timed mode; ``prefill_tokens`` the most prompt tokens of one launch;
    ``stages`` None where no stage curves were measured; ``level`` is that of every interval;
    ``passes`` those over the stages that the run itself made for its curves.
    """

    runs: tuple[StoredRepeat, ...]
    facts: Mapping[str, ModeFacts]
    workload: Sequence[RecordedWork]
    prefill_tokens: int
    stages: StageCurves | None = None
    level: float = LEVEL
    passes: Sequence[StagePassRecord] = ()

    @classmethod
    def of(
        cls,
        runs: Sequence[Repeat],
        facts: Mapping[str, ModeFacts],
        workload: Sequence[RecordedWork],
        prefill_tokens: int,
        stages: StageCurves | None,
        level: float = LEVEL,
        passes: Sequence[StagePassRecord] = (),
    ) -> EqualWork:
        """With each trace completed by what the stage curves and their floors say of launches."""
        curves = stages.curves() if stages is not None else None
        completed = tuple(_completed(run, facts[run.trace.mode], stages, curves) for run in runs)
        return cls(completed, facts, workload, prefill_tokens, stages, level, passes)


@dataclass(frozen=True)
class EqualSections:
    """Sections of a ``Result``, by the names they have there."""

    blocks: list[BlockRecord]
    comparisons: list[Comparison]
    bounds: dict[str, dict[str, BoundRecord]]
    waterfall: dict[str, Waterfall] | None


def equal_sections(work: EqualWork) -> EqualSections:
    """Timed runs one by one, speed-ups, bounds with the share realised, and the waterfall."""
    comparisons = compare(work.runs, work.level)
    curves = work.stages.curves() if work.stages is not None else None
    redrawn = NOTHING_REDRAWN
    if curves is not None:
        redrawn = Redrawn(redrawn_curves(work.passes), len(work.passes))
    bounds = bounds_of(
        work.runs,
        work.facts,
        work.workload,
        comparisons,
        curves,
        work.prefill_tokens,
        work.level,
        redrawn,
    )
    return EqualSections(
        blocks=[block_record(run) for run in work.runs],
        comparisons=with_other_requests(comparisons, bounds),
        bounds=bounds,
        waterfall=(
            waterfalls_of(work.runs, work.facts, work.workload, curves, work.level, redrawn)
            if curves is not None and comparisons
            else None
        ),
    )


def looks_of(runs: Sequence[Repeat], blocks: int, interval: float | None) -> LooksRecord | None:
    """How looks at these timed runs ended, as ``repeats.blocks`` and ``repeats.interval`` ask.

    None where no interval was waited for, or too few blocks ran to have one.
    """
    if interval is None:
        return None
    looks, logs = looks_for(blocks, interval), e2e_log_ratios(runs, "cdb", "static")
    last = looks.after(logs) or looks.cut_short(logs)
    return None if last is None else LooksRecord.of(looks, last)


def break_evens(
    price_per_hour: float | None, comparisons: Sequence[Comparison]
) -> list[BreakEvenRecord]:
    """What the speed-ups of continuous depth batching are worth, where an hour has a price."""
    if price_per_hour is None:
        return []
    return [
        BreakEvenRecord.of(break_even(c.mode, c.over, price_per_hour, c.speedup.to_interval()))
        for c in comparisons
        if c.mode == "cdb" and c.scope == "e2e" and c.speedup.estimate is not None
    ]


def exits_of(
    passes: Mapping[str, Answers], runs: Sequence[Repeat], loops: Mapping[str, int]
) -> ExitDistributions | None:
    """Exit depths of tasks under the first adaptive mode: of its live pass, else of a timed run.

    ``loops``: R by mode.
    """
    for mode in [mode for mode in ("cdb", "lockstep") if mode in loops]:
        if mode in passes:
            return exit_distributions(passes[mode].results, loops[mode], f"{mode}, live pass")
        first = next((run.trace for run in runs if run.trace.mode == mode), None)
        if first is not None:
            return exit_distributions(first.requests, loops[mode], f"{mode}, replayed")
    return None


def _completed(
    run: Repeat, facts: ModeFacts, stages: StageCurves | None, curves: MeasuredCurves | None
) -> StoredRepeat:
    """A dense model runs other stages than those that were measured, and stays without."""
    trace = run.trace
    if stages is None or curves is None or facts.dense:
        return StoredRepeat(run.block, run.order, trace, facts)
    floors = stages.floors

    def floor_s(stage: str, rows: float, context: float) -> float:
        return floors.floor_s(cast(CurveStage, stage), rows, context)

    trace = with_floors(trace, floor_s)
    if mixed(trace):
        work, loops = ModelWork(**facts.work), stages.key.max_loops
        trace = with_prefill_shares(trace, curves, work, loops, facts.rule_computes)
    return StoredRepeat(run.block, run.order, trace, facts)

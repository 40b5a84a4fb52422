"""Timed runs made up by hand, as an engine would leave them: no model, no clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from cdbench.bench.equal import RecordedRequest
from cdbench.metrics.curves import CURVE_STAGES, CurveStage
from cdbench.metrics.trace import Arrivals, KvFigures, KvShape, RunTrace, Slo
from cdbench.metrics.work import ModelWork
from cdbench.models.base import StageCost
from cdbench.runtime.core import FinishReason, LaunchRecord, RequestResult, Stage
from cdbench.schema.repeats import ModeFacts
from cdbench.schema.stages import (
    StageCurves,
    StageFloors,
    StageKey,
    StagePassPoint,
    StagePassRecord,
)
from cdbench.stages.points import points_of
from cdbench.stats.blocks import palindrome

LOOPS = 4


@dataclass(frozen=True)
class ScriptedRun:
    """A ``TimedRun`` without an engine."""

    block: int
    order: int
    trace: RunTrace
    results: tuple[RequestResult, ...]


def scripted_run(
    mode: str, block: int = 0, order: int = 0, *, seed: int = 0, speed: float = 1.0
) -> ScriptedRun:
    """Three requests of a few tokens on two residents; one launch per loop and token.

    ``speed`` divides every time. Depths come from ``seed`` (all ``LOOPS`` under static).
    """
    draw = random.Random(f"{mode} {block} {order} {seed}")
    depths = random.Random(seed)
    now_s = 0.1 + draw.random()
    arrival_s = now_s
    launches: list[LaunchRecord] = []
    results = []

    def launch(stage: Stage, decode: int, prefill: int, loops: Sequence[int] | None) -> None:
        nonlocal now_s
        took_s = (0.001 + 0.002 * draw.random()) / speed
        rows = np.array(loops) if loops is not None else None
        context = 5 + len(launches)
        launches.append(LaunchRecord(stage, decode, prefill, rows, context, 2, now_s, took_s))
        now_s += took_s + 1e-4 / speed

    for index in range(3):
        launch(Stage.PRELUDE, 0, 7, None)
        launch(Stage.CORE, 0, 7, None)
        launch(Stage.CODA, 0, 1, None)
        executed, token_s = [LOOPS], [now_s]
        for _ in range(2 + index):
            depth = LOOPS if mode.startswith("static") else depths.randint(1, LOOPS)
            launch(Stage.PRELUDE, 1, 0, None)
            for loop in range(1, depth + 1):
                launch(Stage.CORE, 1, 0, [loop])
            launch(Stage.CODA, 1, 0, None)
            executed.append(depth)
            token_s.append(now_s)
        results.append(
            RequestResult(
                id=f"task\u2028/{index}",
                prompt_tokens=7,
                tokens=list(range(len(executed))),
                executed_depths=executed,
                requested_depths=executed,
                logprobs=[0.0] * len(executed),
                text=None,
                stop_depth=None,
                finish_reason=FinishReason.LENGTH,
                error=None,
                arrival_s=arrival_s,
                admitted_s=arrival_s,
                token_s=token_s,
                finish_s=now_s,
                task="even" if index % 2 == 0 else "odd",
                doc_id=index,
            )
        )
    trace = RunTrace(
        mode=mode,
        requests=results,
        launches=tuple(launches),
        wall_s=now_s - arrival_s,
        width=2,
        max_residents=2,
        max_loops=LOOPS,
        kv=KvFigures(4096, 1, KvShape(0, 2, 0, 2, 4, 4, LOOPS), preemptions=1, prefix_hit_rate=0.5),
        costs=StageCost(1.0, 10.0, 4.0),
        arrivals=Arrivals.CLOSED_LOOP,
        slo=Slo(ttft_s=1.0),
        price_per_hour=2.5,
        energy_j=12.5,
        peak_device_bytes=2**31,
    )
    return ScriptedRun(block, order, trace, tuple(results))


FACTS = {
    mode: ModeFacts(
        adaptive=mode == "cdb",
        dense=False,
        rule_computes=mode == "cdb",
        readout_every_loop=False,
        work=asdict(
            ModelWork(
                prelude=1.0,
                core=10.0,
                coda_body=0.0,
                head=4.0,
                prelude_layers=0,
                core_layers=2,
                coda_layers=0,
                attention=0.5,
                max_loops=LOOPS,
            )
        ),
    )
    for mode in ("static", "cdb")
}


def scripted_workload(seed: int = 0) -> list[RecordedRequest]:
    """What the runs of that seed were given."""
    return [
        RecordedRequest(
            id=r.id,
            task=r.task,
            doc_id=r.doc_id,
            prompt=tuple(range(r.prompt_tokens)),
            tokens=tuple(r.tokens),
            executed_depths=tuple(r.executed_depths),
            requested_depths=tuple(r.requested_depths),
        )
        for r in scripted_run("cdb", seed=seed).results
    ]


def scripted_passes(count: int = 3) -> list[StagePassRecord]:
    """Passes over stages that fit the scripted launches roughly: a row costs 1 ms and more."""
    stages: tuple[CurveStage, ...] = CURVE_STAGES
    return [
        StagePassRecord(
            number=number,
            points=[
                StagePassPoint(
                    stage=stage,
                    rows=rows,
                    context=context,
                    mean_s=(0.001 + 0.0002 * rows + 1e-6 * context + 0.0001 * place)
                    * (1.0, 0.9, 1.2)[number % 3],
                    launches=4,
                )
                for place, stage in enumerate(stages)
                for rows in (1, 2)
                for context in (1, 200)
            ],
        )
        for number in range(count)
    ]


def scripted_stages(passes: Sequence[StagePassRecord] | None = None) -> StageCurves:
    """The curves of these passes (default: three scripted ones), with floors."""
    passes = passes or scripted_passes()
    work = {
        "weight_bytes": 1e6,
        "row_bytes": 1e3,
        "position_bytes": 64.0,
        "row_flops": 1e6,
        "position_flops": 1e2,
    }
    floors = StageFloors.model_validate(
        {
            "bandwidth_bytes_per_s": 1e10,
            "matmul_flops_per_s": 1e11,
            "work": {stage: work for stage in ("prelude", "core", "coda", "prefill")},
        }
    )
    return StageCurves.model_validate(
        {
            "key": {
                **dict.fromkeys(StageKey.model_fields, "x"),
                "threads": 1,
                "compiled": False,
                "graphs": False,
                "max_loops": LOOPS,
            },
            "model": "scripted",
            "contexts": [1, 200],
            "rows": "equal",
            "passes": len(passes),
            "points": points_of(passes, floors),
            "floors": floors,
            "measured_utc": "2026-01-01T00:00:00+00:00",
            "command": ["cdbench", "run"],
        }
    )


def scripted_blocks(modes: Sequence[str], blocks: int, *, seed: int = 0) -> list[ScriptedRun]:
    """Palindromic blocks of every mode; ``cdb`` runs at twice the speed of the others."""
    return [
        scripted_run(mode, block, order, seed=seed, speed=2.0 if mode == "cdb" else 1.0)
        for block in range(blocks)
        for order, mode in enumerate(palindrome(list(modes), rotate=block))
    ]

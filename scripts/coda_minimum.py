"""Is ``coda_min_rows: auto`` as good as the best fixed minimum? The schedule, run on stage curves.

The schedule itself is driven, with residents that always have a next token and a clock that moves
by what each launch takes on given curves. No model runs, so thousands of tokens take a moment and
nothing is noise: every minimum serves the very same depths. Curves have three shapes: flat (a
launch takes as long whatever its rows: memory-bound), linear (in proportion to its rows:
compute-bound) and between; boundary stages weigh as in Ouro (0.08 of a loop) and Huginn (1.18).

    python scripts/coda_minimum.py > results/reference/coda-minimum/simulated.json

It prints one JSON document: a line per cell with milliseconds a token for fixed minimums of 1, W/8,
W/4 and W/2, for auto, and how much worse auto is than the best of the fixed ones. Simulated times
say nothing of a machine: ``configs/paper/coda-minimum.cpu.yaml`` measures the real thing.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from cdbench.metrics.curves import CurvePoint, CurveStage, MeasuredCurves
from cdbench.runtime.schedules.base import Schedule, Verdict, Work
from cdbench.runtime.schedules.cdb import ContinuousDepth
from cdbench.runtime.schedules.coda_minimum import AutoMinimum

LOOP_S = 1e-3
"""A core launch of one row."""
CONTEXT = 64
OURO, HUGINN = 0.08, 1.18
"""(F_p + F_k) / F_c: what boundary stages weigh against one loop."""
PRELUDE_PART = 0.25
"""Of the boundary stages' weight."""

Growth = Callable[[float], float]
SHAPES: dict[str, Growth] = {
    "flat": lambda rows: 1.0,
    "between": lambda rows: 1.0 if rows <= 16 else 1.0 + (rows - 16) / 16 * 0.6,
    "linear": lambda rows: rows,
}
"""How many times as long a launch takes as one of a single row."""


def curves_of(shape: Growth, boundary: float, width: int) -> MeasuredCurves:
    """Stage curves of one shape; prelude and coda together weigh ``boundary`` loops."""
    weights: dict[CurveStage, float] = {
        "core": 1.0,
        "coda": boundary * (1 - PRELUDE_PART),
        "prelude": boundary * PRELUDE_PART,
    }
    sizes = sorted({*(1 << k for k in range(width.bit_length())), 3 * width // 4 or 1, width})
    return MeasuredCurves(
        CurvePoint(stage, rows, CONTEXT, LOOP_S * weight * shape(rows))
        for stage, weight in weights.items()
        for rows in sizes
        if rows <= width
    )


def depth_draws(kind: str, max_loops: int) -> Callable[[random.Random], int]:
    """Depths of later tokens, as ``workload.depths`` draws them."""
    if kind == "uniform":
        return lambda draw: draw.randint(1, max_loops)
    if kind == "bimodal":
        return lambda draw: draw.choice((1, max_loops))
    if kind == "early":
        return lambda draw: min(max_loops, 1 + int(draw.expovariate(1.0)))
    return lambda draw: max(1, max_loops - int(draw.expovariate(1.0)))


@dataclass(frozen=True)
class Simulated:
    """What serving took: seconds a token in the steady part, and rows of coda launches."""

    seconds_per_token: float
    coda_width: float


def simulate(
    schedule: Schedule,
    curves: MeasuredCurves,
    residents: int,
    draw_depth: Callable[[random.Random], int],
    tokens: int,
    seed: int = 0,
) -> Simulated:
    """Drive a schedule until so many tokens are done; the first tenth of them is not counted.

    Each resident's depths are drawn from a stream of its own, so every schedule serves the same.
    """
    streams = [random.Random(f"{seed}/{r}") for r in range(residents)]
    depth = np.array([draw_depth(stream) for stream in streams])
    loop = np.zeros(residents, np.int64)
    widest = curves.widest("core")
    rows = np.arange(1, widest + 1)
    stages: tuple[CurveStage, ...] = ("core", "coda", "prelude")
    taken = {s: curves.launches_s(s, rows, np.full(widest, CONTEXT)).tolist() for s in stages}
    schedule.enter(np.arange(residents))
    now_s, done, from_s, from_done, codas, coda_rows = 0.0, 0, 0.0, 0, 0, 0
    while done < tokens:
        launch = schedule.next_launch(prefill_offered=False)
        assert launch is not None, "tokens are in flight"
        who = launch.residents
        if launch.work is Work.CORE:
            loop[who] += 1
            now_s += taken["core"][who.size - 1]
            exits = loop[who] >= depth[who]
            schedule.signals(launch, np.where(exits, Verdict.EXIT, Verdict.LOOP))
            continue
        now_s += taken["coda"][who.size - 1] + taken["prelude"][who.size - 1]
        schedule.signals(launch, np.full(who.size, Verdict.DONE))
        loop[who] = 0
        for r in who.tolist():
            depth[r] = draw_depth(streams[r])
        schedule.enter(who)
        done += who.size
        codas, coda_rows = codas + 1, coda_rows + who.size
        if not from_done and done >= tokens // 10:
            from_s, from_done = now_s, done
    return Simulated((now_s - from_s) / (done - from_done), coda_rows / codas)


def automatic(curves: MeasuredCurves, width: int, residents: int, max_loops: int) -> Schedule:
    """Continuous depth batching with the minimum chosen from the curves."""
    auto = AutoMinimum(width, residents, max_loops)
    auto.use(curves)
    return ContinuousDepth(width, auto=auto)


@dataclass(frozen=True)
class Cell:
    """One comparison: milliseconds a token by fixed minimum, and of auto."""

    shape: str
    boundary: float
    max_loops: int
    depths: str
    width: int
    residents: int
    fixed_ms: dict[int, float]
    auto_ms: float
    auto_coda_width: float

    @property
    def excess(self) -> float:
        """How much worse auto is than the best fixed minimum; below 0 it is better."""
        return self.auto_ms / min(self.fixed_ms.values()) - 1


def compare(
    shape: str,
    boundary: float,
    max_loops: int,
    depths: str,
    width: int,
    residents: int,
    tokens_per_row: int = 300,
) -> Cell:
    """Fixed minimums of 1, W/8, W/4 and W/2 against auto on the same depths."""
    curves, draw = curves_of(SHAPES[shape], boundary, width), depth_draws(depths, max_loops)
    tokens = tokens_per_row * width
    fixed_ms = {}
    for minimum in sorted({max(1, width // part) for part in (width, 8, 4, 2)}):
        schedule = ContinuousDepth(width, minimum)
        found = simulate(schedule, curves, residents, draw, tokens)
        fixed_ms[minimum] = found.seconds_per_token * 1e3
    auto = simulate(automatic(curves, width, residents, max_loops), curves, residents, draw, tokens)
    return Cell(
        shape,
        boundary,
        max_loops,
        depths,
        width,
        residents,
        fixed_ms,
        auto.seconds_per_token * 1e3,
        auto.coda_width,
    )


def main(arguments: Sequence[str]) -> None:
    """Compare over the whole grid and print the document."""
    widths = [int(argument) for argument in arguments] or [8, 16, 32, 64, 128]
    cells = [
        compare(shape, boundary, loops, depths, width, residents)
        for shape in SHAPES
        for boundary, loops in ((OURO, 4), (HUGINN, 8), (HUGINN, 32))
        for depths in ("uniform", "bimodal", "early", "late")
        for width in widths
        for residents in (width, 3 * width // 2)
    ]
    worst = max(cells, key=lambda cell: cell.excess)
    print(
        json.dumps(
            {
                "what": "simulated schedule on given stage curves; no machine was timed",
                "cells": [asdict(cell) | {"excess": round(cell.excess, 4)} for cell in cells],
                "worst_excess": round(worst.excess, 4),
            },
            indent=1,
        )
    )
    print(f"worst: {worst.excess:+.2%} ({worst})", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])

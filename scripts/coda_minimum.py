"""Is ``coda_min_rows: auto`` as good as the best fixed minimum? The schedule, run on stage curves.

The schedule itself is driven, with residents that always have a next token and a clock that moves
by what each launch takes on given curves. No model runs, so thousands of tokens take a moment and
nothing is noise: every minimum serves the very same depths. Curves have three shapes: flat (a
launch takes as long whatever its rows: memory-bound), linear (in proportion to its rows:
compute-bound) and between; boundary stages weigh as in Ouro (0.08 of a loop) and Huginn (1.18).

    python scripts/coda_minimum.py > results/reference/coda-minimum/simulated.json
    python scripts/coda_minimum.py --on results/reference/performance/bench/*.json \\
        > results/reference/coda-minimum/measured-curves.json

It prints one JSON document: a line per cell with milliseconds a token for fixed minimums of 1, W/8,
W/4 and W/2, for auto, and how much worse auto is than the best of the fixed ones. With ``--on`` the
curves are those that runs measured, at their own width and R, with uniform depths and W, 1.5 W or
the run's own residents, and every minimum from 1 to W stands beside auto. Simulated times say
nothing of a machine: ``configs/paper/coda-minimum.cpu.yaml`` measures the real thing.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cdbench.errors import UsageError
from cdbench.metrics.curves import CurvePoint, CurveStage, MeasuredCurves
from cdbench.runtime.exit_rule import Needs
from cdbench.runtime.exits import RULES
from cdbench.runtime.schedules.base import Schedule, Verdict, Work
from cdbench.runtime.schedules.cdb import ContinuousDepth
from cdbench.runtime.schedules.coda_minimum import AutoMinimum
from cdbench.schema.files import read_result
from cdbench.schema.stages import StageCurves

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
    context: float = CONTEXT,
) -> Simulated:
    """Drive a schedule until so many tokens are done; the first tenth of them is not counted.

    Launches take what the curves with the exit rule say at ``context`` positions. Each resident's
    depths are drawn from a stream of its own, so every schedule serves the same.
    """
    streams = [random.Random(f"{seed}/{r}") for r in range(residents)]
    depth = np.array([draw_depth(stream) for stream in streams])
    loop = np.zeros(residents, np.int64)
    widest = curves.widest("core")
    rows, at = np.arange(1, widest + 1), np.full(widest, context)
    core_s = curves.launches_s("core_with_exit", rows, at).tolist()
    boundary_s = curves.launches_s("coda_with_exit", rows, at)
    boundary_s = (boundary_s + curves.launches_s("prelude_with_exit", rows, at)).tolist()
    schedule.enter(np.arange(residents))
    now_s, done, from_s, from_done, codas, coda_rows = 0.0, 0, 0.0, 0, 0, 0
    while done < tokens:
        launch = schedule.next_launch(prefill_offered=False)
        assert launch is not None, "tokens are in flight"
        who = launch.residents
        if launch.work is Work.CORE:
            loop[who] += 1
            now_s += core_s[who.size - 1]
            exits = loop[who] >= depth[who]
            schedule.signals(launch, np.where(exits, Verdict.EXIT, Verdict.LOOP))
            continue
        now_s += boundary_s[who.size - 1]
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

    def record(self) -> dict[str, object]:
        """As the document has it."""
        return asdict(self) | {"excess": round(self.excess, 4)}


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
    curves = curves_of(SHAPES[shape], boundary, width)
    minimums = sorted({max(1, width // part) for part in (width, 8, 4, 2)})
    served = Served(curves, CONTEXT, max_loops, depths, residents, tokens_per_row * width)
    return against_auto(shape, boundary, served, minimums)


def compare_on(file: Path, tokens_per_row: int = 300) -> list[Cell]:
    """Every minimum against auto on the curves of a run's result, at their width.

    With as many residents as the run had, as the width, and half as many again. UsageError: it is
    no result. ValueError: it has no stage curves, or those of a rule that reads out at every loop,
    which sends every loop through the coda.
    """
    result = read_result(file)
    if result.stages is None:
        raise ValueError(f"{file}: has no stage curves")
    stages = StageCurves.model_validate(result.stages)
    if RULES[stages.key.exit_rule].needs is Needs.LOGITS:
        raise ValueError(f"{file}: its rule {stages.key.exit_rule} reads out at every loop")
    curves, loops = stages.curves(), stages.key.max_loops
    width, context = curves.widest("core"), curves.middle_context("core")
    own = result.config["engine"]["max_residents"]  # type: ignore[index, call-overload]
    assert isinstance(own, int)
    core_s, *boundary_s = (
        curves.launch_s(stage, width, context) for stage in ("core", "coda", "prelude")
    )
    boundary = round(sum(boundary_s) / core_s, 3)
    return [
        against_auto(
            file.stem,
            boundary,
            Served(curves, context, loops, "uniform", held, tokens_per_row * width),
            range(1, width + 1),
        )
        for held in sorted({width, 3 * width // 2, own})
    ]


@dataclass(frozen=True)
class Served:
    """What every minimum of a cell serves, and on which curves."""

    curves: MeasuredCurves
    context: float
    max_loops: int
    depths: str
    residents: int
    tokens: int

    @property
    def width(self) -> int:
        """The most rows of a launch: those measured."""
        return self.curves.widest("core")

    def by(self, schedule: Schedule) -> Simulated:
        """What a schedule makes of it."""
        draw = depth_draws(self.depths, self.max_loops)
        return simulate(
            schedule, self.curves, self.residents, draw, self.tokens, context=self.context
        )


def against_auto(shape: str, boundary: float, served: Served, minimums: Iterable[int]) -> Cell:
    """Fixed minimums and auto on the very same depths."""
    width, held, loops = served.width, served.residents, served.max_loops
    auto = served.by(automatic(served.curves, width, held, loops))
    return Cell(
        shape,
        boundary,
        loops,
        served.depths,
        width,
        held,
        {k: served.by(ContinuousDepth(width, k)).seconds_per_token * 1e3 for k in minimums},
        auto.seconds_per_token * 1e3,
        auto.coda_width,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Compare over the whole grid, or on measured curves, and print the document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("widths", type=int, nargs="*", help="of launches, on given curves")
    parser.add_argument("--on", type=Path, nargs="+", metavar="RESULT", help="results with curves")
    args = parser.parse_args(argv)
    if args.on and args.widths:
        parser.error("measured curves have a width of their own: drop the widths")
    if args.on:
        try:
            cells = [cell for file in args.on for cell in compare_on(file)]
        except (UsageError, ValueError) as error:
            parser.error(str(error))
        publish("simulated schedule on measured stage curves", cells)
        return
    widths = args.widths or [8, 16, 32, 64, 128]
    cells = [
        compare(shape, boundary, loops, depths, width, residents)
        for shape in SHAPES
        for boundary, loops in ((OURO, 4), (HUGINN, 8), (HUGINN, 32))
        for depths in ("uniform", "bimodal", "early", "late")
        for width in widths
        for residents in (width, 3 * width // 2)
    ]
    publish("simulated schedule on given stage curves; no machine was timed", cells)


def publish(what: str, cells: Sequence[Cell]) -> None:
    """Print the document, and the worst cell for a reader."""
    worst = max(cells, key=lambda cell: cell.excess)
    document = {
        "what": what,
        "cells": [cell.record() for cell in cells],
        "worst_excess": round(worst.excess, 4),
    }
    print(json.dumps(document, indent=1))
    print(f"worst: {worst.excess:+.2%} ({worst})", file=sys.stderr)


if __name__ == "__main__":
    main()

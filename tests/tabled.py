"""Runs and sweeps made up by hand for the tests of tables: every figure is written out here."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from cdbench.schema import (
    Accuracy,
    BlockRecord,
    BoundRecord,
    Comparison,
    ExitSettings,
    IntervalRecord,
    ModeAccuracy,
    ModelFacts,
    ModeResult,
    PairedRecord,
    Result,
    TaskAccuracy,
    Validity,
    Waterfall,
    WaterfallRow,
    Workload,
    write_result,
)
from cdbench.schema.files import write_document
from cdbench.schema.sweep import CellRound, SweepCell, SweepDocument
from cdbench.stats.blocks import BlockRun, geometric_mean, log_ratios, mean
from cdbench.stats.paired import compare_paired
from tests.comparing import MANIFEST as HAND_MADE

MANIFEST = HAND_MADE.model_copy(
    update={
        "cpu": HAND_MADE.cpu.model_copy(update={"model": "Some CPU 2.0GHz"}),
        "ram_bytes": None,
        "torch_threads": 1,
    }
)
MODEL = ModelFacts(
    name="demo-ouro",
    model_type="ouro",
    parameters=1_845_505,
    max_loops=4,
    cost_ratio=0.02,
    kv_bytes_per_token=12_288,
    kv_layout="per-loop",
    dtype="float32",
    device="cpu",
)
CONFIG: dict[str, Any] = {
    "model": "demo-ouro",
    "exit": {"rule": "cdf", "threshold": 0.5, "min_loops": 1, "lag": 0, "max_loops": None},
    "engine": {"width": 16, "max_residents": 16, "coda_min_rows": 1},
    "kv": {"layout": "per-loop"},
    "workload": {"source": "demo", "requests": 32, "arrivals": "all-at-once"},
    "repeats": {"blocks": 6},
    "slo": {"ttft_s": 1.0, "tpot_s": 0.05, "e2e_s": None},
    "out": None,
}
INVALID = Validity(
    verdict="INVALID", reasons=["other processes took 44% of the cores", "no 6 blocks"]
)


def interval(estimate: float, half: float | None = None, n: int = 6) -> IntervalRecord:
    """An estimate with an interval of that half-width around it, or without one."""
    if half is None:
        return IntervalRecord(estimate=estimate, n=n)
    return IntervalRecord(estimate=estimate, low=estimate - half, high=estimate + half, n=n)


def timed_run(**changes: Any) -> Result:
    """Six blocks of static, lockstep, cdb and a dense model, all requests there at once.

    End to end cdb is 1.80x [1.75, 1.85] as fast as static and lockstep 1.30x [1.24, 1.37]; of the
    decode ``flop_bound`` of 2.50x cdb realised 80 % and lockstep 60 %.
    """
    speeds = {"static": 1000.0, "lockstep": 1300.0, "cdb": 1800.0, "dense:small": 1500.0}
    fields: dict[str, Any] = {
        "status": "complete",
        "validity": Validity(verdict="VALID"),
        "manifest": MANIFEST,
        "config": CONFIG,
        "model": MODEL,
        "workload": Workload(
            hash="ab" * 32,
            source="demo",
            requests=32,
            prompt_tokens=640,
            output_tokens=512,
            arrivals="all-at-once",
            replayed=["tokens", "lengths", "depths"],
        ),
        "modes": {mode: _timed_mode(mode, rate) for mode, rate in speeds.items()},
        **_timed(speeds, SPREAD, decode={"lockstep": 1.5, "cdb": 2.0, "dense:small": 1.8}),
        "bounds": {"lockstep": _bounds(0.6), "cdb": _bounds(0.8)},
        "waterfall": {"cdb": _waterfall()},
    }
    return Result(**{**fields, **changes})


def answered_run(**changes: Any) -> Result:
    """A live pass of two tasks: static and cdb right on 95 and 94 of 100, static@2 on 60."""
    rights = {"static@2": (60, 2), "static": (95, 4), "cdb": (94, 4)}
    fields: dict[str, Any] = {
        "workload": Workload(
            hash="", source="demo", requests=0, prompt_tokens=0, arrivals="all-at-once"
        ),
        "modes": {mode: _live_mode(mode, loops) for mode, (_, loops) in rights.items()},
        "accuracy": Accuracy(
            baseline="static",
            questions="q" * 64,
            modes={mode: _answers(mode, right) for mode, (right, _) in rights.items()},
        ),
        "blocks": [],
        "comparisons": [],
        "bounds": {},
        "waterfall": None,
    }
    return timed_run(**{**fields, **changes})


def served_run(rate: int = 40, **changes: Any) -> Result:
    """Requests that arrive by themselves: latency percentiles and goodput, and no ratios."""
    modes = {}
    blocks = []
    for mode, slower in (("static", 1.5), ("cdb", 1.0)):
        latency = {"p50": 0.1 * slower, "p90": 0.2 * slower, "p99": None}
        goodput = interval(rate / slower, 0.5)
        modes[mode] = _timed_mode(mode, 100.0 / slower).model_copy(
            update={
                "percentiles": {name: latency for name in ("ttft", "tpot", "e2e")},
                "intervals": {"goodput": goodput},
                "metrics": {"goodput": goodput.estimate, "mean_depth": 2.0},
            }
        )
        for i, swing in enumerate(SWING):
            completed = {
                "request_throughput": rate / slower,
                "goodput": rate / slower + 0.5 * swing / _reach(),
            }
            wall_s = 112 * slower / rate
            blocks += [
                BlockRecord(index=i, order=o, mode=mode, wall_s=wall_s, metrics=completed)
                for o in range(2)
            ]
    work = {
        "hash": "cd" * 32,
        "source": "demo",
        "requests": 112,
        "prompt_tokens": 2240,
        "output_tokens": 1792,
        "arrivals": f"open-loop:{rate}",
        "replayed": ["tokens", "lengths", "depths"],
    }
    fields: dict[str, Any] = {
        "modes": modes,
        "blocks": blocks,
        "workload": Workload.model_validate(work),
        "config": {**CONFIG, "workload": {"arrivals": f"open-loop:{rate}", "requests": 112}},
        "comparisons": [],
        "bounds": {},
        "waterfall": None,
    }
    return timed_run(**{**fields, **changes})


def at_threshold(threshold: float, depth: float, speed: float, **changes: Any) -> Result:
    """``timed_run`` with another threshold, mean depth and speed-up of cdb over static."""
    made = timed_run(**changes)
    cdb = made.modes["cdb"]
    settings = cdb.exit.model_copy(update={"threshold": threshold})
    cdb = cdb.model_copy(update={"exit": settings, "metrics": {**cdb.metrics, "mean_depth": depth}})
    return made.model_copy(
        update={
            "config": {**CONFIG, "exit": {**CONFIG["exit"], "threshold": threshold}},
            "modes": {**made.modes, "cdb": cdb},
            **_timed({"static": 1000.0, "cdb": 1000 * speed}, SPREAD, decode={"cdb": speed}),
        }
    )


def at_width(width: int, speed: float, **changes: Any) -> Result:
    """``timed_run`` at another width and speed-up of cdb over static."""
    made = timed_run(**changes)
    engine = {**CONFIG["engine"], "width": width, "max_residents": width}
    modes = {
        label: mode.model_copy(update={"width": width, "max_residents": width})
        for label, mode in made.modes.items()
    }
    return made.model_copy(
        update={
            "config": {**CONFIG, "engine": engine},
            "modes": modes,
            **_timed({"static": 1000.0, "cdb": 1000 * speed}, SPREAD, decode={"cdb": speed}),
        }
    )


def written(directory: Path, result: Result) -> str:
    """A run directory with this result and no raw records, as one would type it."""
    directory.mkdir(parents=True)
    write_result(directory, result)
    return str(directory)


def written_sweep(
    directory: Path, results: list[Result], changes: list[dict[str, Any]], **fields: Any
) -> str:
    """A sweep directory whose cells, one round each, have these results and figures of them."""
    cells = []
    for number, (result, changed) in enumerate(zip(results, changes, strict=True), start=1):
        place = f"round-1/{number:012d}"
        written(directory / place, result)
        found = {(c.mode, c.over): c.speedup for c in result.comparisons if c.scope == "e2e"}
        depth = result.modes["cdb"].metrics.get("mean_depth")
        figures = {"cdb.mean_depth": None if depth is None else interval(depth)}
        figures["cdb/static"] = found.get(("cdb", "static"))
        cells.append(
            SweepCell(
                number=number,
                hash=f"{number:012d}",
                changes=changed,
                rounds=[CellRound(round=1, state="finished", directory=place)],
                verdict=result.validity.verdict,
                reasons=result.validity.reasons,
                figures={name: each for name, each in figures.items() if each is not None},
            )
        )
    document: dict[str, Any] = {
        "name": "made",
        "verb": "run",
        "status": "complete",
        "seed": 0,
        "rounds": 1,
        "base": CONFIG,
        "varied": list(changes[0]),
        "columns": ["cdb.mean_depth", "cdb/static"],
        "cells": cells,
    }
    write_document(directory / "sweep.json", SweepDocument(**{**document, **fields}))
    return str(directory)


def _timed_mode(mode: str, rate: float) -> ModeResult:
    schedule = mode.partition(":")[0]
    adaptive = schedule in ("cdb", "lockstep")
    return ModeResult.model_validate(
        {
            "schedule": schedule,
            "model": "demo-ouro",
            "exit": ExitSettings(rule="cdf", threshold=0.5) if adaptive else {"rule": "none"},
            "max_loops": 4,
            "width": 16,
            "max_residents": 16,
            "metrics": {
                "output_throughput": rate,
                "mean_depth": 1.6 if adaptive else 4.0,
                "ms_per_loop": 1000 / rate,
                "core_occupancy": 0.9,
            },
            "intervals": {
                "output_throughput": interval(rate, 25.0),
                "ms_per_loop": interval(1000 / rate, 0.01),
            },
        }
    )


def _live_mode(mode: str, loops: int) -> ModeResult:
    row = _timed_mode(mode.partition("@")[0], 1.0)
    depth = 1.75 if mode == "cdb" else float(loops)
    changes: dict[str, Any] = {
        "max_loops": loops,
        "width": None,
        "max_residents": None,
        "metrics": {},
    }
    return row.model_copy(update={**changes, "intervals": {}, "live": {"mean_depth": depth}})


def _answers(mode: str, right: int) -> ModeAccuracy:
    base = [n < 95 for n in range(100)]
    own = [n < right - 1 or n == 99 for n in range(100)] if mode != "static" else base
    found = compare_paired(base, own)
    assert found is not None
    rate = IntervalRecord.of(found.rate)
    paired = None if mode == "static" else PairedRecord.of(found, "static")
    task = TaskAccuracy(metric="exact_match", filter="none", rate=rate, paired=paired)
    return ModeAccuracy(rate=rate, paired=paired, tasks={"sum_1": task, "copy_1": task})


SPREAD = {"cdb": 0.028, "lockstep": 0.05}
"""Half-widths of the intervals over a steady mode, on logs."""
SWING = (-1.0, 1.0, -1.0, 1.0, -1.0, 1.0)


def _reach() -> float:
    """Half-width of the t interval of ``SWING``."""
    found = mean(SWING)
    assert found is not None
    assert found.high is not None
    return found.high


def _timed(
    rates: dict[str, float], spread: dict[str, float], decode: dict[str, float]
) -> dict[str, Any]:
    """Blocks of modes with these output rates, and the speed-ups over static and others they give.

    ``decode``: speed-ups over static of decoding, 1 where none is given.
    """
    blocks = []
    for index in range(6):
        for order, mode in enumerate((*rates, *reversed(rates))):
            factor = math.exp(spread.get(mode, 0.0) * SWING[index] / _reach())
            wall_s = 512 / rates[mode] * factor
            decode_wall_s = 0.4 / decode.get(mode, 1.0) * factor
            blocks.append(
                BlockRecord(
                    index=index, order=order, mode=mode, wall_s=wall_s, decode_wall_s=decode_wall_s
                )
            )
    pairs = [("lockstep", "static"), ("cdb", "static"), ("cdb", "lockstep"), ("cdb", "dense:small")]
    comparisons = []
    for mode, over in pairs:
        for scope in ("e2e", "decode"):
            if mode in rates and over in rates:
                walls = [
                    BlockRun(
                        b.index, b.mode, b.wall_s if scope == "e2e" else float(b.decode_wall_s or 0)
                    )
                    for b in blocks
                ]
                logs = log_ratios(walls, mode, over)
                found = geometric_mean(logs)
                assert found is not None
                made = {"mode": mode, "over": over, "scope": scope, "log_ratios": logs}
                comparisons.append(
                    Comparison.model_validate({**made, "speedup": IntervalRecord.of(found)})
                )
    return {"blocks": blocks, "comparisons": comparisons}


def _bounds(share: float) -> dict[str, BoundRecord]:
    return {
        "flop_bound": BoundRecord(value=2.5, scope="decode", realised=interval(share, 0.02)),
        "time_bound": BoundRecord(value=2.2, scope="decode", realised=interval(share + 0.1, 0.02)),
    }


def _waterfall() -> Waterfall:
    effects = (
        ("loops_saved", 2.5, 2.5),
        ("boundary_stages", 2.2, 0.88),
        ("host_time", 2.0, 2.0 / 2.2),
        ("prefill_and_first_tokens", 1.8, 0.9),
    )
    return Waterfall(
        rows=[
            WaterfallRow(
                effect=effect,
                speedup=interval(so_far, 0.04 if place > 1 else 0.0),
                factor=interval(factor, 0.02 if place > 1 else 0.0),
                over_t=2.0,
                mode_t=1.0,
            )
            for place, (effect, so_far, factor) in enumerate(effects)
        ]
    )

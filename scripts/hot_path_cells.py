"""The measuring process of ``hot_path.py``: one checkout's engine on the null model.

    python scripts/hot_path_cells.py FOLDER --ticks 600 --widths 1 8 32 128

FOLDER is the checkout whose engine is measured; it may be an older one. It prints JSON.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import scripts  # noqa: F401  (the null model is this checkout's, whatever is measured)

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

from cdbench import Engine, EngineConfig, ExitPolicy, Request
from cdbench.grammar import parse_depths
from cdbench.runtime.core import LaunchLog
from cdbench.workloads.synthetic_depths import depths_of
from scripts.null_model import NullModel, one_thread

CELLS = (("static", "none"), ("cdb", "none"), ("cdb", "serial:0.5"))
PROFILED = ("cdb", "serial:0.5", 32)
TOP = 25


def measure(widths: Sequence[int], ticks: int, profiles: bool) -> dict[str, Any]:
    """The cells of one process, and the profile where it is asked for."""
    model = NullModel()
    with one_thread():
        cells = [_cell(model, mode, depths, w, ticks) for w in widths for mode, depths in CELLS]
        top = _profile(model, ticks) if profiles else []
    return {"cells": cells, "profile": top}


def _engine(
    model: NullModel, mode: str, depths: str, width: int, ticks: int, log: LaunchLog | None
) -> Engine:
    """An engine in the middle of its decode: all admitted, as many waiting, none near its end."""
    engine = Engine(model, EngineConfig(mode=mode, max_residents=width), observer=log)
    loops, tokens = model.dims.max_loops, ticks + 2
    for number in range(2 * width):
        name = str(number)
        draw = np.random.RandomState(number)
        replay = None
        if depths != "none":
            replay = depths_of(parse_depths(depths), name, tokens, loops, seed=0)
        engine.submit(
            Request(
                id=name,
                prompt=[1] * 8,
                exit=ExitPolicy("cdf", 0.5) if replay is not None else ExitPolicy(),
                force=draw.randint(0, model.dims.vocab_size, tokens).tolist(),
                replay_depths=replay,
            )
        )
    while engine.residents.occupied_count < width or engine.schedule.in_flight < width:
        engine.tick()
    for _ in range(2 * loops):
        engine.tick()
    return engine


def _cell(model: NullModel, mode: str, depths: str, width: int, ticks: int) -> dict[str, Any]:
    """Medians over the launches of one stretch of decode, in microseconds."""
    log = LaunchLog()
    engine = _engine(model, mode, depths, width, ticks, log)
    first, tokens = len(log.records), int(engine.residents.outputs.count.sum())
    began_s = engine.clock.now()
    for _ in range(ticks):
        engine.tick()
    took_s = engine.clock.now() - began_s
    records = log.records[first:]
    assert not any(record.is_prefill for record in records), "only decode is measured"
    inside: dict[str, list[float]] = {}
    gaps: dict[str, list[float]] = {}
    end_s = began_s
    for record in records:
        inside.setdefault(record.stage.value, []).append(record.duration_s)
        gaps.setdefault(record.stage.value, []).append(record.start_s - end_s)
        end_s = record.start_s + record.duration_s
    stages = {
        stage: {"inside_us": 1e6 * median(times), "gap_us": 1e6 * median(gaps[stage])}
        for stage, times in inside.items()
    }
    rows = sum(r.decode_rows for r in records if r.stage.value == "core")
    made = int(engine.residents.outputs.count.sum()) - tokens
    return {
        "mode": mode,
        "depths": depths,
        "width": width,
        "launches": len(records),
        "core_rows": rows / len(inside["core"]),
        "stages": stages,
        "cycle_us": sum(sum(one.values()) for one in stages.values()),
        "us_per_tick": 1e6 * took_s / ticks,
        "us_per_token": 1e6 * took_s / made,
    }


def _profile(model: NullModel, ticks: int) -> list[dict[str, Any]]:
    """The functions that take most time by themselves, calls and microseconds a tick."""
    mode, depths, width = PROFILED
    engine = _engine(model, mode, depths, width, ticks, None)
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(ticks):
        engine.tick()
    profiler.disable()
    stats: dict[Any, Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    dearest = sorted(stats.items(), key=lambda item: -item[1][2])[:TOP]
    return [
        {
            "function": f"{'/'.join(Path(file).parts[-2:])}:{line} {name}",
            "calls_per_tick": calls / ticks,
            "own_us_per_tick": 1e6 * own_s / ticks,
            "total_us_per_tick": 1e6 * total_s / ticks,
        }
        for (file, line, name), (_, calls, own_s, total_s, _) in dearest
    ]


def main() -> None:
    """Measure and print the document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--widths", type=int, nargs="+", required=True)
    parser.add_argument("--ticks", type=int, required=True)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    print(json.dumps(measure(args.widths, args.ticks, args.profile)))


if __name__ == "__main__":
    main()

"""Timed parts: a published shape with random weights on replayed synthetic depths.

Each is one run as ``cdbench run`` makes it, with the model of the runs before it and stage curves
measured once.
"""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import nullcontext
from typing import Any

from cdbench.bench.benchmark import run_benchmark
from cdbench.cli.progress import Lines
from cdbench.schema import Result, to_json
from scripts.gpu_parts.check import Check, TimeUp
from scripts.gpu_parts.shapes import HUGINN, OURO, Shape, Size, set_up
from scripts.gpu_parts.stages import curves_file

ALL_MODES = "static,lockstep,cdb"
BLOCKS = 6
"""At most: the fewest that give an interval."""
TINY_BLOCKS = 1
BLOCK_SHARE = 0.55
"""Of a part's time, in which blocks may start: loading and warming up come before, and the last
block still has to end."""
PLAIN = {"engine.graphs": False, "engine.attention": "sdpa"}
OUT = "timed-run"


def ouro_64(check: Check, found: dict[str, Any]) -> None:
    """Ouro-1.4B's shape at width 64 and lag 0."""
    timed(check, found, OURO, 64)


def huginn_64(check: Check, found: dict[str, Any]) -> None:
    """Huginn's shape at R = 16, width 64 and lag 0."""
    timed(check, found, HUGINN, 64)


def ouro_64_lag_1(check: Check, found: dict[str, Any]) -> None:
    """As ``ouro_64`` at lag 1; lag is nothing to ``static``."""
    timed(check, found, OURO, 64, lag=1, modes="static,cdb")


def huginn_64_lag_1(check: Check, found: dict[str, Any]) -> None:
    """As ``huginn_64`` at lag 1."""
    timed(check, found, HUGINN, 64, lag=1, modes="static,cdb")


def ouro_256(check: Check, found: dict[str, Any]) -> None:
    """Ouro-1.4B's shape at width 256."""
    timed(check, found, OURO, 256)


def ouro_8(check: Check, found: dict[str, Any]) -> None:
    """Ouro-1.4B's shape at width 8."""
    timed(check, found, OURO, 8)


def ouro_64_plain(check: Check, found: dict[str, Any]) -> None:
    """As ``ouro_64`` without graphs and on sdpa, whose stage curves would be others."""
    timed(check, found, OURO, 64, modes="static,cdb", keys={**PLAIN, "stages": "none"})


def timed(
    check: Check,
    found: dict[str, Any],
    shape: Shape,
    width: int,
    *,
    lag: int = 0,
    modes: str = ALL_MODES,
    keys: dict[str, Any] | None = None,
) -> None:
    """Time ``modes`` of a shape on the same replayed work; the result without its stage curves.

    Raises TimeUp, once what was measured is kept, where the run was cut.
    """
    config = check.config(
        {
            **set_up(check, shape, Size.of(check, width), lag),
            "modes": modes,
            "repeats.blocks": TINY_BLOCKS if check.tiny else BLOCKS,
            "repeats.max_seconds": max(1.0, BLOCK_SHARE * check.left_s),
            "out": OUT,
            **_by_curves(check, shape, keys or {}),
        }
    )
    try:
        result, _ = run_benchmark(
            config, nullcontext(Lines(sys.stderr, "requests")), once=check.once
        )
    finally:
        shutil.rmtree(check.folder / OUT, ignore_errors=True)
    found |= kept(result)
    if result.status == "interrupted":
        raise TimeUp


def _by_curves(check: Check, shape: Shape, keys: dict[str, Any]) -> dict[str, Any]:
    """The keys of a run that holds to the shape's curves, where there are some and it may."""
    stages = keys.get("stages", curves_file(shape))
    if not (check.folder / stages).is_file():
        return {**keys, "stages": "none", "engine.coda_min_rows": 1}
    return {**keys, "stages": stages, "engine.coda_min_rows": "auto"}


def kept(result: Result) -> dict[str, Any]:
    """What the document keeps of a run: all but the stage curves, and how idle the device was.

    ``idle_share`` is 1 − time of launches on the device / wall, by mode. What a launch waits for
    within itself, between two kernels, counts as its time: that shows against its floor.
    """
    idle = {mode: row.metrics.get("host_share") for mode, row in result.modes.items()}
    whole = json.loads(to_json(result.model_copy(update={"stages": None})))
    return {"idle_share": idle, "result": whole}

"""What the machine does at best, and what one launch of each stage asks of it.

Bandwidth is the best of large copies (two bytes moved per byte) and triads a = b + s·c (three), the
matmul rate that of a large square product in the run's dtype; both by the same threads on the same
device as the run. Several tries, the best counts: a floor is what nothing may fall below.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from cdbench.metrics.curves import CurveStage
from cdbench.models.base import StagedModel
from cdbench.schema.stages import StageFloors, StageWork

TIMES = {"cuda": 8}
"""Calls in one try, so that starting and awaiting them weighs little; elsewhere one."""
TRIES = 5
ARRAY_BYTES = {"cpu": 1 << 27, "cuda": 1 << 30}
"""Of one array; far beyond any cache."""
MATRIX_SIZE = {"cpu": 1536, "cuda": 8192}


def measure_floors(model: StagedModel, max_loops: int) -> StageFloors:
    """Measure the device of a model and count what its stages move and compute."""
    device, dtype = model.device, model.dtype
    return StageFloors(
        bandwidth_bytes_per_s=bandwidth_bytes_per_s(device),
        matmul_flops_per_s=matmul_flops_per_s(device, dtype),
        work=stage_work(model, max_loops),
    )


def bandwidth_bytes_per_s(device: torch.device) -> float:
    """Memory bandwidth of the device."""
    count = ARRAY_BYTES.get(device.type, ARRAY_BYTES["cpu"]) // 4
    a, b, c = (torch.ones(count, dtype=torch.float32, device=device) for _ in range(3))
    copy_s = best_of(lambda: a.copy_(b), device)
    triad_s = best_of(lambda: torch.add(b, c, alpha=3.0, out=a), device)
    return 4 * count * max(2 / copy_s, 3 / triad_s)


def matmul_flops_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """Rate of a large square matrix product, two FLOPs per multiplication and addition."""
    size = MATRIX_SIZE.get(device.type, MATRIX_SIZE["cpu"])
    # Random numbers: a GPU multiplies ones faster than anything a model has.
    numbers = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn((size, size), generator=numbers, device=device).to(dtype) for _ in "ab")
    out = torch.empty_like(a)
    return 2.0 * size**3 / best_of(lambda: torch.mm(a, b, out=out), device)


def best_of(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of ``work`` in the fastest of several tries, after one that is not timed."""
    work()
    fastest, times = float("inf"), TIMES.get(device.type, 1)
    for _ in range(TRIES):
        _wait_for(device)
        start = time.perf_counter()
        for _ in range(times):
            work()
        _wait_for(device)
        fastest = min(fastest, (time.perf_counter() - start) / times)
    return fastest


def stage_work(model: StagedModel, max_loops: int) -> dict[CurveStage, StageWork]:
    """What one launch of each stage moves and computes at least; prefill: all launches of a chunk.

    A row reads and writes its state once and writes its own keys and values; it reads those of the
    positions it attends to. A prompt token attends to half of its prompt on average; the keys it
    reads were written in the same launch, and are not counted.
    """
    dims, flops, weights = model.dims, model.flops_per_token(), model.weight_bytes()
    element = model.dtype.itemsize
    state = 2.0 * dims.hidden_size * element
    kv = 2.0 * dims.kv_heads * dims.head_dim * element
    attention = model.attention_flops(1)

    def decode(stage: str, layers: int) -> StageWork:
        return StageWork(
            weight_bytes=getattr(weights, stage),
            row_bytes=state + layers * kv,
            position_bytes=layers * kv,
            row_flops=getattr(flops, stage),
            position_flops=layers * attention,
        )

    # The coda's layers run over a prompt only for their keys, and its head for the last row alone:
    # without them this is a floor all the more.
    layers = dims.prelude_layers + max_loops * dims.core_layers
    prompt = StageWork(
        weight_bytes=weights.prelude + max_loops * weights.core,
        row_bytes=(1 + max_loops) * state + layers * kv,
        position_bytes=0.0,
        row_flops=flops.prelude + max_loops * flops.core,
        position_flops=layers * attention / 2,
    )
    return {
        "prelude": decode("prelude", dims.prelude_layers),
        "core": decode("core", dims.core_layers),
        "coda": decode("coda", dims.coda_layers),
        "prefill": prompt,
    }


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

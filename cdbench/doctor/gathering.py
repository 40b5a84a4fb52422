"""The facts that decide what this machine can measure, read and probed in about two seconds."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from cdbench.bench.directory import RUNS
from cdbench.machine import facts
from cdbench.machine.gpu import Gpu, GpuReading
from cdbench.machine.monitor import Monitor
from cdbench.machine.noise import Noise, matmul_work, probe
from cdbench.schema import RepeatEnvironment

_TIMER_STEPS = 1000


@dataclass(frozen=True)
class GpuFacts:
    """A CUDA device. ``reading`` lacks what NVML does not tell."""

    has_nvml: bool
    reading: GpuReading
    most_sm_clock_mhz: float | None = None


@dataclass(frozen=True)
class MachineFacts:
    """What can be known of a machine before a run. ``during``: the machine during the probe.

    ``disk_error`` says why run directories cannot be written; None where they can.
    """

    timer_step_s: float
    clock_source: str | None
    usable_cores: int | None
    logical_cores: int | None
    physical_cores: int | None
    quota_cores: float | None
    governor: str | None
    threads: int
    device: str
    total_bytes: int
    available_bytes: int
    swap_used_bytes: int
    disk_error: str | None
    disk_free_bytes: int | None
    during: RepeatEnvironment
    noise: Noise
    gpu: GpuFacts | None = None

    @property
    def compute_threads(self) -> int:
        """Host threads that a run computes on: with a GPU one launches and waits."""
        return 1 if self.gpu is not None else self.threads


def gather(device: str) -> MachineFacts:
    """Everything about this machine for runs on a torch device."""
    import torch

    work = matmul_work(device)
    work()
    monitor = Monitor.of(device)
    before = monitor.before()
    noise = probe(work)
    during = monitor.after(before)
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    error, free_bytes = _disk(RUNS)
    return MachineFacts(
        timer_step_s=timer_step_s(),
        clock_source=facts.clock_source(),
        usable_cores=facts.usable_cores(),
        logical_cores=psutil.cpu_count(logical=True),
        physical_cores=psutil.cpu_count(logical=False),
        quota_cores=facts.quota_cores(),
        governor=facts.governor(),
        threads=torch.get_num_threads(),
        device=device,
        total_bytes=int(memory.total),
        available_bytes=int(memory.available),
        swap_used_bytes=int(swap.used),
        disk_error=error,
        disk_free_bytes=free_bytes,
        during=during,
        noise=noise,
        gpu=_gpu(device),
    )


def timer_step_s() -> float:
    """The smallest step the timer was seen to make, which includes the cost of asking it."""
    times = [time.perf_counter_ns() for _ in range(_TIMER_STEPS)]
    steps = [later - earlier for earlier, later in pairwise(times)]
    return min((step for step in steps if step > 0), default=0) / 1e9


def _disk(runs: Path) -> tuple[str | None, int | None]:
    """Whether a run directory could be written where they go by default, and the free bytes."""
    parent = next((p for p in (runs, *runs.parents) if p.exists()), Path())
    try:
        with tempfile.TemporaryFile(dir=parent) as file:
            file.write(b"probe")
        return None, shutil.disk_usage(parent).free
    except OSError as error:
        return error.strerror or type(error).__name__, None


def _gpu(device: str) -> GpuFacts | None:
    gpu = Gpu.open(device)
    if gpu is None:
        return None
    return GpuFacts(gpu.has_nvml, gpu.read(), gpu.most_sm_clock_mhz())

"""What happened on the machine during one timed repeat: counters before, counters after.

    monitor = Monitor.of(device)
    before = monitor.before()
    ...                          # the timed region
    environment = monitor.after(before)

Nothing runs in between, and both readings lie outside the region.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from cdbench.machine.gpu import Gpu, GpuReading
from cdbench.machine.processor import CpuReading, Processor
from cdbench.schema.environment import CpuEnvironment, GpuEnvironment, RepeatEnvironment


class ReadsCpu(Protocol):
    """What a monitor needs of a processor."""

    @property
    def usable_cores(self) -> int | None: ...

    def read(self) -> CpuReading: ...


class ReadsGpu(Protocol):
    """What a monitor needs of a GPU."""

    def start_peak(self) -> None: ...

    def read(self) -> GpuReading: ...


@dataclass(frozen=True)
class Reading:
    """One moment."""

    cpu: CpuReading
    gpu: GpuReading | None


class Monitor:
    """Reads the machine around timed regions."""

    def __init__(self, processor: ReadsCpu, gpu: ReadsGpu | None = None) -> None:
        self._processor = processor
        self._gpu = gpu

    @classmethod
    def of(cls, device: str) -> Monitor:
        """The monitor of a torch device string."""
        return cls(Processor(), Gpu.open(device))

    def before(self) -> Reading:
        """The reading to make right before a timed region."""
        if self._gpu is not None:
            self._gpu.start_peak()
        return self.read()

    def read(self) -> Reading:
        """A reading now."""
        gpu = self._gpu.read() if self._gpu is not None else None
        return Reading(self._processor.read(), gpu)

    def after(self, before: Reading) -> RepeatEnvironment:
        """What happened since ``before``; to be called right after the timed region."""
        after = self.read()
        gpu = None
        if before.gpu is not None and after.gpu is not None:
            gpu = gpu_environment(before.gpu, after.gpu)
        return RepeatEnvironment(
            wall_s=max(after.cpu.at_s - before.cpu.at_s, 1e-9),
            cpu=cpu_environment(before.cpu, after.cpu, self._processor.usable_cores),
            gpu=gpu,
        )


def cpu_environment(before: CpuReading, after: CpuReading, cores: int | None) -> CpuEnvironment:
    """Counters' differences and the later gauges.

    Core times are counted in ticks (10 ms on most kernels) and the process's own exactly, so over
    a short repeat their difference may come out below zero: it is then zero.
    """
    own_cpu_s = after.own_cpu_s - before.own_cpu_s
    busy_s = _since(before.busy_s, after.busy_s)
    return CpuEnvironment(
        usable_cores=cores,
        own_cpu_s=own_cpu_s,
        foreign_cpu_s=None if busy_s is None else max(0.0, busy_s - own_cpu_s),
        steal_s=_since(before.steal_s, after.steal_s),
        run_wait_s=_since(before.run_wait_s, after.run_wait_s),
        quota_wait_s=_since(before.quota_wait_s, after.quota_wait_s),
        throttle_events=_since(before.throttle_events, after.throttle_events),
        frequency_mhz=after.frequency_mhz,
        temperature_c=after.temperature_c,
        load_average=after.load_average,
        voluntary_switches=_since(before.voluntary_switches, after.voluntary_switches),
        involuntary_switches=_since(before.involuntary_switches, after.involuntary_switches),
        major_faults=_since(before.major_faults, after.major_faults),
        swapped_bytes=_since(before.swapped_bytes, after.swapped_bytes),
        available_bytes=after.available_bytes,
    )


def gpu_environment(before: GpuReading, after: GpuReading) -> GpuEnvironment:
    """Counters' differences, the later gauges, and what was seen at either end."""
    reasons = [r.throttle_reasons for r in (before, after) if r.throttle_reasons is not None]
    foreign = [r.foreign_processes for r in (before, after) if r.foreign_processes is not None]
    return GpuEnvironment(
        energy_j=_since(before.energy_j, after.energy_j),
        power_w=after.power_w,
        sm_clock_mhz=after.sm_clock_mhz,
        memory_clock_mhz=after.memory_clock_mhz,
        temperature_c=after.temperature_c,
        utilisation=after.utilisation,
        power_throttled_s=_since(before.power_throttled_s, after.power_throttled_s),
        thermal_throttled_s=_since(before.thermal_throttled_s, after.thermal_throttled_s),
        throttle_reasons=sorted(frozenset().union(*reasons)) if reasons else None,
        foreign_processes=max(foreign, default=None),
        peak_allocated_bytes=after.peak_allocated_bytes,
        allocated_bytes=before.allocated_bytes,
    )


Number = TypeVar("Number", int, float)


def _since(before: Number | None, after: Number | None) -> Number | None:
    """A counter's difference, never below zero; None where either reading lacks it."""
    if before is None or after is None:
        return None
    return max(after - before, type(after)(0))

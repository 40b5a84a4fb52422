"""Counters of the processor, from a few small files and system calls.

Nothing here starts a thread or a process: the host is part of the instrument. Core seconds are
summed over the cores this process may run on, so that a busy neighbour elsewhere on a large host
is no disturbance.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from cdbench.machine.facts import ROOT, affinity, load_average, read_count, read_line

_MOST_FREQUENCY_FILES = 16
"""Reading a core's frequency may interrupt it, so a few cores stand for all."""

_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")


@dataclass(frozen=True)
class CpuReading:
    """Counters and gauges at one moment. Times are seconds, counters count from some start."""

    at_s: float
    own_cpu_s: float
    busy_s: float | None = None
    steal_s: float | None = None
    run_wait_s: float | None = None
    quota_wait_s: float | None = None
    throttle_events: int | None = None
    frequency_mhz: float | None = None
    temperature_c: float | None = None
    load_average: float | None = None
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    major_faults: int | None = None
    swapped_bytes: int | None = None
    available_bytes: int | None = None


class Processor:
    """Reads the processor's counters. ``root``: where /proc and /sys are."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._cores = affinity()
        cpus = root / "sys/devices/system/cpu"
        self._throttles = [
            cpus / f"cpu{core}/thermal_throttle/{unit}_throttle_count"
            for core in self._cores or ()
            for unit in ("core", "package")
        ]
        self._throttles = [path for path in self._throttles if path.exists()]
        self._frequencies = [
            path
            for core in (self._cores or ())[:_MOST_FREQUENCY_FILES]
            if (path := cpus / f"cpu{core}/cpufreq/scaling_cur_freq").exists()
        ]

    @property
    def usable_cores(self) -> int | None:
        """Logical cores this process may run on, whose time is counted."""
        return len(self._cores) if self._cores is not None else psutil.cpu_count()

    def read(self) -> CpuReading:
        """Everything now, always in the same order, so that each counter covers equal spans."""
        busy_s, steal_s = self._core_times()
        switches = _switches()
        return CpuReading(
            busy_s=busy_s,
            steal_s=steal_s,
            quota_wait_s=self._quota_wait_s(),
            throttle_events=_sum(read_count(path) for path in self._throttles),
            frequency_mhz=self._frequency_mhz(),
            temperature_c=_temperature_c(),
            load_average=loads[0] if (loads := load_average()) else None,
            voluntary_switches=switches[0],
            involuntary_switches=switches[1],
            major_faults=switches[2],
            swapped_bytes=_swapped_bytes(),
            available_bytes=_available_bytes(),
            run_wait_s=self._run_wait_s(),
            own_cpu_s=time.process_time(),
            at_s=time.perf_counter(),
        )

    def _core_times(self) -> tuple[float | None, float | None]:
        """Busy and stolen seconds of the usable cores since the machine started."""
        try:
            each = psutil.cpu_times(percpu=True)
        except (OSError, RuntimeError, ValueError):
            return None, None
        cores = self._cores if self._cores is not None else range(len(each))
        if not each or max(cores) >= len(each):
            return None, None  # a core is off line, so places no longer name cores
        used = [each[core] for core in cores]
        # Guest time is part of user time already.
        kinds = ("user", "nice", "system", "irq", "softirq")
        busy = sum(getattr(times, kind, 0.0) for times in used for kind in kinds)
        steal = _sum(getattr(times, "steal", None) for times in used)
        return busy, steal

    def _run_wait_s(self) -> float | None:
        """Seconds that the threads of this process waited for a core (Linux, schedstat)."""
        waits = []
        for task in (self._root / "proc/self/task").glob("*/schedstat"):
            fields = (read_line(task) or "").split()  # on a core, waiting (ns), time slices
            if len(fields) == 3 and fields[1].isdigit():
                waits.append(int(fields[1]) / 1e9)
        return sum(waits) if waits else None

    def _quota_wait_s(self) -> float | None:
        """Seconds that a CPU quota held this container back (cgroup v2, v1)."""
        for path, key, unit_s in (
            ("sys/fs/cgroup/cpu.stat", "throttled_usec", 1e-6),
            ("sys/fs/cgroup/cpu/cpu.stat", "throttled_time", 1e-9),
        ):
            for line in (read_line(self._root / path) or "").splitlines():
                name, _, count = line.partition(" ")
                if name == key and count.isdigit():
                    return int(count) * unit_s
        return None

    def _frequency_mhz(self) -> float | None:
        known = [khz for path in self._frequencies if (khz := read_count(path)) is not None]
        return sum(known) / len(known) / 1000 if known else None


def _switches() -> tuple[int, int, int]:
    """Voluntary and involuntary context switches and major page faults of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_nvcsw, usage.ru_nivcsw, usage.ru_majflt


def _temperature_c() -> float | None:
    try:
        sensors = psutil.sensors_temperatures()
    except (AttributeError, OSError, RuntimeError, ValueError):
        return None
    known = [x.current for name in _CPU_SENSORS for x in sensors.get(name, ()) if x.current]
    return max(known, default=None)


def _swapped_bytes() -> int | None:
    try:
        swap = psutil.swap_memory()
    except (OSError, RuntimeError, ValueError):
        return None
    return int(swap.sin + swap.sout)


def _available_bytes() -> int | None:
    try:
        return int(psutil.virtual_memory().available)
    except (OSError, RuntimeError, ValueError):
        return None


Number = TypeVar("Number", int, float)


def _sum(values: Iterable[Number | None]) -> Number | None:
    """The sum of what is known; None where nothing is."""
    known: Sequence[Number] = [value for value in values if value is not None]
    return sum(known) if known else None

"""What the operating system says about the processor; None where it does not say."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path("/")


def affinity() -> list[int] | None:
    """Logical cores this process may run on, in order."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return sorted(os.sched_getaffinity(0))


def usable_cores() -> int | None:
    """How many logical cores this process may run on."""
    cores = affinity()
    return len(cores) if cores is not None else os.cpu_count()


def quota_cores(root: Path = ROOT) -> float | None:
    """Cores a container may use (cgroup v2, v1): affinity does not show that limit."""
    line = read_line(root / "sys/fs/cgroup/cpu.max")
    if line is not None:
        quota, _, period = line.partition(" ")
    else:
        quota = read_line(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us") or ""
        period = read_line(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us") or ""
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def governor(root: Path = ROOT) -> str | None:
    """Frequency governor of the first core, such as performance or powersave."""
    return read_line(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def clock_source(root: Path = ROOT) -> str | None:
    """What the kernel tells the time by: tsc is fast, hpet and acpi_pm are slow to read."""
    return read_line(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")


def load_average() -> list[float] | None:
    """Runnable processes on average over 1, 5 and 15 minutes."""
    try:
        return [round(load, 2) for load in os.getloadavg()]
    except (AttributeError, OSError):
        return None


def read_line(path: Path) -> str | None:
    """The text of a one-line file; None where it is empty or cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def read_count(path: Path) -> int | None:
    """The number a one-line file holds."""
    line = read_line(path)
    try:
        return int(line) if line is not None else None
    except ValueError:
        return None

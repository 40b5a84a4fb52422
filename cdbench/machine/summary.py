"""The machine over all timed repeats, as shares that can be judged.

Kernels count core time in ticks of 10 ms, so the share of a very short repeat means little:
consecutive repeats are put together into spans of at least half a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from cdbench.schema.environment import (
    CpuEnvironment,
    Environment,
    GpuEnvironment,
    RepeatEnvironment,
    Spread,
)

SPAN_S = 0.5

_COUNTED = (
    "own_cpu_s",
    "foreign_cpu_s",
    "steal_s",
    "run_wait_s",
    "quota_wait_s",
    "throttle_events",
    "voluntary_switches",
    "involuntary_switches",
    "major_faults",
    "swapped_bytes",
    "energy_j",
    "power_throttled_s",
    "thermal_throttled_s",
)
_LARGEST = ("foreign_processes", "peak_allocated_bytes")


def summarise(repeats: Sequence[RepeatEnvironment], compute_threads: int) -> Environment:
    """All timed repeats of a run that computes on so many threads."""
    found = spans(repeats)
    each = [figures(span, compute_threads) for span in found]
    names = list(dict.fromkeys(name for values in each for name in values))
    known = {name: [v for values in each if (v := values.get(name)) is not None] for name in names}
    return Environment(
        repeats=len(repeats),
        wall_s=sum(r.wall_s for r in repeats),
        compute_threads=compute_threads,
        usable_cores=repeats[0].cpu.usable_cores if repeats else None,
        figures={name: _spread(values) for name, values in known.items() if values},
        energy_j=_total(r.gpu.energy_j if r.gpu is not None else None for r in repeats),
        throttle_reasons=Counter(
            reason
            for r in repeats
            if r.gpu is not None
            for reason in sorted(r.gpu.throttle_reasons or ())
        ),
        unreadable=[name for name, values in known.items() if not values],
    )


def figures(span: RepeatEnvironment, compute_threads: int) -> dict[str, float | None]:
    """What can be judged of a repeat, or of several put together, by name.

    ``foreign_cores``: cores that other processes kept busy. ``crowding``: share of the cores this
    run computes on that they must have taken, given the cores left over. ``waiting``: share of this
    process's time ready to run that it had no core. Other shares are of the usable cores' time
    (``steal``), of the computing threads' (``quota``) and of the wall.
    """
    cpu, gpu, wall_s = span.cpu, span.gpu, span.wall_s
    foreign = None if cpu.foreign_cpu_s is None else cpu.foreign_cpu_s / wall_s
    found: dict[str, float | None] = {
        "foreign_cores": foreign,
        "crowding": _crowding(foreign, cpu.usable_cores, compute_threads),
        "waiting": _waiting(cpu),
        "steal": _share(cpu.steal_s, wall_s * (cpu.usable_cores or 1)),
        "quota": _share(cpu.quota_wait_s, wall_s * compute_threads),
        "throttle_events": cpu.throttle_events,
        "swapped_bytes": cpu.swapped_bytes,
        "frequency_mhz": cpu.frequency_mhz,
        "temperature_c": cpu.temperature_c,
        "load_average": cpu.load_average,
        "involuntary_switches_per_s": _share(cpu.involuntary_switches, wall_s),
    }
    if gpu is not None:
        found |= {
            "gpu_foreign_processes": gpu.foreign_processes,
            "gpu_power_throttled": _share(gpu.power_throttled_s, wall_s),
            "gpu_thermal_throttled": _share(gpu.thermal_throttled_s, wall_s),
            "gpu_power_w": gpu.power_w if gpu.energy_j is None else gpu.energy_j / wall_s,
            "gpu_sm_clock_mhz": gpu.sm_clock_mhz,
            "gpu_temperature_c": gpu.temperature_c,
            "gpu_utilisation": gpu.utilisation,
            "gpu_peak_allocated_bytes": gpu.peak_allocated_bytes,
        }
    return found


def spans(repeats: Iterable[RepeatEnvironment], least_s: float = SPAN_S) -> list[RepeatEnvironment]:
    """Consecutive repeats put together until they last ``least_s``; the rest joins the last one."""
    found: list[list[RepeatEnvironment]] = []
    for repeat in repeats:
        if found and sum(r.wall_s for r in found[-1]) < least_s:
            found[-1].append(repeat)
        else:
            found.append([repeat])
    if len(found) > 1 and sum(r.wall_s for r in found[-1]) < least_s:
        found[-2:] = [[*found[-2], *found[-1]]]
    return [_together(group) for group in found]


def _together(group: Sequence[RepeatEnvironment]) -> RepeatEnvironment:
    """Counters added up, gauges of the last."""
    if len(group) == 1:
        return group[0]
    gpus = [r.gpu for r in group if r.gpu is not None]
    gpu = GpuEnvironment(**_joined(gpus)) if len(gpus) == len(group) else None
    cpu = CpuEnvironment(**_joined([r.cpu for r in group]))
    return RepeatEnvironment(wall_s=sum(r.wall_s for r in group), cpu=cpu, gpu=gpu)


def _joined(parts: Sequence[CpuEnvironment] | Sequence[GpuEnvironment]) -> dict[str, Any]:
    joined = parts[-1].model_dump()
    for name in joined:
        values = [getattr(part, name) for part in parts]
        if name in _COUNTED:
            joined[name] = _total(values)
        elif name in _LARGEST:
            joined[name] = max((v for v in values if v is not None), default=None)
        elif name == "throttle_reasons":
            known = [set(v) for v in values if v is not None]
            joined[name] = sorted(set().union(*known)) if known else None
    return joined


def _crowding(foreign: float | None, usable: int | None, threads: int) -> float | None:
    if foreign is None:
        return None
    left_over = max(0, (usable or threads) - threads)
    return max(0.0, foreign - left_over) / threads


def _waiting(cpu: CpuEnvironment) -> float | None:
    if cpu.run_wait_s is None or cpu.own_cpu_s is None:
        return None
    ready_s = cpu.own_cpu_s + cpu.run_wait_s
    return cpu.run_wait_s / ready_s if ready_s > 0 else None


def _share(part: float | None, whole: float) -> float | None:
    return None if part is None else part / whole


def _total(values: Iterable[float | None]) -> float | None:
    """The sum; None where any is unknown, or there is none."""
    each = list(values)
    known = [v for v in each if v is not None]
    return sum(known) if known and len(known) == len(each) else None


def _spread(values: Sequence[float]) -> Spread:
    return Spread(median=median(values), low=min(values), high=max(values), n=len(values))

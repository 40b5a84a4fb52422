"""What the machine did beside the run: one record a timed repeat, and their summary.

Counters are read before and after a repeat's timed region, never within it, and nothing here is
ever guessed: what a machine does not tell is null.
"""

from __future__ import annotations

from pydantic import Field

from cdbench.schema.base import Measure, Record


class CpuEnvironment(Record):
    """The processor during one repeat. Seconds are core seconds over the usable cores."""

    usable_cores: int | None = Field(None, description="logical cores this process may run on")
    own_cpu_s: Measure = Field(None, description="CPU time of this process, all threads")
    foreign_cpu_s: Measure = Field(
        None, description="busy time of the usable cores − own_cpu_s: other processes, interrupts"
    )
    steal_s: Measure = Field(None, description="time a hypervisor gave to other guests")
    run_wait_s: Measure = Field(
        None, description="time this process's threads were ready to run and had no core"
    )
    quota_wait_s: Measure = Field(None, description="time held back by a container's CPU quota")
    throttle_events: int | None = Field(None, description="thermal throttling of cores, packages")
    frequency_mhz: Measure = Field(None, description="mean of the usable cores at the end")
    temperature_c: Measure = Field(None, description="hottest processor sensor at the end")
    load_average: Measure = Field(None, description="1 minute, at the end")
    voluntary_switches: int | None = Field(None, description="context switches: waited")
    involuntary_switches: int | None = Field(None, description="context switches: pre-empted")
    major_faults: int | None = Field(None, description="pages read from disk")
    swapped_bytes: int | None = Field(None, description="moved to and from swap, whole machine")
    available_bytes: int | None = Field(None, description="memory left at the end")


class GpuEnvironment(Record):
    """The GPU during one repeat, from NVML and torch's allocator."""

    energy_j: Measure = Field(None, description="difference of the device's energy counter")
    power_w: Measure = Field(None, description="at the end")
    sm_clock_mhz: Measure = Field(None, description="at the end")
    memory_clock_mhz: Measure = Field(None, description="at the end")
    temperature_c: Measure = Field(None, description="at the end")
    utilisation: Measure = Field(None, description="share of the last sampling period, at the end")
    power_throttled_s: Measure = Field(None, description="clocks held down by the power limit")
    thermal_throttled_s: Measure = Field(None, description="clocks held down by heat")
    throttle_reasons: list[str] | None = Field(
        None, description="what held the clocks down at the start or at the end"
    )
    foreign_processes: int | None = Field(
        None, description="most other compute processes on the device at the start or at the end"
    )
    peak_allocated_bytes: int | None = Field(
        None, description="most device memory in this process's tensors; all modes' pools included"
    )
    allocated_bytes: int | None = Field(None, description="the same at the start")


class RepeatEnvironment(Record):
    """The machine during one timed repeat."""

    wall_s: float = Field(gt=0, description="between the two readings")
    cpu: CpuEnvironment = Field(default_factory=CpuEnvironment)
    gpu: GpuEnvironment | None = Field(None, description="null where the model ran on the CPU")
    captures: int | None = Field(
        None, description="launches captured meanwhile, under engine.graphs; null without"
    )


class Spread(Record):
    """A figure over the repeats that have it."""

    median: float
    low: float
    high: float
    n: int


class Environment(Record):
    """The machine over all timed repeats; ``figures`` has what could be read, by name.

    ``foreign_cores``: cores that other processes kept busy. ``crowding``: share of the cores this
    run computes on that they must have taken, given the cores left over. ``waiting``: share of its
    threads' time spent ready without a core. ``steal``: share of the usable cores' time.
    """

    repeats: int
    wall_s: float = Field(description="sum over the repeats")
    compute_threads: int = Field(description="threads this run computes on")
    usable_cores: int | None = None
    figures: dict[str, Spread] = Field(default_factory=dict)
    energy_j: Measure = Field(None, description="sum, where every repeat has it")
    throttle_reasons: dict[str, int] = Field(
        default_factory=dict, description="GPU throttle reason → repeats in which it was seen"
    )
    unreadable: list[str] = Field(
        default_factory=list, description="figures that this machine does not tell"
    )

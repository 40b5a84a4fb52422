"""What this machine can measure, and what would spoil a run: facts turned into findings."""

from __future__ import annotations

from collections.abc import Iterator

from cdbench.doctor.document import DoctorDocument, Finding, Measuring, NoiseFound
from cdbench.doctor.gathering import GpuFacts, MachineFacts, gather
from cdbench.machine.disturbance import disturbances
from cdbench.machine.noise import SHOWN_BLOCKS, Noise
from cdbench.machine.summary import figures
from cdbench.manifest import collect
from cdbench.render.formats import seconds, si_bytes

COARSE_TIMER_S = 1e-6
"""Launches of small models take some hundred microseconds."""

FAST_CLOCKS = frozenset({"tsc", "kvm-clock", "arch_sys_counter"})
NOISY = 0.05
"""A machine that cannot show 5 % with six blocks cannot hold a run to the gate's usual margin."""

LOW_DISK_BYTES = 1_000_000_000
LOW_MEMORY = 0.10


def examine_machine(device: str) -> DoctorDocument:
    """This machine without a model: its facts, and what it can measure for a torch device."""
    found = measure_machine(device)
    return DoctorDocument(machine=collect(device=device), measuring=found)


def measure_machine(device: str) -> Measuring:
    """What this machine can measure; takes about two seconds."""
    return measuring(gather(device))


def measuring(facts: MachineFacts) -> Measuring:
    """Every finding about the machine, and what the noise probe found."""
    return Measuring(
        findings=list(_findings(facts)),
        noise=NoiseFound(
            blocks=facts.noise.blocks,
            run_s=facts.noise.run_s,
            spread=facts.noise.spread,
            visible_effect={n: facts.noise.visible_effect(n) for n in SHOWN_BLOCKS},
        ),
        environment=facts.during,
    )


def _findings(facts: MachineFacts) -> Iterator[Finding]:
    yield _timer(facts)
    yield _cores(facts)
    yield _threads(facts)
    yield _governor(facts)
    yield from _company(facts)
    yield _throttling(facts)
    yield _memory(facts)
    yield _disk(facts)
    if facts.gpu is None:
        yield _unknown("energy", "no energy counter on a CPU: energy_per_token will be null")
    else:
        yield from _gpu(facts.gpu)
    yield _noise(facts.noise)


def _timer(facts: MachineFacts) -> Finding:
    source = facts.clock_source
    detail = f"steps of {seconds(facts.timer_step_s)}" + (f" ({source})" if source else "")
    if source is not None and source not in FAST_CLOCKS:
        return _warn("timer", f"{detail}: a slow clock; boot with clocksource=tsc if it is stable")
    if not 0 < facts.timer_step_s <= COARSE_TIMER_S:
        return _warn("timer", f"{detail}: coarse for launches of a small model; time larger ones")
    return _ok("timer", detail)


def _cores(facts: MachineFacts) -> Finding:
    usable = facts.usable_cores
    detail = f"{usable or '?'} usable of {facts.logical_cores or '?'} logical"
    if facts.physical_cores is not None:
        detail += f", {facts.physical_cores} physical"
    if facts.quota_cores is not None and usable is not None and facts.quota_cores < usable:
        return _warn(
            "cores",
            f"{detail}; a quota of {facts.quota_cores:g}: threads beyond it are held back in "
            "bursts; compute on no more threads than that",
        )
    return _ok("cores", detail)


def _threads(facts: MachineFacts) -> Finding:
    threads, usable, physical = facts.threads, facts.usable_cores, facts.physical_cores
    detail = f"torch computes on {threads}"
    if usable is not None and threads > usable:
        return _warn("threads", f"{detail}, more than the {usable} usable cores; lower them")
    if physical is not None and threads > physical:
        return _warn(
            "threads",
            f"{detail}, more than the {physical} physical cores: two threads share one core's "
            f"arithmetic; try OMP_NUM_THREADS={physical}",
        )
    if facts.gpu is None and usable is not None and threads == usable:
        detail += ", every usable core: any other process disturbs a run"
    return _ok("threads", detail)


def _governor(facts: MachineFacts) -> Finding:
    if facts.governor is None:
        return _unknown("governor", "not readable, as is usual in a virtual machine")
    if facts.governor == "performance":
        return _ok("governor", facts.governor)
    return _warn("governor", f"{facts.governor}: clocks vary with load; set it to performance")


def _company(facts: MachineFacts) -> Iterator[Finding]:
    """Other processes and other guests during the probe, judged as those of a run are."""
    found = disturbances([facts.during], facts.compute_threads)
    sentences = [*found.reasons, *found.flags]
    shares = figures(facts.during, facts.compute_threads)
    load = facts.during.cpu.load_average
    now = "" if load is None else f"; load average {load:g}"
    if sentences:
        yield _warn("other work", "; ".join(sentences) + now)
    elif shares["foreign_cores"] is None:
        yield _unknown("other work", f"not readable{now}")
    else:
        yield _ok("other work", f"{shares['foreign_cores']:.2f} cores busy with it{now}")
    if shares["steal"] is None:
        yield _unknown("steal", "not readable")
    else:
        yield _ok("steal", f"{shares['steal']:.1%} of the cores' time went to other guests")


def _throttling(facts: MachineFacts) -> Finding:
    cpu = facts.during.cpu
    told = []
    if cpu.throttle_events is not None:
        told.append("throttle counters")
    if cpu.frequency_mhz is not None:
        told.append(f"frequency ({cpu.frequency_mhz:.0f} MHz)")
    if cpu.temperature_c is not None:
        told.append(f"temperature ({cpu.temperature_c:.0f} °C)")
    if not told:
        return _unknown("throttling", "frequency, temperature and throttling are not readable")
    return _ok("throttling", f"readable: {', '.join(told)}")


def _memory(facts: MachineFacts) -> Finding:
    detail = f"{si_bytes(facts.available_bytes)} of {si_bytes(facts.total_bytes)} available"
    if facts.swap_used_bytes:
        detail += f", {si_bytes(facts.swap_used_bytes)} swapped out"
    if facts.available_bytes < LOW_MEMORY * facts.total_bytes:
        return _warn("memory", f"{detail}; free some, or a run may swap")
    return _ok("memory", detail)


def _disk(facts: MachineFacts) -> Finding:
    if facts.disk_error is not None:
        return _warn("disk", f"results/runs cannot be written ({facts.disk_error}); use --out")
    detail = f"results/runs can be written, {si_bytes(facts.disk_free_bytes)} free"
    low = facts.disk_free_bytes is not None and facts.disk_free_bytes < LOW_DISK_BYTES
    return _warn("disk", f"{detail}: little") if low else _ok("disk", detail)


def _gpu(gpu: GpuFacts) -> Iterator[Finding]:
    if not gpu.has_nvml:
        yield _warn(
            "nvml", "the driver does not tell clocks, throttling, energy and other processes"
        )
        return
    reading = gpu.reading
    clock, most = reading.sm_clock_mhz, gpu.most_sm_clock_mhz
    clocks = "" if clock is None or most is None else f", {clock:.0f} of {most:.0f} MHz"
    heat = "" if reading.temperature_c is None else f", {reading.temperature_c:.0f} °C"
    yield _ok("nvml", f"found{clocks}{heat}")
    if reading.energy_j is None:
        yield _unknown("energy", "no energy counter: energy_per_token will be null")
    else:
        yield _ok("energy", "the device counts its energy")
    others = reading.foreign_processes
    if others is None:
        yield _unknown("GPU company", "other processes on the device are not readable")
    elif others:
        yield _warn("GPU company", f"{others} other compute processes on the device; stop them")
    else:
        yield _ok("GPU company", "no other compute process")
    if reading.throttle_reasons:
        yield _warn("GPU clocks", f"held down by: {', '.join(sorted(reading.throttle_reasons))}")


def _noise(noise: Noise) -> Finding:
    smallest = ", ".join(f"{noise.visible_effect(n):.1%} with {n}" for n in SHOWN_BLOCKS)
    detail = (
        f"the same work differs from itself by {noise.spread:.1%} a block, at runs of "
        f"{seconds(noise.run_s)}; smallest effect visible with so many blocks: {smallest}"
    )
    if noise.visible_effect(SHOWN_BLOCKS[0]) > NOISY:
        return _warn("noise", f"{detail}; use more blocks, or a quieter machine")
    return _ok("noise", detail)


def _ok(name: str, detail: str) -> Finding:
    return Finding(name=name, verdict="ok", detail=detail)


def _warn(name: str, detail: str) -> Finding:
    return Finding(name=name, verdict="warn", detail=detail)


def _unknown(name: str, detail: str) -> Finding:
    return Finding(name=name, verdict="unknown", detail=detail)

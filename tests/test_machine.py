"""The machine beside a run: counters read from made-up files and a made-up NVML, shares by hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from cdbench.machine import facts, gpu
from cdbench.machine.disturbance import disturbances
from cdbench.machine.gpu import Gpu, GpuReading
from cdbench.machine.monitor import Monitor, cpu_environment, gpu_environment
from cdbench.machine.noise import Noise, probe
from cdbench.machine.processor import CpuReading, Processor
from cdbench.machine.summary import figures, spans, summarise
from cdbench.machine.unchanged import Unchanged, sha256_file, source_sha256
from cdbench.schema import CpuEnvironment, Environment, GpuEnvironment, RepeatEnvironment, to_json


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


# The processor.


def test_counters_are_read_where_the_kernel_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2})
    times = [
        SimpleNamespace(user=100.0, nice=0, system=0, irq=0, softirq=0, steal=50.0),
        SimpleNamespace(user=3.0, nice=1, system=2, irq=0.5, softirq=0.5, steal=0.25),
        SimpleNamespace(user=5.0, nice=0, system=1, irq=0, softirq=0, steal=0.5),
    ]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: times)
    root = write(
        tmp_path,
        {
            "proc/self/task/10/schedstat": "100 2000000000 7\n",
            "proc/self/task/11/schedstat": "100 500000000 7\n",
            "proc/self/task/12/schedstat": "nonsense\n",
            "sys/fs/cgroup/cpu.stat": "usage_usec 5\nthrottled_usec 250000\n",
            "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "3\n",
            "sys/devices/system/cpu/cpu2/thermal_throttle/package_throttle_count": "4\n",
            "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "99\n",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "2000000\n",
            "sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq": "3000000\n",
        },
    )
    processor = Processor(root)
    reading = processor.read()
    assert processor.usable_cores == 2
    # of the two usable cores only: core 0 is somebody else's
    assert reading.busy_s == pytest.approx(7.0 + 6.0)
    assert reading.steal_s == pytest.approx(0.75)
    assert reading.run_wait_s == pytest.approx(2.5)
    assert reading.quota_wait_s == pytest.approx(0.25)
    assert reading.throttle_events == 3 + 4
    assert reading.frequency_mhz == pytest.approx(2500)


def test_what_cannot_be_read_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("no such file")

    for name in ("cpu_times", "swap_memory", "virtual_memory", "sensors_temperatures"):
        monkeypatch.setattr(psutil, name, fails, raising=False)
    reading = Processor(tmp_path).read()
    unread = {name for name, value in vars(reading).items() if value is None}
    assert {"busy_s", "steal_s", "run_wait_s", "quota_wait_s", "swapped_bytes"} <= unread
    assert {"throttle_events", "frequency_mhz", "temperature_c", "available_bytes"} <= unread
    made = Monitor(Processor(tmp_path)).after(Monitor(Processor(tmp_path)).before())
    assert made.cpu.foreign_cpu_s is None
    assert made.gpu is None
    assert disturbances([made], 2).reasons == []


def test_places_in_the_list_name_no_core_where_one_is_off_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3})
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [SimpleNamespace(user=1.0)] * 3)
    assert Processor().read().busy_s is None


def test_this_machine_can_be_read() -> None:
    monitor = Monitor.of("cpu")
    made = monitor.after(monitor.before())
    assert made.wall_s > 0
    assert (made.cpu.own_cpu_s or 0) >= 0
    assert RepeatEnvironment.model_validate_json(to_json(made)) == made


def test_quota_of_either_cgroup(tmp_path: Path) -> None:
    assert facts.quota_cores(tmp_path) is None
    v1 = write(
        tmp_path / "v1",
        {
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert facts.quota_cores(v1) == 1.5
    v2 = write(tmp_path / "v2", {"sys/fs/cgroup/cpu.max": "200000 100000\n"})
    assert facts.quota_cores(v2) == 2
    assert (
        facts.quota_cores(write(tmp_path / "no", {"sys/fs/cgroup/cpu.max": "max 100000"})) is None
    )
    unlimited = {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n"}
    assert facts.quota_cores(write(tmp_path / "minus", unlimited)) is None


# Before and after.

BEFORE = CpuReading(
    at_s=10.0,
    own_cpu_s=4.0,
    busy_s=100.0,
    steal_s=1.0,
    run_wait_s=0.5,
    quota_wait_s=0.0,
    throttle_events=7,
    load_average=0.5,
    voluntary_switches=10,
    involuntary_switches=1,
    major_faults=5,
    swapped_bytes=1000,
    available_bytes=9,
)
AFTER = replace(
    BEFORE,
    at_s=12.0,
    own_cpu_s=7.0,
    busy_s=103.5,
    steal_s=1.1,
    run_wait_s=1.5,
    throttle_events=9,
    frequency_mhz=2400.0,
    load_average=1.5,
    involuntary_switches=21,
    available_bytes=8,
)


class Scripted:
    """A processor or a GPU that gives the readings of a list, and counts what it was asked."""

    usable_cores = 2

    def __init__(self, *readings: Any) -> None:
        self.readings = list(readings)
        self.peaks = 0

    def read(self) -> Any:
        return self.readings.pop(0)

    def start_peak(self) -> None:
        self.peaks += 1


def test_a_repeat_is_the_difference_of_two_readings() -> None:
    device = Scripted(
        GpuReading(energy_j=100.0, throttle_reasons=frozenset(), foreign_processes=1),
        GpuReading(
            energy_j=160.0,
            sm_clock_mhz=1500,
            throttle_reasons=frozenset({"power cap"}),
            foreign_processes=0,
        ),
    )
    monitor = Monitor(Scripted(BEFORE, AFTER), device)
    made = monitor.after(monitor.before())
    assert device.peaks == 1
    assert made.wall_s == 2.0
    assert made.cpu.own_cpu_s == 3.0
    assert made.cpu.foreign_cpu_s == pytest.approx(3.5 - 3.0)
    assert made.cpu.steal_s == pytest.approx(0.1)
    assert made.cpu.run_wait_s == 1.0
    assert (made.cpu.throttle_events, made.cpu.involuntary_switches) == (2, 20)
    assert (made.cpu.load_average, made.cpu.available_bytes) == (1.5, 8)
    assert made.gpu is not None
    assert made.gpu.energy_j == 60.0
    assert made.gpu.throttle_reasons == ["power cap"]
    assert made.gpu.foreign_processes == 1, "seen at either end"
    assert made.gpu.power_throttled_s is None


def test_ticks_may_lag_behind_the_exact_clock() -> None:
    made = cpu_environment(BEFORE, replace(AFTER, busy_s=102.9), 2)
    assert made.foreign_cpu_s == 0.0


def test_a_counter_that_started_again_is_no_negative_time() -> None:
    made = gpu_environment(GpuReading(energy_j=50.0), GpuReading(energy_j=20.0))
    assert made.energy_j == 0.0


# Shares.


def repeat(
    wall_s: float = 1.0,
    own: float = 2.0,
    foreign: float = 0.0,
    steal: float = 0.0,
    wait: float | None = 0.0,
    gpu: GpuEnvironment | None = None,
    **cpu: Any,
) -> RepeatEnvironment:
    """One repeat on two usable cores."""
    values = {"usable_cores": 2, "own_cpu_s": own, "foreign_cpu_s": foreign, "steal_s": steal}
    return RepeatEnvironment(
        wall_s=wall_s, cpu=CpuEnvironment(**values, run_wait_s=wait, **cpu), gpu=gpu
    )


def test_shares_by_hand() -> None:
    one = repeat(wall_s=2.0, own=3.0, foreign=1.0, steal=0.4, wait=1.0, quota_wait_s=0.2)
    both = figures(one, compute_threads=2)
    assert both["foreign_cores"] == 0.5
    assert both["crowding"] == 0.5 / 2, "no core is left over, so it came from the two in use"
    assert both["waiting"] == 1.0 / (3.0 + 1.0)
    assert both["steal"] == 0.4 / (2.0 * 2)
    assert both["quota"] == 0.2 / (2.0 * 2)
    assert figures(one, compute_threads=1)["crowding"] == 0.0, "the other core had room for it"
    more = repeat(foreign=1.5)
    assert figures(more, compute_threads=1)["crowding"] == 0.5


def test_short_repeats_are_put_together() -> None:
    parts = [repeat(wall_s=0.2, foreign=f, steal=0.01, swapped_bytes=1) for f in (0.1, 0.2, 0.3)]
    together = spans([*parts, repeat(wall_s=3.0), repeat(wall_s=0.1, foreign=0.05)])
    assert [round(s.wall_s, 3) for s in together] == [0.6, 3.1]
    assert together[0].cpu.foreign_cpu_s == pytest.approx(0.6)
    assert together[0].cpu.swapped_bytes == 3
    assert together[1].cpu.foreign_cpu_s == pytest.approx(0.05)
    assert spans([]) == []
    unknown = spans([repeat(wall_s=0.2), repeat(wall_s=0.2, wait=None)])
    assert unknown[0].cpu.run_wait_s is None


def test_the_summary_keeps_what_is_known_and_names_the_rest() -> None:
    hot = GpuEnvironment(energy_j=5.0, throttle_reasons=["power cap"], peak_allocated_bytes=10)
    cool = GpuEnvironment(energy_j=7.0, throttle_reasons=[], peak_allocated_bytes=30)
    made = summarise([repeat(foreign=0.2, gpu=hot), repeat(foreign=0.4, gpu=cool)], 2)
    assert made.figures["foreign_cores"].model_dump() == pytest.approx(
        {"median": 0.3, "low": 0.2, "high": 0.4, "n": 2}
    )
    assert made.energy_j == 12.0
    assert made.throttle_reasons == {"power cap": 1}
    assert made.figures["gpu_peak_allocated_bytes"].high == 30
    assert {"quota", "frequency_mhz", "gpu_sm_clock_mhz"} <= set(made.unreadable)
    assert Environment.model_validate_json(to_json(made)) == made
    assert summarise([], 2).repeats == 0


# What disturbs.


def test_a_quiet_machine_has_nothing_said_of_it() -> None:
    quiet = [repeat(foreign=0.03, steal=0.01, wait=0.02) for _ in range(48)]
    assert disturbances(quiet, 2) == disturbances([], 2)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"foreign": 1.0}, "other processes took 50%"),
        ({"wait": 2.0}, "ready without a core for 50%"),
        ({"steal": 0.4}, "hypervisor gave 20%"),
        ({"quota_wait_s": 0.5}, "CPU quota held this run back for 25%"),
        ({"throttle_events": 2}, "throttled for heat (2 events at most)"),
        ({"gpu": GpuEnvironment(foreign_processes=1)}, "on the GPU (1 at most)"),
        ({"gpu": GpuEnvironment(thermal_throttled_s=0.5)}, "heat held the GPU's clocks down"),
        ({"gpu": GpuEnvironment(throttle_reasons=["power brake"])}, "GPU throttled: power brake"),
    ],
)
def test_what_lasts_spoils_and_what_passes_is_said(bad: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {"quota_wait_s": 0.0, "throttle_events": 0}
    if "gpu" in bad:
        good["gpu"] = GpuEnvironment(
            foreign_processes=0, thermal_throttled_s=0.0, throttle_reasons=[]
        )
    lasting = disturbances([repeat(**bad) for _ in range(8)], 2)
    assert len(lasting.reasons) == 1
    assert words in lasting.reasons[0]
    passing = disturbances([repeat(**bad)] * 2 + [repeat(**good)] * 6, 2)
    assert passing.reasons == []
    assert len(passing.flags) == 1


def test_single_moments_and_small_shares_are_the_machines_own_affair() -> None:
    once = [repeat(foreign=1.0), *[repeat()] * 19]
    assert disturbances(once, 2).flags == []
    slight = disturbances([repeat(foreign=0.3)] * 8, 2)
    assert slight.reasons == []
    assert "other processes took 15% (most: 15%)" in slight.flags[0]
    assert "8 of 8 spans" in slight.flags[0]


def test_a_neighbour_on_a_core_that_is_left_over_is_said() -> None:
    found = disturbances([repeat(own=1.0, foreign=0.9)] * 8, compute_threads=1)
    assert found.reasons == []
    assert "kept up to 0.9 of 2 cores busy beside the 1" in found.flags[0]


def test_a_gpu_at_its_power_limit_is_said_and_stays_valid() -> None:
    capped = GpuEnvironment(power_throttled_s=0.9, throttle_reasons=["power cap"])
    found = disturbances([repeat(gpu=capped)] * 8, 1)
    assert found.reasons == []
    assert "power limit held the GPU's clocks down for 90%" in found.flags[0]


# NVML.


class NVMLError(Exception):
    """As ``pynvml.NVMLError``."""


class Nvml:
    """A made-up NVML with one device; ``absent`` calls are not supported by it."""

    NVMLError = NVMLError

    def __init__(self, pids: tuple[int, ...] = (), absent: tuple[str, ...] = ()) -> None:
        self.pids = pids
        self.absent = absent
        self.answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: f"device {index}",
            "nvmlDeviceGetTotalEnergyConsumption": lambda _: 12_345,
            "nvmlDeviceGetPowerUsage": lambda _: 250_000,
            "nvmlDeviceGetClockInfo": lambda _, kind: {1: 1980, 2: 2619}[kind],
            "nvmlDeviceGetMaxClockInfo": lambda _, kind: 1980,
            "nvmlDeviceGetTemperature": lambda _, sensor: 61,
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=97),
            "nvmlDeviceGetViolationStatus": lambda _, policy: SimpleNamespace(
                violationTime={0: 2_000_000_000, 1: 500_000_000}[policy]
            ),
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: 0x1 | 0x4 | 0x20,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 0x8,
            "nvmlDeviceGetComputeRunningProcesses": lambda _: [
                SimpleNamespace(pid=pid) for pid in self.pids
            ],
        }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("nvml") and name in self.absent:
            raise NVMLError("not supported")
        if name in self.answers:
            return self.answers[name]
        raise AttributeError(name)


class Cuda:
    """As much of ``torch.cuda`` as is read."""

    def __init__(self) -> None:
        self.resets = 0

    def is_initialized(self) -> bool:
        return True

    def memory_allocated(self, device: str) -> int:
        return 100

    def max_memory_allocated(self, device: str) -> int:
        return 700

    def reset_peak_memory_stats(self, device: str) -> None:
        self.resets += 1

    def get_device_properties(self, device: str) -> SimpleNamespace:
        return SimpleNamespace(uuid="abc")


def opened(nvml: Nvml) -> Gpu:
    found = Gpu.open("cuda:0", nvml)
    assert found is not None
    return found


def test_nvml_in_the_units_of_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_torch_cuda", Cuda)
    device = opened(Nvml(pids=(os.getpid(), 77)))
    assert device.has_nvml
    assert device.read() == GpuReading(
        energy_j=12.345,
        power_w=250.0,
        sm_clock_mhz=1980,
        memory_clock_mhz=2619,
        temperature_c=61,
        utilisation=0.97,
        power_throttled_s=2.0,
        thermal_throttled_s=0.5,
        throttle_reasons=frozenset({"power cap", "heat (software)"}),
        foreign_processes=1,
        peak_allocated_bytes=700,
        allocated_bytes=100,
    )


def test_the_device_is_found_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several devices, and numbers that may differ from CUDA's, no guess is made."""
    monkeypatch.setattr(gpu, "_torch_cuda", Cuda)
    nvml = Nvml()
    nvml.answers["nvmlDeviceGetCount"] = lambda: 2
    assert not opened(nvml).has_nvml
    nvml.answers["nvmlDeviceGetHandleByUUID"] = lambda uuid: uuid
    assert opened(nvml)._handle == "GPU-abc"


def test_unsupported_questions_and_absent_drivers_are_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_torch_cuda", lambda: None)
    whole = opened(Nvml())
    assert whole.read().energy_j == 12.345
    names = tuple(name for name in Nvml().answers if name.startswith("nvmlDeviceGet"))
    kept = ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")
    poor = opened(Nvml(absent=tuple(n for n in names if n not in kept)))
    assert poor.has_nvml
    assert poor.read() == GpuReading()
    older = opened(Nvml(absent=("nvmlDeviceGetCurrentClocksEventReasons",)))
    assert older.read().throttle_reasons == frozenset({"hardware slowdown"})
    monkeypatch.setattr(gpu, "load_nvml", lambda: None)
    none = Gpu.open("cuda:0")
    assert none is not None
    assert (none.has_nvml, none.read()) == (False, GpuReading())
    none.start_peak()
    assert Gpu.open("cpu") is None


def test_process_ids_of_the_host_do_not_make_this_process_a_stranger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "_torch_cuda", Cuda)
    inside = os.getpid() + 1
    assert opened(Nvml(pids=(inside,))).read().foreign_processes == 0
    assert opened(Nvml(pids=(inside, inside + 1))).read().foreign_processes == 1
    assert opened(Nvml(pids=())).read().foreign_processes == 0
    monkeypatch.setattr(gpu, "_torch_cuda", lambda: None)
    assert opened(Nvml(pids=(inside,))).read().foreign_processes == 1, "this process uses no GPU"


# Files that must not change.


def test_a_changed_source_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "1", "deep/b.py": "2", "notes.txt": "3"})
    watched = Unchanged.now(package=tmp_path)
    before = source_sha256(tmp_path)
    assert watched.changed_sources(tmp_path) == []
    write(tmp_path, {"notes.txt": "33"})
    (tmp_path / "a.py").touch()
    os.utime(tmp_path / "a.py", ns=(1, 1))
    assert watched.changed_sources(tmp_path) == [], "touched, but the same"
    assert source_sha256(tmp_path) == before
    write(tmp_path, {"deep/b.py": "4", "c.py": ""})
    (tmp_path / "a.py").unlink()
    assert watched.changed_sources(tmp_path) == ["a.py", "c.py", "deep/b.py"]
    assert source_sha256(tmp_path) != before
    assert source_sha256(tmp_path, ("deep",)) != source_sha256(tmp_path)


def test_a_changed_model_file_is_named(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    watched = Unchanged.now({weights: sha256_file(weights)}, package=tmp_path)
    assert watched.changed_models() == []
    os.utime(weights, ns=(5, 5))
    assert watched.changed_models() == []
    weights.write_bytes(b"others")
    assert watched.changed_models() == ["model.safetensors"]
    weights.unlink()
    assert watched.changed_models() == ["model.safetensors"]


# Noise.


def test_noise_by_hand() -> None:
    """Work that takes 10 ms, and every third run of a block 1 ms more."""
    now = 0.0
    calls = 0

    def work() -> None:
        nonlocal now, calls
        calls += 1
        now += 0.010

    found = probe(work, blocks=4, run_s=0.020, clock=lambda: now)
    assert found.spread == pytest.approx(0, abs=1e-12)
    assert found.run_s == pytest.approx(0.020)
    assert calls == 1 + 4 * 4 * 2, "once to find the length, then two a run"
    # t(0.975, 5) = 2.5706: exp(2.5706·0.01/√6) − 1
    assert Noise(12, 0.02, 0.01).visible_effect(6) == pytest.approx(0.010549, abs=1e-6)
    with pytest.raises(ValueError, match="two"):
        probe(work, blocks=1, clock=lambda: now)


def test_noise_shows_in_the_spread() -> None:
    now = 0.0
    runs = 0

    def work() -> None:
        nonlocal now, runs
        runs += 1
        now += 0.1 * (1.2 if runs % 7 == 0 else 1.0)

    found = probe(work, blocks=6, run_s=0.1, clock=lambda: now)
    assert 0.01 < found.spread < 0.2
    assert found.visible_effect(6) > found.visible_effect(12) > 0

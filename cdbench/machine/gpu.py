"""The GPU through NVML, NVIDIA's management library: clocks, heat, throttling, energy, neighbours.

Read before and after a timed region, never by a thread within it. What a device does not support
is null, and so is everything without a driver. Unproven on hardware so far: the tests speak to an
NVML that is made up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Bits of nvmlDeviceGetCurrentClocksEventReasons, from NVIDIA's NVML reference. An idle GPU and
# clocks set on purpose hold nothing back that was asked for.
THROTTLES: dict[int, str] = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}

_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_TEMPERATURE = 0
_POLICY_POWER, _POLICY_THERMAL = 0, 1


@dataclass(frozen=True)
class GpuReading:
    """Counters and gauges at one moment; counters count from when the driver was loaded."""

    energy_j: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    utilisation: float | None = None
    power_throttled_s: float | None = None
    thermal_throttled_s: float | None = None
    throttle_reasons: frozenset[str] | None = None
    foreign_processes: int | None = None
    peak_allocated_bytes: int | None = None
    allocated_bytes: int | None = None


class Gpu:
    """One CUDA device. Without NVML only torch's allocator is read."""

    def __init__(self, device: str, nvml: Any | None, handle: Any | None) -> None:
        self.device = device
        self._nvml = nvml
        self._handle = handle

    @classmethod
    def open(cls, device: str, nvml: Any | None = None) -> Gpu | None:
        """The GPU that a torch device string names; None for a CPU. ``nvml``: as ``pynvml``."""
        if device.partition(":")[0] != "cuda":
            return None
        library = nvml if nvml is not None else load_nvml()
        return cls(device, library, None if library is None else _handle(library, device))

    @property
    def has_nvml(self) -> bool:
        """Whether the device was found through NVML."""
        return self._handle is not None

    def start_peak(self) -> None:
        """Count the most allocated memory from here."""
        if (cuda := _torch_cuda()) is not None:
            cuda.reset_peak_memory_stats(self.device)

    def read(self) -> GpuReading:
        """Everything now."""
        cuda = _torch_cuda()
        allocated = peak = None
        if cuda is not None:
            allocated = int(cuda.memory_allocated(self.device))
            peak = int(cuda.max_memory_allocated(self.device))
        return GpuReading(
            energy_j=_scaled(self._ask("nvmlDeviceGetTotalEnergyConsumption"), 1e-3),
            power_w=_scaled(self._ask("nvmlDeviceGetPowerUsage"), 1e-3),
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", _SM_CLOCK),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
            temperature_c=self._ask("nvmlDeviceGetTemperature", _TEMPERATURE),
            utilisation=_scaled(getattr(self._ask("nvmlDeviceGetUtilizationRates"), "gpu", None)),
            power_throttled_s=self._held_down_s(_POLICY_POWER),
            thermal_throttled_s=self._held_down_s(_POLICY_THERMAL),
            throttle_reasons=self._throttle_reasons(),
            foreign_processes=self._foreign_processes(),
            peak_allocated_bytes=peak,
            allocated_bytes=allocated,
        )

    def most_sm_clock_mhz(self) -> float | None:
        """The highest clock of the cores."""
        clock: float | None = self._ask("nvmlDeviceGetMaxClockInfo", _SM_CLOCK)
        return clock

    def _held_down_s(self, policy: int) -> float | None:
        """Seconds for which a policy has held the clocks down: the driver counts nanoseconds."""
        status = self._ask("nvmlDeviceGetViolationStatus", policy)
        return _scaled(getattr(status, "violationTime", None), 1e-9)

    def _throttle_reasons(self) -> frozenset[str] | None:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # an older driver has the older name
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        if bits is None:
            return None
        return frozenset(name for bit, name in THROTTLES.items() if bits & bit)

    def _foreign_processes(self) -> int | None:
        """Compute processes of others.

        In a container NVML gives the host's process ids, among which this one is not found; then
        one of them is taken to be this process, if it uses the device.
        """
        running = self._ask("nvmlDeviceGetComputeRunningProcesses")
        if running is None:
            return None
        ids = {process.pid for process in running}
        if os.getpid() in ids:
            return len(ids) - 1
        cuda = _torch_cuda()
        return max(0, len(ids) - int(cuda is not None and cuda.is_initialized()))

    def _ask(self, call: str, *arguments: int) -> Any | None:
        """What NVML answers; None where the device or the driver does not support the question."""
        if self._handle is None:
            return None
        return _attempt(lambda: getattr(self._nvml, call)(self._handle, *arguments), self._nvml)


def load_nvml() -> Any | None:
    """NVML's Python binding, started; None without the package or without a driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _handle(nvml: Any, device: str) -> Any | None:
    """NVML's handle of a CUDA device: by its UUID, as the two may number devices differently."""
    cuda = _torch_cuda()
    if cuda is not None:
        uuid = getattr(cuda.get_device_properties(device), "uuid", None)
        if uuid is not None:
            found = _attempt(lambda: nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"), nvml)
            if found is not None:
                return found
    if _attempt(nvml.nvmlDeviceGetCount, nvml) == 1:
        return _attempt(lambda: nvml.nvmlDeviceGetHandleByIndex(0), nvml)
    return None


def _attempt(question: Callable[[], Any], nvml: Any) -> Any | None:
    try:
        return question()
    except (nvml.NVMLError, AttributeError):  # not supported by the device, or by this NVML
        return None


def _torch_cuda() -> Any | None:
    """``torch.cuda`` where torch is loaded and sees a device; it is never loaded for this."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_available() else None


def _scaled(value: float | None, factor: float = 0.01) -> float | None:
    """In the unit wanted; the default turns per cent into a fraction."""
    return None if value is None else value * factor

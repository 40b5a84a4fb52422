"""Who keeps the time of a launch: the host's clock, or on CUDA the device.

A launch ends where the host has its result, so on a CPU the host's clock sees all of it. A GPU runs
behind the host, and waiting for it after every launch would change what is measured: there an event
is recorded before the launch's first kernel and after its last, and the times are read once
somebody asks for them, after the run. What the host prepares beforehand is no part of it: a device
that has run out of work meanwhile was idle. The events' times are brought to the host's clock at
one point of each run.

The CUDA timer has been tested with made-up events only: it has not been run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from cdbench.runtime.core import (
    Clock,
    IntArray,
    LaunchLog,
    LaunchObserver,
    LaunchRecord,
    Stage,
)


class DeviceEvent(Protocol):
    """A point of a device's work, as ``torch.cuda.Event`` with timing has it."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to ``end_event``, another of its kind."""
        ...


Mark = float | DeviceEvent
"""When a launch began: a time, or an event that will tell."""

LaunchKind = tuple[Stage, int, int, IntArray | None, int, int]
"""A ``LaunchRecord`` up to its times: stage, decode and prefill rows, loops, context, runnable."""


class LaunchTimer(Protocol):
    """Times launches and tells an observer of them."""

    def start(self) -> Mark: ...

    def prepared(self, began: Mark) -> None:
        """The host has made ready what it began: a device's part of the launch begins here."""
        ...

    def finish(self, began: Mark, what: LaunchKind) -> None: ...


class HostTimer:
    """The host's clock; ``wait`` first brings a device that runs behind up to the host."""

    def __init__(
        self, clock: Clock, observer: LaunchObserver, wait: Callable[[], None] | None = None
    ) -> None:
        self._clock, self._observer, self._wait = clock, observer, wait

    def start(self) -> float:
        return self._clock.now()

    def prepared(self, began: Mark) -> None:
        """On a CPU the preparation is part of the launch."""

    def finish(self, began: Mark, what: LaunchKind) -> None:
        assert isinstance(began, float)
        if self._wait is not None:
            self._wait()
        took_s = self._clock.now() - began
        self._observer.launched(LaunchRecord(*what, began, took_s))


class EventTimer:
    """Events around every launch; the log has the records once it is read."""

    def __init__(self, clock: Clock, log: LaunchLog, make_event: Callable[[], DeviceEvent]) -> None:
        self._clock, self._log, self._make_event = clock, log, make_event
        self._free: list[DeviceEvent] = []
        self._zero: DeviceEvent | None = None
        self._zero_s = 0.0

    def start(self) -> DeviceEvent:
        if self._zero is None or not self._log.awaits_device:
            self._anchor()
        return self._recorded()

    def prepared(self, began: Mark) -> None:
        assert not isinstance(began, float)
        began.record()

    def finish(self, began: Mark, what: LaunchKind) -> None:
        assert not isinstance(began, float)
        assert self._zero is not None
        begin, end, zero, zero_s = began, self._recorded(), self._zero, self._zero_s

        def resolved() -> LaunchRecord:
            end.synchronize()
            start_s = zero_s + zero.elapsed_time(begin) / 1e3
            took_s = begin.elapsed_time(end) / 1e3
            self._free += [begin, end]
            return LaunchRecord(*what, start_s, took_s)

        self._log.launched_on_device(resolved)

    def _anchor(self) -> None:
        """Find what the host's clock says at one event: once a run, before its first launch."""
        self._zero = self._make_event()
        self._zero.record()
        self._zero.synchronize()
        self._zero_s = self._clock.now()

    def _recorded(self) -> DeviceEvent:
        event = self._free.pop() if self._free else self._make_event()
        event.record()
        return event


def launch_timer(
    device: torch.device, clock: Clock, observer: LaunchObserver | None
) -> LaunchTimer | None:
    """The timer for a device; None where nobody watches.

    An observer that is no ``LaunchLog`` wants every record at once, and a GPU is waited for.
    """
    if observer is None:
        return None
    if device.type != "cuda":
        return HostTimer(clock, observer)
    if isinstance(observer, LaunchLog):
        return EventTimer(clock, observer, _cuda_event)
    return HostTimer(clock, observer, lambda: torch.cuda.synchronize(device))


def _cuda_event() -> DeviceEvent:
    event: DeviceEvent = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event

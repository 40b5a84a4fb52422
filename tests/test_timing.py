"""Who keeps the time of a launch: the host's clock, or events of a device that runs behind."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from cdbench.models.base import StagedModel
from cdbench.runtime.core import ExitPolicy, LaunchLog, LaunchRecord, Request, Stage
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.timing import EventTimer, HostTimer, Mark, launch_timer
from tests import tiny
from tests.tiny import StepClock


@dataclass
class FakeDevice:
    """A device whose own time, in ms, only a test moves."""

    time_ms: float = 1000.0
    waits: int = 0
    events: list[FakeEvent] = field(default_factory=list)

    def event(self) -> FakeEvent:
        self.events.append(FakeEvent(self))
        return self.events[-1]


@dataclass
class FakeEvent:
    device: FakeDevice
    at_ms: float | None = None

    def record(self) -> None:
        self.at_ms = self.device.time_ms

    def synchronize(self) -> None:
        self.device.waits += 1

    def elapsed_time(self, end_event: FakeEvent) -> float:
        assert self.at_ms is not None
        assert end_event.at_ms is not None
        return end_event.at_ms - self.at_ms


@dataclass
class Watch:
    """An observer that is no log."""

    seen: list[LaunchRecord] = field(default_factory=list)

    def launched(self, record: LaunchRecord) -> None:
        self.seen.append(record)


def launch(timer: HostTimer | EventTimer, device: FakeDevice, took_ms: float) -> Mark:
    began = timer.start()
    device.time_ms += took_ms
    timer.finish(began, (Stage.CORE, 3, 0, None, 9, 4))
    return began


def test_the_hosts_clock_times_a_launch_at_once() -> None:
    log = LaunchLog()
    launch(HostTimer(StepClock(), log), FakeDevice(), 0.0)
    assert log.records == [LaunchRecord(Stage.CORE, 3, 0, None, 9, 4, 1.0, 1.0)]


def test_a_device_that_runs_behind_is_waited_for_before_the_clock_is_read() -> None:
    clock, watch = StepClock(), Watch()

    def wait() -> None:
        clock.time_s += 10.0

    launch(HostTimer(clock, watch, wait), FakeDevice(), 0.0)
    assert watch.seen[0].duration_s == 11.0


def test_events_are_brought_to_the_hosts_clock_and_nothing_waits_while_it_runs() -> None:
    device, clock, log = FakeDevice(), StepClock(), LaunchLog()
    timer = EventTimer(clock, log, device.event)
    clock.time_s = 50.0
    launch(timer, device, took_ms=8.0)  # the run starts here: 51 s on the host, 1000 ms on it
    device.time_ms += 2.0
    launch(timer, device, took_ms=5.0)
    assert device.waits == 1, "to find the beginning of the run, and no more"
    waiting_before = log.awaits_device
    starts = [(r.start_s, r.duration_s) for r in log.records]
    assert starts == [pytest.approx((51.0, 0.008)), pytest.approx((51.010, 0.005))]
    assert (waiting_before, log.awaits_device) == (True, False)
    assert log.records == log.records, "read again they are the same"


def test_what_the_host_prepares_is_no_part_of_a_launch_on_a_device() -> None:
    """A device that has run out of work meanwhile was idle, not busy."""
    device, log = FakeDevice(), LaunchLog()
    timer = EventTimer(StepClock(), log, device.event)
    began = timer.start()
    device.time_ms += 4.0  # the host writes tables and copies them
    timer.prepared(began)
    device.time_ms += 3.0
    timer.finish(began, (Stage.CORE, 3, 0, None, 9, 4))
    (record,) = log.records
    assert (record.start_s, record.duration_s) == pytest.approx((1.004, 0.003))


def test_on_the_hosts_clock_it_is() -> None:
    log, clock = LaunchLog(), StepClock()
    timer = HostTimer(clock, log)
    began = timer.start()
    clock.time_s += 4.0
    timer.prepared(began)
    timer.finish(began, (Stage.CORE, 3, 0, None, 9, 4))
    assert log.records[0].duration_s == 5.0


@pytest.mark.parametrize("graphs", [False, True])
def test_every_launch_of_an_engine_says_when_it_is_prepared(graphs: bool) -> None:
    """But for the readout of prompts, whose inputs are on the device already."""
    device, log, prepared = FakeDevice(), LaunchLog(), []

    class Told(EventTimer):
        def prepared(self, began: Mark) -> None:
            prepared.append(began)

    engine = Engine(tiny.huginn(), EngineConfig(max_residents=2, graphs=graphs), observer=log)
    engine.runner.timer = Told(engine.clock, log, device.event)
    assert len(list(engine.run([Request("a", [1, 2, 3], max_new_tokens=4)]))) == 1
    assert len(prepared) == len(log.records) - 1


def test_each_run_finds_its_beginning_anew_and_events_are_used_again() -> None:
    device, clock, log = FakeDevice(), StepClock(), LaunchLog()
    timer = EventTimer(clock, log, device.event)
    launch(timer, device, 8.0)
    log.records.clear()
    used = len(device.events)
    clock.time_s = 200.0  # the host's clock has gone elsewhere meanwhile
    launch(timer, device, 3.0)
    (record,) = log.records
    assert (record.start_s, record.duration_s) == pytest.approx((201.0, 0.003))
    assert len(device.events) == used + 1, "only the new beginning needed one"


def test_a_launch_that_was_begun_and_never_ended_leaves_no_record() -> None:
    device, log = FakeDevice(), LaunchLog()
    timer = EventTimer(StepClock(), log, device.event)
    timer.start()
    launch(timer, device, 3.0)
    assert [r.duration_s for r in log.records] == [pytest.approx(0.003)]


def test_who_times_depends_on_the_device_and_on_who_watches() -> None:
    cpu, cuda, clock = torch.device("cpu"), torch.device("cuda"), StepClock()
    assert launch_timer(cpu, clock, None) is None
    assert launch_timer(cuda, clock, None) is None
    assert isinstance(launch_timer(cpu, clock, LaunchLog()), HostTimer)
    assert isinstance(launch_timer(cuda, clock, LaunchLog()), EventTimer)
    assert isinstance(launch_timer(cuda, clock, Watch()), HostTimer)


def test_an_engine_timed_by_events_makes_the_launches_it_makes_by_the_clock(
    tiny_ouro: StagedModel,
) -> None:
    device = FakeDevice()
    config = EngineConfig(max_residents=2, prefill_tokens=4)
    logs = LaunchLog(), LaunchLog()
    for log in logs:
        engine = Engine(tiny_ouro, config, observer=log)
        if log is logs[1]:
            engine.runner.timer = EventTimer(engine.clock, log, device.event)
        requests = [
            Request(str(i), [1 + i, 2, 3], max_new_tokens=4, exit=ExitPolicy("cdf", 0.5))
            for i in range(3)
        ]
        assert len(list(engine.run(requests))) == 3
    by_clock, by_events = ([r[:3] + r[4:6] for r in log.records] for log in logs)
    assert by_clock == by_events
    assert len(by_events) > 10

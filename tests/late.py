"""A device that runs behind: what it says is there only once the host has waited for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdbench.runtime.core import LaunchRecord, Stage
from cdbench.runtime.engine import Engine
from cdbench.runtime.readback import EventLink

Happening = tuple[str, int]
"""``("launch", n)``, ``("fetch", n)`` or ``("wait", n)``: the nth launch, or the nth readback."""


@dataclass
class LateDevice:
    """Notes launches, readbacks and waits in their order; it is an observer of launches too."""

    journal: list[Happening] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    fetched: int = 0
    reached: int = 0
    """Readbacks that are known to have arrived: waiting for one brings all before it."""

    def launched(self, record: LaunchRecord) -> None:
        self.journal.append(("launch", len(self.stages)))
        self.stages.append(record.stage)

    def event(self) -> LateEvent:
        return LateEvent(self)

    def take(self, engine: Engine) -> Engine:
        """Make an engine's readbacks come from here."""
        engine.runner.link = EventLink(self.event, pinned=False)
        return engine


@dataclass
class LateEvent:
    """The point behind a readback."""

    device: LateDevice
    number: int = -1

    def record(self) -> None:
        self.number = self.device.fetched
        self.device.fetched += 1
        self.device.journal.append(("fetch", self.number))

    def query(self) -> bool:
        return self.number < self.device.reached

    def synchronize(self) -> None:
        if not self.query():
            self.device.journal.append(("wait", self.number))
            self.device.reached = self.number + 1

"""What every part is given: where to run, how small, and what other parts have found."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdbench.bench.once import Kept
from cdbench.config import RunConfig, load_config
from scripts.gpu_parts.record import Record


class TimeUp(KeyboardInterrupt):
    """The part has run for as long as it may. A run takes it as an interruption, and keeps what
    it has measured."""


class NotAvailable(Exception):
    """This version or machine does not offer what the part is about; the message says why."""


@dataclass
class Check:
    """One check as its parts see it. ``once`` holds what they share: each model is loaded once.

    ``ends_s``: when the part at hand will be cut, on ``time.monotonic``.
    """

    device: str
    tiny: bool
    folder: Path
    record: Record
    once: Kept = field(default_factory=Kept)
    ends_s: float = float("inf")

    @property
    def left_s(self) -> float:
        """Seconds until the part is cut."""
        return self.ends_s - time.monotonic()

    def config(self, flags: dict[str, Any]) -> RunConfig:
        """A run configuration on this device. UsageError for a key that is refused."""
        return load_config(None, (), {"device": self.device, **flags})

    def proven_keys(self) -> dict[str, Any]:
        """Engine keys that parts run before have shown to change no token.

        Graphs are on where that part found no fault; what was not run, or is not there, is left at
        its default. A kernel that changed tokens is not timed.
        """
        keys: dict[str, Any] = {}
        if self.record.clean("graphs"):
            keys["engine.graphs"] = True
        elif "graphs" in self.record.bad:
            keys["engine.graphs"] = False
        if "attention" in self.record.bad:
            keys["engine.attention"] = "sdpa"
        return keys

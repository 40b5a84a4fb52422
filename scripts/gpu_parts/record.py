"""The document of a check: one entry a part, on disk as soon as the part has ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from cdbench.schema.files import write_whole

VERSION = 1
MARKS = (
    "timed parts: random weights, random prompts, replayed synthetic depths; timings only",
    "graphs, attention, changed, exact: the demo models, on their tasks' prompts",
)

Status = Literal["done", "cut", "failed", "skipped", "not available"]


class Record:
    """The document in ``path``. ``resumed`` goes on with the one that is there."""

    def __init__(self, path: Path, resumed: bool = False) -> None:
        self.path = path
        self.document: dict[str, Any] = {"kind": "gpu-check", "version": VERSION}
        if resumed:
            self.document = json.loads(path.read_text(encoding="utf-8"))

    @property
    def parts(self) -> dict[str, Any]:
        """Name → entry: ``status``, ``seconds``, ``found``; ``why`` where it is not done."""
        found: dict[str, Any] = self.document.get("parts", {})
        return found

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Write a document of no part yet."""
        self.document |= {**facts, "marks": list(MARKS), "parts": {}}
        self._write()

    def keep(
        self,
        name: str,
        status: Status,
        *,
        seconds: float = 0.0,
        found: Mapping[str, Any] | None = None,
        why: str | None = None,
        traceback: list[str] | None = None,
    ) -> None:
        """Keep how a part ended, and what it found until then."""
        entry: dict[str, Any] = {"status": status, "seconds": round(seconds, 2)}
        if why is not None:
            entry["why"] = why
        if traceback:
            entry["traceback"] = traceback
        self.parts[name] = {**entry, "found": dict(found or {})}
        self._write()

    def finish(self, seconds: float) -> None:
        """Keep how long all of it took."""
        self.document["seconds"] = round(seconds, 1)
        self._write()

    def found(self, name: str) -> dict[str, Any]:
        """What a part found; empty where it has not run."""
        kept: dict[str, Any] = self.parts.get(name, {}).get("found", {})
        return kept

    def clean(self, name: str) -> bool:
        """Whether a part ran to its end without a fault."""
        entry = self.parts.get(name, {})
        return bool(entry.get("status") == "done" and not entry["found"].get("faults"))

    @property
    def bad(self) -> list[str]:
        """Parts that failed or found a fault. What was skipped or cut is not known to be bad."""
        return [
            name
            for name, entry in self.parts.items()
            if entry["status"] == "failed" or entry["found"].get("faults")
        ]

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps(self.document, indent=1, allow_nan=False) + "\n")

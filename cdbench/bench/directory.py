"""The run directory: proved writable before anything runs, written so that nothing is lost."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from cdbench.errors import UsageError
from cdbench.schema import REQUESTS_FILE, RequestRecord, Result, to_json, write_result

RUNS = Path("results") / "runs"


class RunDirectory:
    """Where one run's files go. Raw records are appended whole as each repeat ends."""

    def __init__(self, path: Path, made: tuple[Path, ...] = ()) -> None:
        self.path = path
        self._made = made
        """The directories that did not exist before, innermost first."""

    @classmethod
    def create(cls, out: str | None, name: str) -> RunDirectory:
        """A new or empty directory; ``out`` None makes ``results/runs/<date>-<name>``.

        Raises UsageError where it cannot be written or already holds something: nothing is lost.
        """
        path = Path(out).expanduser() if out is not None else _unused(name)
        made = tuple(p for p in (path, *path.parents) if not p.exists())
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise UsageError(f"--out {path}: is not empty; name a new directory")
            probe = path / ".probe"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise UsageError(
                f"--out {path}: cannot be written ({error.strerror}); name another directory"
            ) from None
        return cls(path, made)

    def append_requests(self, records: Iterable[RequestRecord]) -> None:
        """Add the lines of one finished repeat, in one write."""
        lines = "".join(to_json(record, indent=None) + "\n" for record in records)
        with (self.path / REQUESTS_FILE).open("a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    def finish(self, result: Result) -> Path:
        """Write ``result.json``, last and whole."""
        return write_result(self.path, result)

    def discard_if_empty(self) -> None:
        """Remove what was made for a run that ended before it measured anything."""
        for directory in self._made:
            if not directory.is_dir() or any(directory.iterdir()):
                return
            directory.rmdir()


def _unused(name: str) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    slug = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"
    path, count = RUNS / f"{stamp}-{slug}", 1
    while path.exists():
        count += 1
        path = RUNS / f"{stamp}-{slug}-{count}"
    return path

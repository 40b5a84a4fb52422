"""A sweep on disk, and what of it is finished.

OUT/sweep.json                 the document, written anew after every cell
OUT/round-1/<hash>/            one run: result.json and its raw records, as `cdbench run` has it
OUT/round-1/<hash>/cell.json   how long it took;  failed.json in its place: why it failed
OUT/earlier/…                  attempts that failed or were interrupted, before they ran again
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from cdbench.errors import UsageError
from cdbench.schema import RESULT_FILE, Result, read_result
from cdbench.schema.files import read_document, write_document
from cdbench.schema.stages import STAGES_FILE, StageCurves
from cdbench.schema.sweep import (
    ATTEMPT_FILE,
    FAILED_FILE,
    SWEEP_FILE,
    CellAttempt,
    CellRound,
    SweepDocument,
)
from cdbench.sweep.cells import Cell
from cdbench.sweep.file import Verb

DEFAULT_PARENT = Path("results") / "runs"


@dataclass(frozen=True)
class SweepDirectory:
    """Where a sweep's cells lie. Nothing in it is ever overwritten but ``sweep.json``."""

    path: Path
    verb: Verb = "run"
    _finished: dict[Path, Result] = field(default_factory=dict, repr=False, compare=False)
    """Complete results that were read before: they do not change."""

    @classmethod
    def of(cls, out: str | None, name: str, verb: Verb = "run") -> SweepDirectory:
        """The directory of a sweep, there or not; ``out`` None is ``results/runs/sweep-NAME``."""
        path = DEFAULT_PARENT / f"sweep-{name}" if out is None else Path(out).expanduser()
        return cls(path, verb)

    def prepare(self, name: str) -> None:
        """Make it, or prove that it holds this sweep and can be written.

        Raises UsageError where it holds something else or cannot be written.
        """
        document = self.path / SWEEP_FILE
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if document.is_file():
                self._check_name(name)
            elif any(self.path.iterdir()):
                raise UsageError(
                    f"--out {self.path}: holds something that is no sweep; name a new directory"
                )
            probe = self.path / ".probe"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise UsageError(
                f"--out {self.path}: cannot be written ({error.strerror}); name another directory"
            ) from None

    def _check_name(self, name: str) -> None:
        there = read_document(SweepDocument, self.path / SWEEP_FILE)
        if (there.name, there.verb) != (name, self.verb):
            raise UsageError(
                f"--out {self.path}: holds the sweep {there.name!r} ({there.verb}), not {name!r} "
                f"({self.verb}); name another directory"
            )

    def cell(self, cell: Cell, round_number: int) -> Path:
        """The run directory of one cell in one round."""
        return self.path / f"round-{round_number}" / cell.hash

    def write(self, document: SweepDocument) -> None:
        """Write ``sweep.json`` whole."""
        write_document(self.path / SWEEP_FILE, document)

    def note(self, directory: Path, attempt: CellAttempt) -> None:
        """Keep what is known of an attempt beside its results."""
        directory.mkdir(parents=True, exist_ok=True)
        name = ATTEMPT_FILE if attempt.error is None else FAILED_FILE
        write_document(directory / name, attempt)

    def look(self, cell: Cell, round_number: int) -> CellRound:
        """What is on disk of one cell in one round."""
        directory = self.cell(cell, round_number)
        relative = directory.relative_to(self.path).as_posix()
        seen = CellRound(round=round_number, state="pending", directory=relative)
        if not directory.is_dir() or not any(directory.iterdir()):
            return seen
        attempt = self._attempt(directory)
        seconds = attempt.seconds if attempt is not None else None
        if attempt is not None and attempt.error is not None:
            return seen.model_copy(
                update={"state": "failed", "error": attempt.error, "seconds": seconds}
            )
        if self.verb == "stages":
            whole = (directory / STAGES_FILE).is_file() and attempt is not None
            state = "finished" if whole else "interrupted"
            verdict = "VALID" if whole else None
            return seen.model_copy(update={"state": state, "verdict": verdict, "seconds": seconds})
        result = self.result(directory)
        if result is None or result.status != "complete":
            return seen.model_copy(update={"state": "interrupted"})
        return seen.model_copy(
            update={
                "state": "finished",
                "verdict": result.validity.verdict,
                "reasons": result.validity.reasons,
                "flags": result.validity.flags,
                "seconds": seconds,
            }
        )

    def result(self, directory: Path) -> Result | None:
        """The result of a run, complete or not; None where it has none."""
        if directory in self._finished:
            return self._finished[directory]
        if not (directory / RESULT_FILE).is_file():
            return None
        result = read_result(directory)
        if result.status == "complete":
            self._finished[directory] = result
        return result

    def results(self, cell: Cell, rounds: int) -> list[Result]:
        """The complete results of a cell, round by round."""
        if self.verb != "run":
            return []
        found = (self.result(self.cell(cell, number)) for number in range(1, rounds + 1))
        return [result for result in found if result is not None and result.status == "complete"]

    def curves(self, cell: Cell, rounds: int) -> list[StageCurves]:
        """The stage curves of a cell, round by round."""
        files = (self.cell(cell, number) / STAGES_FILE for number in range(1, rounds + 1))
        return [read_document(StageCurves, file) for file in files if file.is_file()]

    def set_aside(self, directory: Path) -> None:
        """Move an attempt that did not finish out of the way, and keep it."""
        if not directory.is_dir():
            return
        earlier = self.path / "earlier"
        earlier.mkdir(exist_ok=True)
        stem = f"{directory.parent.name}-{directory.name}"
        count = 1
        while (earlier / f"{stem}-{count}").exists():
            count += 1
        os.replace(directory, earlier / f"{stem}-{count}")

    def strangers(self, cells: tuple[Cell, ...]) -> int:
        """Cells on disk that the sweep no longer has: an edited file leaves them."""
        known = {cell.hash for cell in cells}
        there = {path.name for path in self.path.glob("round-*/*") if path.is_dir()}
        return len(there - known)

    def _attempt(self, directory: Path) -> CellAttempt | None:
        for name in (FAILED_FILE, ATTEMPT_FILE):
            if (directory / name).is_file():
                return read_document(CellAttempt, directory / name)
        return None

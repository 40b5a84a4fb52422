"""A sweep on disk, and what of it is finished.

OUT/sweep.json                 the document, written anew after every cell
OUT/round-1/<hash>/            one run: result.json and its raw records, as `cdbench run` has it
OUT/round-1/<hash>/cell.json   how long it took;  failed.json in its place: why it failed
OUT/earlier/…                  attempts that failed or were interrupted, before they ran again
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cdbench.bench.places import CLAIM_FILE, claim_directory, typed_path
from cdbench.errors import UsageError
from cdbench.schema import RESULT_FILE, Result, read_result
from cdbench.schema.files import output_errors, read_document, write_document
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
Found = TypeVar("Found")


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
        path = DEFAULT_PARENT / f"sweep-{name}" if out is None else typed_path(out, "--out")
        return cls(path, verb)

    @contextlib.contextmanager
    def claimed(self, name: str) -> Iterator[None]:
        """Make it, or prove that it holds this sweep; it is this process's alone in the block.

        Raises UsageError where it holds something else, belongs to another process or cannot be
        written.
        """
        with claim_directory(self.path, "--out"):
            if (self.path / SWEEP_FILE).is_file():
                self._check_name(name)
            elif any(each.name != CLAIM_FILE for each in self.path.iterdir()):
                raise UsageError(
                    f"--out {self.path}: holds something that is no sweep; name a new directory"
                )
            yield

    def _check_name(self, name: str) -> None:
        try:
            there = read_document(SweepDocument, self.path / SWEEP_FILE)
        except UsageError:
            if _is_json(self.path / SWEEP_FILE):
                raise
            # Torn. It is made anew from the cells, whose directories are named by what they hold.
            return
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
        with output_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
        name = ATTEMPT_FILE if attempt.error is None else FAILED_FILE
        write_document(directory / name, attempt)

    def look(self, cell: Cell, round_number: int) -> CellRound:
        """What is on disk of one cell in one round; failed where its files cannot be read."""
        directory = self.cell(cell, round_number)
        relative = directory.relative_to(self.path).as_posix()
        seen = CellRound(round=round_number, state="pending", directory=relative)
        if not directory.is_dir() or not any(directory.iterdir()):
            return seen
        try:
            return self._look(directory, seen)
        except UsageError as error:
            why = f"its results cannot be read, --retry-failed runs it again: {error}"
            return seen.model_copy(update={"state": "failed", "error": why})

    def _look(self, directory: Path, seen: CellRound) -> CellRound:
        """What a cell's directory holds. UsageError where a file of it cannot be read."""
        attempt = self._attempt(directory)
        seconds = attempt.seconds if attempt is not None else None
        if attempt is not None and attempt.error is not None:
            return seen.model_copy(
                update={"state": "failed", "error": attempt.error, "seconds": seconds}
            )
        if self.verb == "stages":
            whole = attempt is not None and self._curves(directory) is not None
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
        """The result of a run, complete or not; None where it has none.

        Raises UsageError where it cannot be read.
        """
        if directory in self._finished:
            return self._finished[directory]
        if not (directory / RESULT_FILE).is_file():
            return None
        result = read_result(directory)
        if result.status == "complete":
            self._finished[directory] = result
        return result

    def results(self, cell: Cell, rounds: int) -> list[Result]:
        """The complete results of a cell, round by round; those that cannot be read left out."""
        if self.verb != "run":
            return []
        found = self._readable(self.result, cell, rounds)
        return [result for result in found if result.status == "complete"]

    def curves(self, cell: Cell, rounds: int) -> list[StageCurves]:
        """The stage curves of a cell, round by round; those that cannot be read left out."""
        return list(self._readable(self._curves, cell, rounds))

    def _curves(self, directory: Path) -> StageCurves | None:
        file = directory / STAGES_FILE
        return read_document(StageCurves, file) if file.is_file() else None

    def _readable(
        self, read: Callable[[Path], Found | None], cell: Cell, rounds: int
    ) -> Iterator[Found]:
        """What is there of a cell, round by round."""
        for number in range(1, rounds + 1):
            with contextlib.suppress(UsageError):  # it is told of as a failed round
                found = read(self.cell(cell, number))
                if found is not None:
                    yield found

    def set_aside(self, directory: Path) -> None:
        """Move an attempt that did not finish out of the way, and keep it."""
        if not directory.exists():
            return
        earlier = self.path / "earlier"
        stem = f"{directory.parent.name}-{directory.name}"
        with output_errors(earlier):
            earlier.mkdir(exist_ok=True)
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


def _is_json(file: Path) -> bool:
    """Whether a file is whole, whatever it says."""
    try:
        json.loads(file.read_bytes())
    except ValueError:
        return False
    return True

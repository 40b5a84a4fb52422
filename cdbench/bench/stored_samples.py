"""The samples of a stored run: found by task and question, and held against one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdbench.errors import UsageError
from cdbench.resources import nearest_hint
from cdbench.schema import Result, SampleRecord, read_result, read_samples


@dataclass(frozen=True)
class Changed:
    """A question whose value in a mode is not the one it has in another."""

    theirs: SampleRecord
    ours: SampleRecord


class StoredSamples:
    """The samples of one run directory, read task by task when they are asked for.

    Raises:
        UsageError: it holds no finished run, or one without a live pass.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.result: Result = read_result(directory)
        if not self.result.samples:
            raise UsageError(
                f"{directory}: has no samples: nothing was asked in this run; run with work: [live]"
            )
        self._read: dict[str, list[SampleRecord]] = {}

    @property
    def tasks(self) -> list[str]:
        """The tasks that were asked."""
        return list(self.result.samples)

    @property
    def modes(self) -> list[str]:
        """The modes that answered, in the order of the run."""
        known = {label for label, mode in self.result.modes.items() if mode.live}
        return [label for label in self.result.modes if label in known]

    def of_task(self, task: str) -> list[SampleRecord]:
        """All samples of a task. UsageError where it was not asked, or its file cannot be read."""
        if task not in self.result.samples:
            raise UsageError(
                f"--task {task}: was not asked in this run; {nearest_hint(task, tuple(self.tasks))}"
            )
        if task not in self._read:
            file = self.directory / self.result.samples[task]
            self._read[task] = list(read_samples(file))
            if not self._read[task]:
                raise UsageError(f"{file}: holds no sample; the run's records were damaged")
        return self._read[task]

    def question(self, task: str, doc_id: int) -> dict[str, SampleRecord]:
        """One question's samples by mode. UsageError where no mode was asked it."""
        found = {s.mode: s for s in self.of_task(task) if s.doc_id == doc_id}
        if not found:
            asked = sorted({s.doc_id for s in self.of_task(task)})
            raise UsageError(
                f"--doc {doc_id}: task {task} was not asked it; it has {_ranges(asked)}"
            )
        return {label: found[label] for label in self.modes if label in found}

    def mode(self, label: str | None, flag: str, otherwise: Sequence[str]) -> str:
        """A mode by name; of None the first of ``otherwise`` that answered, or any."""
        if label is None:
            return next((name for name in otherwise if name in self.modes), self.modes[0])
        if label not in self.modes:
            raise UsageError(
                f"{flag} {label}: did not answer in this run; "
                f"{nearest_hint(label, tuple(self.modes))}"
            )
        return label

    def changed(self, tasks: Sequence[str], mode: str, against: str) -> Iterator[Changed]:
        """Questions whose primary metric has another value in ``mode`` than in ``against``."""
        for task in tasks:
            theirs = {s.doc_id: s for s in self.of_task(task) if s.mode == against}
            for ours in sorted(self.of_task(task), key=lambda s: s.doc_id):
                other = theirs.get(ours.doc_id)
                if ours.mode == mode and other is not None and other.value != ours.value:
                    yield Changed(other, ours)


def _ranges(numbers: Sequence[int]) -> str:
    if len(numbers) == numbers[-1] - numbers[0] + 1:
        return f"{numbers[0]} to {numbers[-1]}"
    shown = ", ".join(map(str, numbers[:10]))
    return f"{shown}, ... ({len(numbers)} documents)" if len(numbers) > 10 else shown

"""The run directory: proved writable before anything runs, written so that nothing is lost."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from pydantic import JsonValue

from cdbench.bench.places import (
    CLAIM_FILE,
    Claim,
    InUseError,
    claim_directory,
    typed_path,
)
from cdbench.bench.repeats import Answers, Repeat
from cdbench.errors import OutputError
from cdbench.metrics.trace import RequestTrace
from cdbench.schema import (
    REPEATS_FILE,
    REQUESTS_FILE,
    STAGE_PASSES_FILE,
    WORKLOAD_FILE,
    LivePassRecord,
    RepeatRecord,
    RequestRecord,
    Result,
    SampleRecord,
    StagePassRecord,
    WorkloadRecord,
    append_lines,
    read_repeats,
    samples_file,
    write_result,
)
from cdbench.schema.launches import member_name, merge_launches, write_launches
from cdbench.schema.repeats import ModeFacts
from cdbench.schema.workload import RecordedWork

RUNS = Path("results") / "runs"

SLUG_CHARACTERS = 80


class AskedRequest(RequestTrace, Protocol):
    """A request's result that knows which question it answered, if any."""

    @property
    def doc_id(self) -> int | None: ...


class TimedRepeat(Repeat, Protocol):
    """A timed run as it ends."""

    @property
    def results(self) -> Sequence[AskedRequest]: ...


class AnswersGiven(Answers, Protocol):
    """A live pass as it ends."""

    @property
    def results(self) -> Sequence[AskedRequest]: ...


class RunDirectory:
    """Where one run's files go. Raw records are appended whole as each repeat ends.

    The line in ``repeats.jsonl`` is written last: what lacks it did not finish.
    """

    def __init__(self, path: Path, claim: Claim | None = None) -> None:
        self.path = path
        self._claim = claim

    @classmethod
    def create(cls, out: str | None, name: str) -> RunDirectory:
        """A new or empty directory; ``out`` None makes ``results/runs/<date>-<name>``.

        It is this run's alone until ``close``. Raises UsageError where it cannot be written,
        already holds something, or belongs to another run.
        """
        if out is not None:
            return cls._claimed(typed_path(out, "--out"))
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        for count in itertools.count(1):
            path = RUNS / f"{stamp}-{slug(name)}{f'-{count}' if count > 1 else ''}"
            with contextlib.suppress(InUseError):
                return cls._claimed(path)
        raise AssertionError("numbers do not end")

    @classmethod
    def _claimed(cls, path: Path) -> RunDirectory:
        directory = cls(path, claim_directory(path, "--out"))
        if any(each.name != CLAIM_FILE for each in path.iterdir()):
            directory.close()
            raise InUseError(f"--out {path}: is not empty; name a new directory")
        return directory

    def append_requests(self, records: Iterable[RequestRecord]) -> None:
        """Add request lines, in one write."""
        append_lines(self.path / REQUESTS_FILE, records)

    def keep_workload(
        self, workload: Sequence[RecordedWork], offsets_s: Sequence[float] | None = None
    ) -> None:
        """Write the recorded requests that every timed run will be given.

        ``offsets_s`` are their scheduled arrivals from the start, where they are scheduled.
        """
        offsets = [None] * len(workload) if offsets_s is None else offsets_s
        records = [
            WorkloadRecord.of(work, arrival_s)
            for work, arrival_s in zip(workload, offsets, strict=True)
        ]
        append_lines(self.path / WORKLOAD_FILE, records)

    def keep_answers(self, mode: str, passed: AnswersGiven) -> None:
        """Write one mode's live pass, whole."""
        by_task: dict[str, list[SampleRecord]] = {}
        for sample in passed.samples:
            by_task.setdefault(sample.task, []).append(sample)
        for task, samples in by_task.items():
            append_lines(self.path / samples_file(task), samples)
        right = {sample.key: sample.value == 1 for sample in passed.samples}
        self.append_requests(
            RequestRecord.of(
                r, doc_id=r.doc_id, mode=mode, work="live", right=right[r.task or "", r.doc_id or 0]
            )
            for r in passed.results
        )
        line = LivePassRecord(
            mode=mode,
            requests=len(passed.results),
            tasks={task: len(samples) for task, samples in by_task.items()},
            prefix_hit_rate=passed.prefix_hit_rate,
            preemptions=passed.preemptions,
        )
        append_lines(self.path / REPEATS_FILE, [line])

    def keep_repeat(
        self, run: TimedRepeat, facts: ModeFacts, environment: JsonValue = None
    ) -> None:
        """Write one timed run, whole: its launches, its requests, and then its own line.

        ``facts`` are those of its mode, ``environment`` what was seen of the machine while it ran.
        """
        trace, block, order = run.trace, run.block, run.order
        member = None
        if trace.launches:
            member = member_name(block, order, trace.mode)
            write_launches(self.path, member, trace.launches)
        self.append_requests(
            RequestRecord.of(
                r, doc_id=r.doc_id, mode=trace.mode, work="equal", block=block, order=order
            )
            for r in run.results
        )
        line = RepeatRecord.of(
            trace,
            block=block,
            order=order,
            launches=member,
            facts=facts,
            environment=environment,
        )
        append_lines(self.path / REPEATS_FILE, [line])

    def keep_stage_pass(self, passed: StagePassRecord) -> None:
        """Write one pass over the stages, whole."""
        append_lines(self.path / STAGE_PASSES_FILE, [passed])

    def finish(self, result: Result) -> Path:
        """Merge the launches and write ``result.json``, last and whole."""
        try:
            merge_launches(self.path)
        finally:  # unmerged launches are as good
            written = write_result(self.path, result)
        return written

    def close(self) -> None:
        """Leave it to others; what was made for a run that measured nothing goes."""
        if self._claim is not None:
            self._claim.release()

    def with_what_is_kept(self, error: OutputError) -> OutputError:
        """The same error, and how much of the run was whole on disk before it."""
        path = self.path / REPEATS_FILE
        kept = sum(1 for _ in read_repeats(path)) if path.is_file() else 0
        if not kept:
            return error
        were = "1 pass or timed run is" if kept == 1 else f"{kept} passes and timed runs are"
        return OutputError(f"{error}; {were} kept in {self.path}")


def slug(name: str) -> str:
    """A model's name or path as a part of a directory's name, cut where it is long."""
    return re.sub(r"[^\w.-]+", "-", name)[:SLUG_CHARACTERS].strip("-.") or "run"

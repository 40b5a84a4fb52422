"""The run directory: proved writable before anything runs, written so that nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from pydantic import JsonValue

from cdbench.bench.repeats import Answers, Repeat
from cdbench.errors import UsageError
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
    StagePassRecord,
    WorkloadRecord,
    append_lines,
    write_result,
)
from cdbench.schema.launches import member_name, merge_launches, write_launches
from cdbench.schema.repeats import ModeFacts
from cdbench.schema.workload import RecordedWork

RUNS = Path("results") / "runs"


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
        self.append_requests(
            RequestRecord.of(r, doc_id=r.doc_id, mode=mode, work="live", right=right)
            for r, right in zip(passed.results, passed.right, strict=True)
        )
        line = LivePassRecord(
            mode=mode,
            requests=len(passed.results),
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
        merge_launches(self.path)
        return write_result(self.path, result)

    def discard_if_empty(self) -> None:
        """Remove what was made for a run that ended before it measured anything."""
        for directory in self._made:
            if not directory.is_dir() or any(directory.iterdir()):
                return
            directory.rmdir()


def slug(name: str) -> str:
    """A model's name or path as a part of a directory's name."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"


def _unused(name: str) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    stem = f"{stamp}-{slug(name)}"
    path, count = RUNS / stem, 1
    while path.exists():
        count += 1
        path = RUNS / f"{stem}-{count}"
    return path

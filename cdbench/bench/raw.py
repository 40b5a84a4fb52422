"""A run read back from its directory: everything its summaries are made from, without the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from cdbench.bench.repeats import StoredAnswers, StoredRepeat
from cdbench.bench.sample_checks import contradictions, unlike_requests
from cdbench.errors import UsageError
from cdbench.schema import (
    REPEATS_FILE,
    REQUESTS_FILE,
    RESULT_FILE,
    STAGE_PASSES_FILE,
    WORKLOAD_FILE,
    LivePassRecord,
    RepeatRecord,
    RequestRecord,
    Result,
    SampleRecord,
    StagePassRecord,
    WorkloadRecord,
    read_repeats,
    read_requests,
    read_result,
    read_samples,
    read_stage_passes,
    read_workload,
    samples_file,
)
from cdbench.schema.environment import RepeatEnvironment
from cdbench.schema.launches import read_launches
from cdbench.schema.repeats import ModeFacts


@dataclass(frozen=True)
class RawRun:
    """A run directory's records. ``repeats`` stand in the order of the run, torn blocks included.

    ``lines`` are those of ``repeats.jsonl``, aligned with ``repeats`` (their ``environment`` is no
    part of a trace).
    """

    directory: Path
    repeats: tuple[StoredRepeat, ...]
    lines: tuple[RepeatRecord, ...]
    passes: dict[str, StoredAnswers]
    workload: tuple[WorkloadRecord, ...]
    stage_passes: tuple[StagePassRecord, ...] = ()

    @property
    def offsets_s(self) -> tuple[float, ...] | None:
        """Scheduled arrivals of the workload; None where they were not scheduled."""
        known = tuple(r.arrival_s for r in self.workload if r.arrival_s is not None)
        return known if known and len(known) == len(self.workload) else None

    @property
    def facts(self) -> dict[str, ModeFacts]:
        """The facts of every timed mode."""
        return {line.mode: line.facts for line in self.lines}

    @property
    def environments(self) -> list[RepeatEnvironment]:
        """The machine during each timed run that was watched. ContradictionError: not readable."""
        try:
            return [
                RepeatEnvironment.model_validate(line.environment)
                for line in self.lines
                if line.environment is not None
            ]
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise ContradictionError(f"environment of a timed run: {key}: {first['msg']}") from None

    @property
    def labels(self) -> frozenset[str]:
        """The modes that anything was measured of."""
        return frozenset({*self.passes, *(line.mode for line in self.lines)})


class ContradictionError(ValueError):
    """Raw records that do not belong together: one was lost or changed."""


def read_raw(directory: Path) -> RawRun:
    """The records of a run directory; ``result.json`` is not read.

    Raises:
        UsageError: a file is missing or unreadable, or the run is older than these records.
        ContradictionError: the files contradict one another.
    """
    if not (directory / REPEATS_FILE).is_file():
        raise UsageError(_no_records(directory))
    _require(directory, REQUESTS_FILE)
    timed: dict[tuple[str, int | None, int | None], list[RequestRecord]] = defaultdict(list)
    asked: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in read_requests(directory / REQUESTS_FILE):
        if record.work == "equal":
            timed[record.mode, record.block, record.order].append(record)
        elif record.right is not None:
            asked[record.mode].append(record)
    lines = list(read_repeats(directory / REPEATS_FILE))
    repeats = tuple(line for line in lines if isinstance(line, RepeatRecord))
    if repeats:
        _require(directory, WORKLOAD_FILE)
    _refuse_twice(repeats)
    passes = [line for line in lines if isinstance(line, LivePassRecord)]
    samples = _samples(directory, (task for line in passes for task in line.tasks))
    return RawRun(
        directory=directory,
        repeats=tuple(
            _repeat(directory, line, timed[line.mode, line.block, line.order]) for line in repeats
        ),
        lines=repeats,
        passes={line.mode: _answers(line, asked[line.mode], samples[line.mode]) for line in passes},
        workload=tuple(_workload(directory)),
        stage_passes=tuple(_stage_passes(directory)),
    )


def read_run(directory: Path) -> tuple[Result, RawRun]:
    """A finished run: what it says, and what it says it from. Raises as ``read_raw`` does."""
    result = read_result(directory)
    if not (directory / REPEATS_FILE).is_file() and not result.files:
        return result, RawRun(directory, (), (), {}, ())
    raw = read_raw(directory)
    for key, name in (("stages", STAGE_PASSES_FILE), ("workload", WORKLOAD_FILE)):
        if key in result.files:
            _require(directory, name)
    return result, raw


def _repeat(directory: Path, line: RepeatRecord, requests: list[RequestRecord]) -> StoredRepeat:
    launches = read_launches(directory, line.launches) if line.launches is not None else []
    try:
        trace = line.trace(requests, launches)
    except ValueError as error:
        where = f"block {line.block}, place {line.order}, mode {line.mode}"
        raise ContradictionError(f"{where}: {error}") from None
    return StoredRepeat(line.block, line.order, trace, line.facts)


def _answers(
    line: LivePassRecord,
    requests: list[RequestRecord],
    samples: Mapping[str, Sequence[SampleRecord]],
) -> StoredAnswers:
    if len(requests) != line.requests:
        raise ContradictionError(
            f"live pass of mode {line.mode}: {len(requests)} request lines instead of "
            f"{line.requests}"
        )
    if {task: len(found) for task, found in samples.items()} != line.tasks:
        raise ContradictionError(
            f"live pass of mode {line.mode}: samples of {_counts(samples)} instead of "
            f"{', '.join(f'{n} {task}' for task, n in line.tasks.items())}"
        )
    ordered = tuple(sample for found in samples.values() for sample in found)
    for why in unlike_requests(ordered, requests):
        raise ContradictionError(f"live pass of mode {line.mode}: {why}")
    return StoredAnswers(tuple(requests), ordered, line.prefix_hit_rate, line.preemptions)


def _counts(samples: Mapping[str, Sequence[SampleRecord]]) -> str:
    return ", ".join(f"{len(found)} {task}" for task, found in samples.items()) or "no task"


def _samples(directory: Path, tasks: Iterable[str]) -> dict[str, dict[str, list[SampleRecord]]]:
    """Mode → task → samples, of the tasks that a run says it asked."""
    found: dict[str, dict[str, list[SampleRecord]]] = defaultdict(dict)
    for task in dict.fromkeys(tasks):
        _require(directory, samples_file(task))
        for sample in read_samples(directory / samples_file(task)):
            for why in contradictions(sample):
                raise ContradictionError(
                    f"samples of {task}, document {sample.doc_id}, mode {sample.mode}: {why}"
                )
            found[sample.mode].setdefault(task, []).append(sample)
    return found


def _refuse_twice(lines: tuple[RepeatRecord, ...]) -> None:
    seen = set()
    for line in lines:
        place = (line.block, line.order)
        if place in seen:
            raise ContradictionError(f"block {line.block}, place {line.order}: is there twice")
        seen.add(place)


def _require(directory: Path, name: str) -> None:
    if not (directory / name).is_file():
        raise UsageError(
            f"{directory}: {name} is missing: the raw records are incomplete; rerun the run"
        )


def _workload(directory: Path) -> Iterator[WorkloadRecord]:
    path = directory / WORKLOAD_FILE
    return read_workload(path) if path.is_file() else iter(())


def _stage_passes(directory: Path) -> Iterator[StagePassRecord]:
    path = directory / STAGE_PASSES_FILE
    return read_stage_passes(path) if path.is_file() else iter(())


def _no_records(directory: Path) -> str:
    if not directory.is_dir():
        return f"{directory}: no such run directory; name one that `cdbench run` wrote"
    if (directory / RESULT_FILE).is_file():
        return f"{directory}: has no {REPEATS_FILE}: nothing can be made again from it; rerun it"
    return f"{directory}: holds no run; name a directory that `cdbench run` wrote"

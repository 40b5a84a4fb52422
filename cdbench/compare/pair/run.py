"""The course of a paired gate: check, record the work, get both sides ready, take turns, look.

OLD records the work         a process of its own, so that both sides start alike
OLD, NEW load and warm up    on the same recorded work; its hash must be the same
6 pairs, look; 12; 24        until every timed check passed, or one failed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from cdbench.compare.gate_file import GateFile
from cdbench.compare.gate_times import Key
from cdbench.compare.pair.asked import Asked, ask
from cdbench.compare.pair.files import keep_outcome, kept_files
from cdbench.compare.pair.looking import look_record, may_stop, timed_checks
from cdbench.compare.pair.process import Worker
from cdbench.compare.pair.pythons import START, check_python
from cdbench.compare.pair.receipt import Evidence, make_receipt, unfair
from cdbench.compare.pair.selftest import self_test as judge_noise
from cdbench.compare.pair.turns import (
    LEAST_LIMIT_S,
    Limits,
    Progress,
    check_timed,
    pair_seconds,
    timed_pair,
)
from cdbench.errors import InvalidRunError, UsageError
from cdbench.schema.gating import GateCheck, LookRecord
from cdbench.schema.pairing import (
    PROTOCOL,
    Farewell,
    Hello,
    PairOutcome,
    PairRun,
    PairSide,
    Prepared,
    Recorded,
    SelfTestRecord,
    SideName,
)
from cdbench.stats.gate import LOOKS, look_errors

FLAGS: dict[SideName, str] = {"old": "OLD_PYTHON", "new": "NEW_PYTHON"}


@dataclass(frozen=True)
class Conduct:
    """How a gate is carried out. Limits are seconds that a worker may be silent."""

    looks: tuple[int, ...] = LOOKS
    self_test: bool = False
    start_limit_s: float = 180.0
    prepare_limit_s: float = 3600.0
    least_limit_s: float = LEAST_LIMIT_S


@dataclass
class Course:
    """What a gate has come to so far."""

    asked: Asked
    conduct: Conduct
    progress: Progress
    sides: dict[SideName, PairSide] = field(default_factory=dict)
    runs: list[PairRun] = field(default_factory=list)
    timed: dict[Key, GateCheck] = field(default_factory=dict)
    looks: list[LookRecord] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run_pair(
    old_python: str,
    new_python: str,
    config: str | None,
    gate: GateFile | None,
    gate_sha256: str = "",
    *,
    overrides: Sequence[str] = (),
    self_test: bool = False,
    progress: Progress,
    out: Path | None = None,
) -> PairOutcome:
    """Judge NEW against OLD on the work of a configuration, both measured now.

    ``gate`` None compares the throughput of every mode. ``self_test`` times all pairs of the same
    code and says what the gate can see. ``out`` keeps ``pair.json``, the recorded work and the
    workers' stderr.

    Raises:
        UsageError: before anything is timed, for an interpreter, configuration or gate that is
            wrong.
        WorkerError: a worker died, hung or answered nonsense.
        UnkeptOutcome: ``pair.json`` cannot be written; it has the outcome.
        KeyboardInterrupt: after both workers, and what they started, have been ended.
    """
    asked = ask(config, gate, gate_sha256, overrides)
    conduct = Conduct(self_test=self_test)
    return paired_gate({"old": old_python, "new": new_python}, asked, conduct, progress, out)


def paired_gate(
    pythons: Mapping[SideName, str],
    asked: Asked,
    conduct: Conduct,
    progress: Progress,
    out: Path | None = None,
) -> PairOutcome:
    """``run_pair`` with everything about the gate resolved."""
    if conduct.self_test and not asked.keys:
        raise UsageError("--self-test: the gate times nothing; give it timed.metrics")
    programs = {side: check_python(FLAGS[side], python) for side, python in pythons.items()}
    course = Course(asked, conduct, progress)
    with kept_files(out) as folder:
        with ExitStack() as stack:
            workers = {
                side: stack.enter_context(
                    _start(side.upper(), pythons[side], programs[side], folder / f"{side}.stderr")
                )
                for side in FLAGS
            }
            for side, worker in workers.items():
                hello = _hello(worker, conduct)
                course.sides[side] = PairSide(python=pythons[side], hello=hello)
            _check_same(course)
            try:
                _record(course, pythons["old"], programs["old"], folder)
                if not course.invalid:
                    _prepare(course, workers, folder)
                if not course.invalid:
                    _measure(course, workers)
            except InvalidRunError as error:
                course.invalid.append(str(error))
            else:
                _part(course, workers)
        outcome = _outcome(course)
        if out is not None:
            keep_outcome(folder, outcome)
    return outcome


def _start(name: str, python: str, program: str, log: Path) -> Worker:
    return Worker(f"{name} ({python})", [program, *START], log)


def _hello(worker: Worker, conduct: Conduct) -> Hello:
    """Raises UsageError where a worker speaks another version of the protocol."""
    hello = worker.ask(Hello, "hello", "starting", conduct.start_limit_s, protocol=PROTOCOL)
    if hello.protocol != PROTOCOL:
        raise UsageError(
            f"{worker.name}: its cdbench speaks version {hello.protocol} of the paired gate's "
            f"protocol, this one version {PROTOCOL}; use versions that agree"
        )
    return hello


def _check_same(course: Course) -> None:
    old, new = course.sides["old"].hello, course.sides["new"].hello
    if course.conduct.self_test and old.source_sha256 != new.source_sha256:
        raise UsageError(
            "--self-test: OLD_PYTHON and NEW_PYTHON have other code; give the same one twice"
        )


def _record(course: Course, python: str, program: str, folder: Path) -> None:
    course.progress("recording the work with OLD")
    limit_s = course.conduct.prepare_limit_s
    with _start("OLD", python, program, folder / "recording.stderr") as worker:
        _hello(worker, course.conduct)
        found = worker.ask(
            Recorded,
            "record",
            "recording the work",
            limit_s,
            config=course.asked.tree,
            path=str(folder),
        )
    course.invalid += found.invalid
    course.notes += found.notes
    if not found.requests:
        course.invalid.append("the recorded work has no request")


def _prepare(course: Course, workers: Mapping[SideName, Worker], folder: Path) -> None:
    for side, worker in workers.items():
        course.progress(f"loading and warming up {side.upper()}")
        ready = worker.ask(
            Prepared,
            "prepare",
            "loading and warming up",
            course.conduct.prepare_limit_s,
            config=course.asked.tree,
            path=str(folder),
        )
        course.sides[side] = course.sides[side].model_copy(update={"prepared": ready})
        for mode in course.asked.modes:
            if mode not in ready.warm:
                raise InvalidRunError(f"{worker.name}: mode {mode} was not warmed up")
            check_timed(worker.name, mode, ready.warm[mode])
        _check_defined(course.asked, worker.name, ready)
    if (why := unfair(course.sides)) is not None:
        course.invalid.append(why)


def _check_defined(asked: Asked, name: str, ready: Prepared) -> None:
    """Raise UsageError where a metric that is to be compared has no value on this work."""
    for mode, metric in asked.keys:
        if metric == "speedup":
            continue
        value = ready.warm[mode].metrics.get(metric)
        if value is None or value <= 0:
            raise UsageError(
                f"{name}: {metric} of {mode} is {'undefined' if value is None else value} on this "
                "work, so no ratio of it is formed; take another metric into the gate"
            )


def _measure(course: Course, workers: Mapping[SideName, Worker]) -> None:
    conduct, asked = course.conduct, course.asked
    warm = _slowest(course)
    limits = Limits(warm, conduct.least_limit_s)
    each_s = pair_seconds(warm)
    first, last = conduct.looks[0], conduct.looks[-1]
    course.progress(
        f"timing {', '.join(asked.modes)}: about {each_s:,.1f} s a pair, so "
        f"{first * each_s / 60:,.1f} to {last * each_s / 60:,.1f} minutes"
    )
    pairs, stopped = 0, False
    for look, errors in zip(conduct.looks, look_errors(conduct.looks), strict=True):
        for pair in range(pairs, look):
            course.runs += timed_pair(pair, asked.modes, workers, limits)
            course.progress(f"pair {pair + 1} of {look} (at most {last})")
        pairs = look
        checks = timed_checks(asked.gate, asked.keys, course.runs, errors)
        course.looks.append(look_record(look, errors, checks))
        if not stopped:  # a self-test goes on, but says what the gate would have said
            course.timed = checks
        stopped = stopped or may_stop(checks)
        for check in checks.values():
            course.progress(f"after {look} pairs: {check.verdict}: {check.why}")
        if stopped and not conduct.self_test:
            return


def _slowest(course: Course) -> dict[str, float]:
    """Mode → the longer of both sides' warm regions, in seconds."""
    found: dict[str, float] = {}
    for side in course.sides.values():
        assert side.prepared is not None, "both are ready"
        for mode, warm in side.prepared.warm.items():
            found[mode] = max(warm.wall_s, found.get(mode, 0.0))
    return found


def _part(course: Course, workers: Mapping[SideName, Worker]) -> None:
    """Ask both what changed meanwhile: two versions of the code in one process have no name."""
    if course.invalid:
        return
    for worker in workers.values():
        changed = worker.ask(Farewell, "quit", "ending", course.conduct.start_limit_s)
        named = [*changed.changed_sources, *changed.changed_models]
        if named:
            course.invalid.append(
                f"{worker.name}: {named[0]} changed while it was measured; leave it alone and run "
                "again"
            )


def _outcome(course: Course) -> PairOutcome:
    asked, conduct = course.asked, course.conduct
    receipt = make_receipt(
        Evidence(
            asked=asked,
            sides=course.sides,
            runs=course.runs,
            timed=course.timed,
            looks=course.looks,
            invalid=course.invalid,
            notes=course.notes,
            planned_pairs=conduct.looks[-1],
        )
    )
    found: SelfTestRecord | None = None
    if conduct.self_test and not course.invalid:
        course.progress("flipping the signs of the pairs")
        found = judge_noise(asked.gate, asked.keys, course.runs, conduct.looks)
    return PairOutcome(
        receipt=receipt,
        old=course.sides["old"],
        new=course.sides["new"],
        runs=course.runs,
        self_test=found,
    )

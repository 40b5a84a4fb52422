"""The course of a run: live pass, recorded work, warm-up, timed blocks, result.

Interrupted at any point it still leaves a run directory with what was measured until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from cdbench.bench import live
from cdbench.bench.directory import RunDirectory
from cdbench.bench.equal import (
    RecordedRequest,
    TimedRun,
    TimedSubject,
    characters_per_token,
    run_blocks,
)
from cdbench.bench.live import AutoDepth, LivePass
from cdbench.bench.plan import Plan, Subject
from cdbench.bench.workload import TimedWork, recorded_workload
from cdbench.evals.tasks import Document
from cdbench.grammar import Mode
from cdbench.runtime.core import Request, RequestResult
from cdbench.schema import RequestRecord

Results = dict[str, RequestResult]


class Progress(Protocol):
    """Told what is going on. Never called inside a timed region."""

    def phase(self, name: str, units: int) -> None: ...

    def advance(self, units: int) -> None: ...


class Measurements:
    """What a run has measured so far; complete or not."""

    def __init__(self) -> None:
        self.live: dict[str, LivePass] = {}
        self.auto: AutoDepth | None = None
        self.workload: list[RecordedRequest] = []
        self.refused: list[RequestResult] = []
        """Requests of the workload that the recorded run could not serve, so that none is timed."""
        self.timed: list[TimedRun] = []
        self.subjects: dict[str, Subject] = {}
        self.characters_per_token: dict[str, float] = {}
        self.warm_up_s = 0.0
        self.interrupted = False


class Session:
    """One run. ``measure`` fills ``measured`` step by step."""

    def __init__(
        self, plan: Plan, work: TimedWork | None, directory: RunDirectory, progress: Progress
    ) -> None:
        self.plan = plan
        self.work = work
        self.directory = directory
        self.progress = progress
        self.measured = Measurements()

    def measure(self) -> Measurements:
        """Run everything the plan asks for. A KeyboardInterrupt ends it early, marked."""
        try:
            if "live" in self.plan.config.work:
                self._live()
            if self.work is not None:
                self._equal(self.work)
        except KeyboardInterrupt:
            self.measured.interrupted = True
        return self.measured

    # The live pass.

    def _live(self) -> None:
        documents = live.questions(self.plan)
        for mode in self._live_order():
            if mode.depth == "auto":
                self._choose_depth()
            else:
                self._answer(self.plan.subject(mode), documents)

    def _live_order(self) -> list[Mode]:
        """Every mode once; ``static`` before ``static@auto``, which compares itself with it."""
        modes = list(self.plan.modes)
        static = Mode("static")
        if Mode("static", depth="auto") in modes:
            modes = [static, *(m for m in modes if m != static)]
        return modes

    def _answer(self, subject: Subject, documents: tuple[Document, ...]) -> None:
        self.progress.phase(f"live {subject.label}", len(documents))
        passed = live.answer(self.plan, subject, documents, self.progress.advance)
        self.measured.live[subject.label] = passed
        self.measured.subjects[subject.label] = subject
        self.directory.append_requests(
            RequestRecord.of(r, doc_id=r.doc_id, mode=subject.label, work="live")
            for r in passed.results
        )

    def _choose_depth(self) -> None:
        static = self.measured.live["static"]
        self.progress.phase("live static@auto: choosing its depth", len(static.documents) // 2)
        auto = live.choose_depth(self.plan, static, self.progress.advance)
        self.measured.auto = auto
        subject = self.plan.subject(Mode("static", depth=auto.depth), "static@auto")
        if auto.depth == self.plan.max_loops:
            # It is `static`: the same answers, the same time.
            half = live.judging_half(static.documents)
            self.measured.subjects[subject.label] = subject
            self.measured.live[subject.label] = LivePass(
                subject, half, static.results[1::2], static.right[1::2]
            )
        else:
            self._answer(subject, live.judging_half(static.documents))

    # Equal work.

    def _equal(self, work: TimedWork) -> None:
        self.measured.workload = self._record(work)
        timed = [
            TimedSubject(self.plan, subject, self.measured.workload)
            for subject in self._timed_subjects()
        ]
        for subject in timed:
            self.measured.subjects[subject.subject.label] = subject.subject
            if subject.own_vocabulary:
                self.measured.characters_per_token[subject.subject.label] = characters_per_token(
                    subject.subject.model, subject.requests
                )
        self._warm_up(timed)
        blocks = self.plan.config.repeats.blocks
        size = len(self.measured.workload)
        plural = "s" if blocks > 1 else ""
        self.progress.phase(f"timing {blocks} block{plural}", blocks * 2 * len(timed) * size)
        for run in run_blocks(timed, blocks, self._deadline()):
            self._keep(run)
            self.progress.advance(size)

    def _deadline(self) -> Callable[[], bool]:
        limit_s = self.plan.config.repeats.max_seconds
        start = time.monotonic()
        return lambda: limit_s is None or time.monotonic() - start < limit_s

    def _keep(self, run: TimedRun) -> None:
        """Keep a finished repeat on disk before it counts."""
        self.directory.append_requests(
            RequestRecord.of(
                r,
                doc_id=r.doc_id,
                mode=run.subject.label,
                work="equal",
                block=run.block,
                order=run.order,
            )
            for r in run.results
        )
        self.measured.timed.append(run)

    def _warm_up(self, timed: list[TimedSubject]) -> None:
        """An untimed pass of each mode: pools grow, pages and kernels are touched."""
        start = time.monotonic()
        size = len(self.measured.workload)
        self.progress.phase("warming up", len(timed) * size)
        for subject in timed:
            subject.run(-1, -1)
            self.progress.advance(size)
        self.measured.warm_up_s = time.monotonic() - start

    def _timed_subjects(self) -> list[Subject]:
        """The rows to time. ``static@auto`` at full depth is ``static`` and not timed twice."""
        subjects = []
        for mode in self.plan.modes:
            if mode.depth != "auto":
                subjects.append(self.plan.subject(mode))
            elif self.measured.auto and self.measured.auto.depth < self.plan.max_loops:
                subjects.append(self.measured.subjects["static@auto"])
        return subjects

    def _record(self, work: TimedWork) -> list[RecordedRequest]:
        """The recorded run: a trace file's, the live pass's, or one made now under ``cdb``."""
        if work.recorded is not None:
            return list(work.recorded)
        known = self._answered(work.requests) or self._run_live(work.requests)
        self.measured.refused = [
            r for request in work.requests if (r := known[request.id]).error is not None
        ]
        return recorded_workload(work.requests, known)

    def _answered(self, requests: Sequence[Request]) -> Results | None:
        """The live pass of the most adaptive mode, where it asked all of these."""
        for label in ("cdb", "lockstep", "static"):
            if label in self.measured.live:
                known = {r.id: r for r in self.measured.live[label].results}
                return known if all(r.id in known for r in requests) else None
        return None

    def _run_live(self, requests: Sequence[Request]) -> Results:
        self.progress.phase("recording tokens and depths", len(requests))
        known = {}
        for result in self.plan.engine(self.plan.subject(Mode("cdb"))).run(requests):
            known[result.id] = result
            self.progress.advance(1)
        self.directory.append_requests(
            RequestRecord.of(r, doc_id=r.doc_id, mode="cdb", work="live") for r in known.values()
        )
        return known

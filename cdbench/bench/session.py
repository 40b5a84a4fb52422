"""The course of a run: live pass, recorded work, warm-up, timed blocks, result.

Interrupted at any point it still leaves a run directory with what was measured until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cdbench.bench import live
from cdbench.bench.directory import RunDirectory
from cdbench.bench.live import LivePass
from cdbench.bench.measurements import Measurements, Progress
from cdbench.bench.plan import Plan, Subject
from cdbench.bench.recorded_run import fix_work
from cdbench.bench.timed_part import TimedPart
from cdbench.bench.workload import TimedWork
from cdbench.grammar import Mode
from cdbench.models.compiled import compiled

if TYPE_CHECKING:  # seconds to import: only who asks questions needs it
    from cdbench.evals.suite import Question


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
        """Run everything the plan asks for. A KeyboardInterrupt ends it early, marked.

        What else ends it early is raised, with ``measured`` marked likewise.
        """
        try:
            self._compile()
            if "live" in self.plan.config.work:
                self._live()
            if self.work is not None:
                self._equal(self.work)
        except KeyboardInterrupt:
            self.measured.interrupted = True
        except Exception as error:
            self.measured.interrupted = True
            self.measured.failure = str(error) or type(error).__name__
            raise
        return self.measured

    def _compile(self) -> None:
        """Compile the models of all modes: no part of it is timed, and a failure costs nothing."""
        if not self.plan.config.engine.compile:
            return
        models = [self.plan.model, *self.plan.dense.values()]
        self.progress.phase("compiling stages", len(models))
        for model in models:
            compiled(model.network, self.plan.config.engine.width)
            self.progress.advance(1)

    # The live pass.

    def _live(self) -> None:
        asked = live.questions(self.plan)
        for mode in self._live_order():
            if mode.depth == "auto":
                self._choose_depth(asked)
            else:
                self._answer(self.plan.subject(mode), asked)
        # Before anything is timed: other processes would disturb it.
        live.dismiss(self.plan)

    def _live_order(self) -> list[Mode]:
        """Every mode once; ``static`` before ``static@auto``, which compares itself with it."""
        modes = list(self.plan.modes)
        static = Mode("static")
        if Mode("static", depth="auto") in modes:
            modes = [static, *(m for m in modes if m != static)]
        return modes

    def _answer(self, subject: Subject, asked: Sequence[Question]) -> None:
        self.progress.phase(f"live {subject.label}", live.requests_count(self.plan, asked))
        self._keep(subject, live.answer(self.plan, subject, asked, self.progress.advance))

    def _keep(self, subject: Subject, passed: LivePass) -> None:
        self.measured.live[subject.label] = passed
        self.measured.subjects[subject.label] = subject
        self.directory.keep_answers(subject.label, passed)

    def _choose_depth(self, asked: Sequence[Question]) -> None:
        static, half = self.measured.live["static"], live.choosing_half(asked)
        self.progress.phase(
            "live static@auto: choosing its depth", live.requests_count(self.plan, half)
        )
        auto = live.choose_depth(self.plan, static, half, self.progress.advance)
        self.measured.auto = auto
        subject = self.plan.subject(Mode("static", depth=auto.depth), "static@auto")
        if auto.depth == self.plan.max_loops:
            # It is `static`: the same answers, the same time.
            self._keep(subject, live.half_of(static, subject, live.judging_half(asked)))
        else:
            self._answer(subject, live.judging_half(asked))

    # Equal work.

    def _equal(self, work: TimedWork) -> None:
        fix_work(self.plan, work, self.measured, self.directory, self.progress)
        TimedPart(self.plan, self.measured, self.directory, self.progress).run()

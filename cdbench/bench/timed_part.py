"""The timed part of a run: warm-up, palindromic blocks with stage passes between them, looks.

Stage curves are measured in passes before the first block and after every block, so that a machine
that drifts moves the curves and the runs they are held against alike.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cdbench.bench.compared import e2e_log_ratios
from cdbench.bench.directory import RunDirectory
from cdbench.bench.equal import TimedRun, TimedSubject, characters_per_token, run_block
from cdbench.bench.facts import facts_of
from cdbench.bench.measurements import Measurements, Progress
from cdbench.bench.plan import Plan, Subject
from cdbench.machine.monitor import Monitor
from cdbench.stages.grid import grid_contexts, later_contexts
from cdbench.stages.meter import StageMeter
from cdbench.stages.saved import read_curves, uncovered
from cdbench.stats.looks import Looks, looks_for
from cdbench.workloads.identity import difference

STAGE_TEXTS = 64
"""Prompts of the workload that the stage cells are cut from."""


def check_stages(plan: Plan) -> None:
    """Raise UsageError, before anything runs, where saved stage curves are not this plan's."""
    if "equal" in plan.config.work and plan.config.stages not in ("measure", "none"):
        read_curves(Path(plan.config.stages), plan)


class TimedPart:
    """Times all modes on ``measured.workload``; ``measured`` is filled as it goes."""

    def __init__(
        self, plan: Plan, measured: Measurements, directory: RunDirectory, progress: Progress
    ) -> None:
        self.plan, self.measured = plan, measured
        self.directory, self.progress = directory, progress
        monitor = Monitor.of(str(plan.model.network.device))
        self.timed = [
            TimedSubject(plan, subject, measured.workload, measured.arrivals, monitor)
            for subject in self._subjects()
        ]
        self._meter: StageMeter | None = None

    def run(self) -> None:
        """Warm up, then time block after block until there are enough."""
        self._describe()
        self._warm_up()
        self._prepare_stages()
        self._hand_out_curves()
        repeats = self.plan.config.repeats
        looks = None if repeats.interval is None else looks_for(repeats.blocks, repeats.interval)
        blocks = repeats.blocks if looks is None else looks.max_blocks
        size = len(self.measured.workload)
        plural = "s" if blocks > 1 else ""
        most = "up to " if looks is not None else ""
        self.progress.phase(
            f"timing {most}{blocks} block{plural}", blocks * 2 * len(self.timed) * size
        )
        may_start = self._deadline()
        # What is there before the first block stays: collecting between runs need not look at it.
        gc.collect()
        gc.freeze()
        try:
            for block in range(blocks):
                if not may_start() or (looks is not None and self._narrow_enough(looks)):
                    break
                for run in run_block(self.timed, block):
                    self._keep(run)
                    self.progress.advance(size)
                self._measure_stages()
        finally:
            gc.unfreeze()
            # Also of an interrupted run: what was measured until then can be summarised.
            self._finish()

    # Before the blocks.

    def _subjects(self) -> list[Subject]:
        """The rows to time. ``static@auto`` at full depth is ``static`` and not timed twice."""
        subjects = []
        for mode in self.plan.modes:
            if mode.depth != "auto":
                subjects.append(self.plan.subject(mode))
            elif self.measured.auto and self.measured.auto.depth < self.plan.max_loops:
                subjects.append(self.measured.subjects["static@auto"])
        return subjects

    def _describe(self) -> None:
        for subject in self.timed:
            label = subject.subject.label
            self.measured.subjects[label] = subject.subject
            if subject.own_vocabulary:
                characters = characters_per_token(subject.subject.model, subject.requests)
                self.measured.characters_per_token[label] = characters

    def _warm_up(self) -> None:
        """An untimed pass of each mode: pools grow, pages and kernels are touched.

        Launches of other numbers of rows than came are captured as well, where they are captured.
        Capturing gives back memory that an allocator had kept, so the pass is made once more then.
        """
        size = len(self.measured.workload)
        passes = 2 if self.plan.config.engine.graphs else 1
        self.progress.phase("warming up", passes * len(self.timed) * size)
        for _ in range(passes):
            for subject in self.timed:
                subject.run(-1, -1)
                subject.engine.capture()
                self.progress.advance(size)

    def _prepare_stages(self) -> None:
        """Read the stage curves asked for, or make their meter and its first pass."""
        asked = self.plan.config.stages
        if asked == "none" or not self._stages_matter():
            return
        width = max(s.engine.width for s in self.timed if s.subject.mode.dense is None)
        work = self.measured.workload
        prompts = sorted(len(r.prompt) for r in work)
        later = later_contexts((len(r.prompt), len(r.tokens)) for r in work)
        if asked != "measure":
            self._use_saved(Path(asked), width, later)
            return
        self.progress.phase("measuring stages", 1)
        self._meter = StageMeter(
            self.plan,
            grid_contexts(later, self.plan.model.network.dims.max_positions),
            [r.prompt for r in work[:STAGE_TEXTS]],
            later_contexts=later,
            depths=[depth for r in work for depth in r.executed_depths[1:]],
            width=width,
            prompt_tokens=prompts[len(prompts) // 2],
        )
        self._measure_stages()
        self.progress.advance(1)

    def _use_saved(self, path: Path, width: int, later: Sequence[int]) -> None:
        """Take saved curves where they reach as far as this run does, else say why not."""
        saved = read_curves(path, self.plan)
        why = uncovered(saved, later, width)
        if why is None:
            self.measured.stages = saved
        else:
            self.measured.flags.append(
                f"the stage curves in {path} are not used, so there is no time bound and no "
                f"waterfall: {why}"
            )

    def _hand_out_curves(self) -> None:
        """Let engines decide by the curves as they are before the first block, in all blocks.

        A dense model runs other stages.
        """
        sizes = self.plan.config.engine
        if sizes.coda_min_rows != "auto" and sizes.max_itl_s is None:
            return
        stages = self._meter.curves() if self._meter is not None else self.measured.stages
        if stages is None:
            return
        curves = stages.curves()
        for timed in self.timed:
            if timed.subject.mode.dense is not None:
                continue
            try:
                timed.engine.use_curves(curves, stages.key.max_loops)
            except ValueError as error:
                self.measured.flags.append(
                    f"mode {timed.subject.label} decides without the stage curves: {error}"
                )

    def _stages_matter(self) -> bool:
        """Whether they decide anything, or anything is held against them.

        That is another loop count or schedule over ``static``.
        """
        looped = [s.subject.label for s in self.timed if s.subject.mode.dense is None]
        later = any(len(r.tokens) > 1 for r in self.measured.workload)
        if self.plan.config.engine.coda_min_rows == "auto" and "cdb" in looped:
            return later
        ratios = self.measured.arrivals.wall_ratios_allowed
        return ratios and later and "static" in looped and len(looped) > 1

    # Blocks.

    def _deadline(self) -> Callable[[], bool]:
        limit_s = self.plan.config.repeats.max_seconds
        start = time.monotonic()
        return lambda: limit_s is None or time.monotonic() - start < limit_s

    def _keep(self, run: TimedRun) -> None:
        """Keep a finished repeat on disk before it counts."""
        seen = run.environment
        environment = None if seen is None else seen.model_dump(mode="json")
        self.directory.keep_repeat(run, facts_of(run.subject), environment)
        self.measured.timed.append(run)

    def _measure_stages(self) -> None:
        if self._meter is not None:
            self._meter.one_pass()
            self.directory.keep_stage_pass(self._meter.kept[-1])

    def _narrow_enough(self, looks: Looks) -> bool:
        """Whether the interval of ``cdb`` over ``static`` is, at a look that is due."""
        look = looks.after(e2e_log_ratios(self.measured.timed, "cdb", "static"))
        return look is not None and look.stop

    def _finish(self) -> None:
        if self._meter is not None and self._meter.passes:
            self.measured.stages = self._meter.curves()
            self.measured.stage_passes = self._meter.kept
        self.measured.schedule_notes = {
            t.subject.label: note for t in self.timed if (note := t.engine.note)
        }
        self.measured.other_work = [
            f"mode {t.subject.label}: {why}"
            for t in self.timed
            if not t.own_vocabulary
            and (why := difference(t.requests, self.measured.workload, self.measured.arrivals))
        ]

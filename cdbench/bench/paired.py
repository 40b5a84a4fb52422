"""What a worker of a paired gate does: record the work, get ready for it, time it once and again.

The work is what a run times (``timed_part``): the same engines on the same requests. It is recorded
once, by a process of its own, and both sides read the file, so that neither has done anything that
the other has not.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdbench.bench.benchmark import sound
from cdbench.bench.directory import RunDirectory
from cdbench.bench.equal import RecordedRequest, TimedSubject
from cdbench.bench.equal_check import unequal_work
from cdbench.bench.judging import compute_threads, watched_files
from cdbench.bench.measurements import Measurements
from cdbench.bench.plan import Plan, make_plan
from cdbench.bench.recorded_run import fix_work
from cdbench.bench.summary import model_facts, start_manifest, workload_facts
from cdbench.config import parse_config
from cdbench.errors import UsageError
from cdbench.machine.monitor import Monitor
from cdbench.machine.unchanged import Unchanged
from cdbench.metrics.identities import broken_identities
from cdbench.metrics.rates import decode_wall_s
from cdbench.metrics.registry import evaluate
from cdbench.schema import WORKLOAD_FILE, read_workload
from cdbench.schema.pairing import Farewell, Prepared, Recorded, Timed
from cdbench.workloads.arrival_times import ArrivalSchedule
from cdbench.workloads.arrivals import parse_arrivals
from cdbench.workloads.identity import difference


class Quiet:
    """A ``Progress`` that tells nobody: the gate says what its workers do."""

    def phase(self, name: str, units: int) -> None: ...

    def advance(self, units: int) -> None: ...


class PairedWork:
    """One configuration, loaded and warm; ``prepare`` comes before ``time``."""

    def __init__(self) -> None:
        self._subjects: dict[str, TimedSubject] = {}
        self._workload: list[RecordedRequest] = []
        self._watched: Unchanged | None = None
        self._repeats = 0

    def record(self, tree: Mapping[str, Any], directory: Path) -> Recorded:
        """Find the work, and write it to ``workload.jsonl`` in a directory.

        Raises:
            UsageError: the configuration or its work is refused.
        """
        plan, work = sound(parse_config(dict(tree)))
        assert work is not None, "the work is equal"
        measured = Measurements()
        fix_work(plan, work, measured, RunDirectory(directory), Quiet())
        refused = [r.error for r in measured.refused if r.error is not None]
        invalid = (
            [f"{len(refused)} workload requests were refused ({refused[0]})"] if refused else []
        )
        return Recorded(
            requests=len(measured.workload),
            invalid=[*invalid, *measured.findings.invalid],
            notes=[*plan.notes, *work.notes, *measured.findings.flags],
        )

    def prepare(self, tree: Mapping[str, Any], directory: Path) -> Prepared:
        """Load the models, take the recorded work, and run every mode once, untimed.

        Raises:
            UsageError: the configuration is refused, or the file is none of recorded work.
        """
        plan = make_plan(parse_config(dict(tree)))
        manifest = start_manifest(plan)
        self._watched = watched_files(plan, manifest)
        measured = _read_work(plan, directory / WORKLOAD_FILE)
        self._workload = measured.workload
        monitor = Monitor.of(str(plan.model.network.device))
        for mode in plan.modes:
            subject = plan.subject(mode)
            self._subjects[subject.label] = TimedSubject(
                plan, subject, measured.workload, measured.arrivals, monitor
            )
        warm = {label: self.time(label) for label in self._subjects}
        for timed in self._subjects.values():
            timed.engine.capture()
        # What is there now stays: collecting between timed regions need not look at it.
        gc.collect()
        gc.freeze()
        return Prepared(
            manifest=manifest,
            config=plan.config.model_dump(mode="json"),
            model=model_facts(plan),
            workload=workload_facts(plan, None, measured),
            wall_ratios=measured.arrivals.wall_ratios_allowed,
            compute_threads=compute_threads(plan),
            warm=warm,
            unequal=self._given_other_work(measured),
        )

    def time(self, label: str) -> Timed:
        """One timed region of one mode."""
        timed = self._subjects[label]
        run = timed.run(self._repeats, 0)
        self._repeats += 1
        adaptive = [label] if timed.subject.adaptive else []
        own = [label] if timed.own_vocabulary else []
        return Timed(
            mode=label,
            wall_s=run.trace.wall_s,
            decode_wall_s=decode_wall_s(run.trace),
            metrics=evaluate(run.trace),
            environment=run.environment,
            unequal=[
                *unequal_work([run], self._workload, adaptive, own),
                *broken_identities(run.trace),
            ],
        )

    def leave(self) -> Farewell:
        """What changed since ``prepare``."""
        watched = self._watched
        return Farewell(
            changed_sources=watched.changed_sources() if watched is not None else [],
            changed_models=watched.changed_models() if watched is not None else [],
        )

    def _given_other_work(self, measured: Measurements) -> list[str]:
        return [
            f"mode {label}: {why}"
            for label, timed in self._subjects.items()
            if not timed.own_vocabulary
            and (why := difference(timed.requests, measured.workload, measured.arrivals))
        ]


def _read_work(plan: Plan, path: Path) -> Measurements:
    """The recorded work of a file, as a run would have measured it."""
    records = list(read_workload(path))
    if not records:
        raise UsageError(f"{path}: holds no request; record the work again")
    offsets = [r.arrival_s for r in records if r.arrival_s is not None]
    spec = parse_arrivals(plan.config.workload.arrivals)
    return Measurements(
        workload=[
            RecordedRequest(
                id=r.id,
                task=r.task,
                doc_id=r.doc_id,
                prompt=tuple(r.prompt),
                tokens=tuple(r.tokens),
                executed_depths=tuple(r.executed_depths),
                requested_depths=tuple(r.requested_depths),
                predicted_depths=None if r.predicted_depths is None else tuple(r.predicted_depths),
            )
            for r in records
        ],
        arrivals=ArrivalSchedule(spec, tuple(offsets) if offsets else None),
    )

"""Run the cells that are not finished, in their random order, round after round.

One cell's failure is written beside it and the next one runs. An interruption ends the sweep with
everything on disk, so that the same command goes on where it stopped.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cdbench.config import RunConfig
from cdbench.errors import CdbenchError
from cdbench.schema.sweep import CellAttempt, CellRound, State, SweepEstimate
from cdbench.sweep.cells import Cell, Sweep
from cdbench.sweep.directory import SweepDirectory

RunCell = Callable[[RunConfig, Path], bool]
"""Run one cell into a directory that is not there yet; False where it was interrupted."""

Announce = Callable[[str], None]
"""Told what is going on, one line each. Never called inside a timed region."""


@dataclass(frozen=True)
class Job:
    """One cell in one round."""

    cell: Cell
    round: int


@dataclass(frozen=True)
class Executed:
    """What one invocation did: whether it was interrupted, and how many cells it left."""

    interrupted: bool
    left: int


def jobs(sweep: Sweep) -> list[Job]:
    """Every cell of every round, in the order they run: a new random order each round."""
    return [
        Job(cell, number) for number in range(1, sweep.rounds + 1) for cell in sweep.order(number)
    ]


def to_run(sweep: Sweep, directory: SweepDirectory, retry_failed: bool) -> list[Job]:
    """The jobs that are not finished; failed ones only where they are to be tried again."""
    return [
        job
        for job in jobs(sweep)
        if not is_done(directory.look(job.cell, job.round).state, retry_failed)
    ]


def is_done(state: State, retry_failed: bool) -> bool:
    """Whether a cell in this state is left as it is."""
    return state == "finished" or (state == "failed" and not retry_failed)


def execute(
    waiting: Sequence[Job],
    directory: SweepDirectory,
    run_cell: RunCell,
    announce: Announce,
    after_each: Callable[[], None],
    limit: int | None = None,
) -> Executed:
    """Run jobs in order, at most ``limit`` of them; ``after_each`` may write the document."""
    chosen = waiting[:limit]
    for count, job in enumerate(chosen, start=1):
        announce(
            f"cell {count} of {len(chosen)}: {job.cell.hash}, round {job.round}: {job.cell.words}"
        )
        target = directory.cell(job.cell, job.round)
        directory.set_aside(target)
        try:
            finished = _attempt(job, target, directory, run_cell, announce)
        except KeyboardInterrupt:
            finished = False
        after_each()
        if not finished:
            return Executed(True, len(waiting) - count + 1)
    return Executed(False, len(waiting) - len(chosen))


def _attempt(
    job: Job, target: Path, directory: SweepDirectory, run_cell: RunCell, announce: Announce
) -> bool:
    """Run one job; False where it was interrupted. Its failure is kept and not raised."""
    started, clock = datetime.now(UTC), time.monotonic()
    config = job.cell.config.model_copy(update={"out": str(target)})
    error = trace = None
    try:
        if not run_cell(config, target):
            return False
    except Exception as caught:
        error = " ".join(f"{type(caught).__name__}: {caught}".split())
        if isinstance(caught, CdbenchError):
            error = " ".join(str(caught).split())
        else:
            trace = traceback.format_exc()
        announce(f"failed: {error}")
    directory.note(
        target,
        CellAttempt(
            hash=job.cell.hash,
            round=job.round,
            changes=job.cell.changes,
            started_utc=started.isoformat(timespec="seconds"),
            seconds=time.monotonic() - clock,
            error=error,
            traceback=trace,
        ),
    )
    return True


def estimate(waiting: Sequence[Job], looked: dict[str, list[CellRound]]) -> SweepEstimate:
    """How long the waiting jobs will take, from the recorded times of finished ones.

    A cell that has finished in another round takes its own mean time, any other the mean over the
    finished cells. ``looked``: cell hash → its rounds.
    """
    times = {
        name: [r.seconds for r in rounds if r.state == "finished" and r.seconds is not None]
        for name, rounds in looked.items()
    }
    means = {name: sum(found) / len(found) for name, found in times.items() if found}
    left = [job.cell.hash for job in waiting]
    counts = dict(Counter(left))
    finished = sum(map(len, times.values()))
    if not means:
        return SweepEstimate(
            seconds=None, cells_left=len(left), finished=finished, left_per_cell=counts
        )
    overall = sum(means.values()) / len(means)
    per_cell = {name: means.get(name, overall) for name in left}
    return SweepEstimate(
        seconds=sum(per_cell[name] for name in left),
        cells_left=len(left),
        finished=finished,
        per_cell=per_cell,
        left_per_cell=counts,
    )

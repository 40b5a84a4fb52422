"""One invocation of a sweep: what is left of it, run, and the document of the whole."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from cdbench.schema.sweep import SweepDocument
from cdbench.sweep.cells import Cell, Check, Sweep
from cdbench.sweep.directory import SweepDirectory
from cdbench.sweep.execute import Announce, RunCell, execute, is_done, to_run
from cdbench.sweep.file import SweepFile
from cdbench.sweep.preflight import preflight
from cdbench.sweep.runners import runner
from cdbench.sweep.summary import Summary


@dataclass(frozen=True)
class Options:
    """How to run a sweep: where, whether failed cells run again, and how many cells at most."""

    out: str | None = None
    retry_failed: bool = False
    limit: int | None = None


def check_of(file: SweepFile, options: Options, announce: Announce) -> Check:
    """The check of the cells that the command would run: each as its run would find it."""
    directory = SweepDirectory.of(options.out, file.name, file.verb)

    def needed(cell: Cell) -> bool:
        states = (directory.look(cell, n).state for n in range(1, file.rounds + 1))
        return not all(is_done(state, options.retry_failed) for state in states)

    return preflight(file.verb, needed, announce)


def plan(sweep: Sweep, out: str | None, retry_failed: bool = False) -> SweepDocument:
    """What the same command would run, and for how long. Writes nothing."""
    directory = SweepDirectory.of(out, sweep.name, sweep.verb)
    return Summary(sweep, directory).planned(to_run(sweep, directory, retry_failed))


def run(
    sweep: Sweep, options: Options, announce: Announce, run_cell: RunCell | None = None
) -> SweepDocument:
    """Run what is not finished and answer the whole sweep as it then stands.

    ``sweep.json`` is written before the first cell and after every one. Raises UsageError before
    anything runs where the directory will not do.
    """
    directory = SweepDirectory.of(options.out, sweep.name, sweep.verb)
    with directory.claimed(sweep.name):
        return _run(sweep, directory, options, announce, run_cell or runner(sweep.verb))


def _run(
    sweep: Sweep,
    directory: SweepDirectory,
    options: Options,
    announce: Announce,
    run_cell: RunCell,
) -> SweepDocument:
    summary = Summary(sweep, directory)
    waiting = to_run(sweep, directory, options.retry_failed)
    directory.write(summary.so_far(waiting))
    ended = itertools.count(1)
    executed = execute(
        waiting,
        directory,
        run_cell,
        announce,
        lambda: directory.write(summary.so_far(waiting[next(ended) :])),
        options.limit,
    )
    document = summary.so_far(waiting[len(waiting) - executed.left :], executed.interrupted)
    directory.write(document)
    announce(f"written to {directory.path}")
    return document

"""Every cell as its run would find it, before the first one runs: models, sources, traces, sizes.

What cells have in common is loaded once, and of models that differ one at a time. Nothing is timed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from cdbench.bench.benchmark import sound
from cdbench.bench.once import WORK, Kept, model_key, work_key
from cdbench.bench.plan import UNROLLED
from cdbench.config import RunConfig
from cdbench.errors import CdbenchError
from cdbench.stages.measure import Asked, sound_ground
from cdbench.sweep.cells import Cell, Check
from cdbench.sweep.execute import Announce
from cdbench.sweep.file import Verb
from cdbench.sweep.runners import let_go

Sound = Callable[[RunConfig, Kept], object]
"""Raises UsageError for what a run of the configuration would be refused for."""


def preflight(verb: Verb, needed: Callable[[Cell], bool], announce: Announce) -> Check:
    """The check of a sweep's cells; those that are not ``needed`` will not run and are left out."""
    check: Sound = sound if verb == "run" else _sound_stages

    def refused(cells: Sequence[Cell]) -> dict[int, str]:
        found: dict[int, str] = {}
        waiting = sorted(filter(needed, cells), key=lambda cell: _models(cell.config))
        if waiting:
            announce(f"checking {len(waiting)} cell{'' if len(waiting) == 1 else 's'}")
        for _, alike in itertools.groupby(waiting, key=lambda cell: _models(cell.config)):
            found |= _refused(list(alike), check)
            let_go()
        return found

    return refused


def _refused(cells: Sequence[Cell], check: Sound) -> dict[int, str]:
    """Of cells that run the same models: number → why. One workload is held at a time."""
    found: dict[int, str] = {}
    once = Kept()
    by_work = sorted(cells, key=lambda cell: work_key(cell.config))
    for _, alike in itertools.groupby(by_work, key=lambda cell: work_key(cell.config)):
        for cell in alike:
            why = _why_not(cell.config, check, once)
            if why is not None:
                found[cell.number] = why
        once.forget(WORK)
    return found


def _sound_stages(config: RunConfig, once: Kept) -> object:
    return sound_ground(config, Asked(), once)


def _why_not(config: RunConfig, check: Sound, once: Kept) -> str | None:
    try:
        check(config, once)
    except CdbenchError as error:
        return str(error)
    except Exception:
        # No wrong input, but a failure: it is that cell's own, and is kept when it runs.
        return None
    return None


def _models(config: RunConfig) -> tuple[str, ...]:
    """The models a run holds at once. The unrolled twin is another one for other loops."""
    dense = [mode.dense for mode in config.resolved_modes if mode.dense is not None]
    loops = str(config.exit.max_loops) if UNROLLED in dense else ""
    return (*model_key(config), *dense, loops)

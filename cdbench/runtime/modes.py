"""What a mode means for the runtime: its schedule, its maximum depth, and whether rules count."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from cdbench.errors import UsageError
from cdbench.grammar import Mode
from cdbench.runtime.core import ExitPolicy, Request
from cdbench.runtime.schedules.base import Schedule
from cdbench.runtime.schedules.cdb import ContinuousDepth
from cdbench.runtime.schedules.coda_minimum import AutoMinimum
from cdbench.runtime.schedules.lockstep import Lockstep


def make_schedule(
    mode: Mode, width: int, coda_min_rows: int | Literal["auto"], max_residents: int, max_loops: int
) -> Schedule:
    """The loop-level policy of a mode.

    ``dense`` and ``static`` are token-boundary batching without exits: the same policy as
    ``lockstep``, under rule ``none``. A batch of theirs has one coda, so it waits for no minimum.
    """
    if mode.kind != "cdb":
        return Lockstep(width)
    if coda_min_rows == "auto":
        return ContinuousDepth(width, auto=AutoMinimum(width, max_residents, max_loops))
    return ContinuousDepth(width, coda_min_rows)


def mode_loops(mode: Mode, model_loops: int) -> int:
    """Most loops a token runs; UsageError where ``static@D`` asks for more than there are."""
    if mode.depth is None:
        return model_loops
    if mode.depth == "auto":
        raise UsageError("mode 'static@auto': a run chooses its depth; an engine needs static@D")
    if mode.depth > model_loops:
        raise UsageError(f"mode '{mode}': is above the model's {model_loops}; lower the depth")
    return mode.depth


def adapt(mode: Mode, request: Request) -> Request:
    """The request as a mode serves it: full-depth modes run rule ``none``."""
    if mode.adaptive:
        return request
    return replace(request, exit=ExitPolicy(), replay_depths=None)

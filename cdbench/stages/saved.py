"""Stage curves measured before: read, and refused where they cannot stand for a run's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cdbench.bench.plan import Plan
from cdbench.errors import UsageError
from cdbench.metrics.curves import CurveStage
from cdbench.runtime.exit_rule import Needs
from cdbench.runtime.exits import RULES
from cdbench.schema.files import read_document
from cdbench.schema.stages import STAGES_FILE, StageCurves
from cdbench.stages.grid import NEAR_POSITIONS
from cdbench.stages.key import differences, stage_key

BEYOND = 1.25
"""Contexts this far beyond those measured are still read off the last line of a curve."""


def read_curves(path: Path, plan: Plan) -> StageCurves:
    """Saved curves that may stand for this plan's, as far as they reach (``uncovered``).

    Raises:
        UsageError: the file cannot be read, was measured for something else (every field that
        differs is named), with rows of equal context, or its points are no curves.
    """
    file = path / STAGES_FILE if path.is_dir() else path
    saved = read_document(StageCurves, file)
    differs = differences(saved.key, stage_key(plan))
    if differs:
        raise UsageError(
            f"{file}: these stage curves were measured for something else ({'; '.join(differs)}); "
            "measure anew with `cdbench stages`"
        )
    if saved.rows != "ragged":
        raise UsageError(
            f"{file}: these stage curves have rows of equal context in a launch, a run's are "
            "ragged; measure anew with `cdbench stages` without --contexts"
        )
    try:
        saved.check(_with_exit(plan))
    except ValueError as error:
        raise UsageError(f"{file}: {error}; measure anew with `cdbench stages`") from None
    return saved


def uncovered(saved: StageCurves, contexts: Sequence[int], width: int) -> str | None:
    """Why saved curves do not reach these contexts and this width; None where they do, or nearly.

    Widths are reached or not, since nothing wider was launched.
    """
    reached = saved.widest
    if reached < width:
        return f"they reach {reached} rows, launches here have up to {width}"
    low, high = min(contexts), max(contexts)
    least = min(saved.contexts[0] / BEYOND, saved.contexts[0] - NEAR_POSITIONS + 1)
    if low >= least and high <= saved.contexts[-1] * BEYOND:
        return None
    return (
        f"they were measured at contexts of {saved.contexts[0]} to {saved.contexts[-1]}, later "
        f"tokens here have {low} to {high}"
    )


def _with_exit(plan: Plan) -> tuple[CurveStage, ...]:
    """The stages that take another time where tokens leave early, so that they need curves."""
    if RULES[plan.policy.rule].needs is Needs.NOTHING:
        return ()
    return ("prelude_with_exit", "core_with_exit", "coda_with_exit")

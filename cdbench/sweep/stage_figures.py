"""Columns of a sweep over stage curves: ``STAGE[ROWS]``, ``STAGE[width]``.

Seconds of one launch of so many rows (``width``: the most measured), at the middle one of the
contexts measured, or the longer of two. Beside it stand the fastest and the slowest pass, which are
no interval.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cdbench import resources
from cdbench.errors import UsageError
from cdbench.metrics.curves import CURVE_STAGES
from cdbench.schema import IntervalRecord
from cdbench.schema.stages import StageCurves

WIDTH = "width"
DEFAULT = ("core[1]", "core[width]", "core_with_exit[width]", "prelude[width]", "coda[width]")
_FORM = re.compile(rf"([a-z_]+)\[([1-9][0-9]*|{WIDTH})\]")


def stage_columns(show: Sequence[str]) -> tuple[str, ...]:
    """The columns asked for, or the usual ones. UsageError for one that is none."""
    for text in show:
        found = _FORM.fullmatch(text)
        if found is None:
            raise UsageError(f"show: {text!r}: no column of stage curves; write core[32]")
        if found[1] not in CURVE_STAGES:
            hint = resources.nearest_hint(found[1], CURVE_STAGES)
            raise UsageError(f"show: {text!r}: no stage {found[1]!r}; {hint}")
    return tuple(show) or DEFAULT


def stage_value(name: str, found: Sequence[StageCurves]) -> IntervalRecord | None:
    """A column over the documents of a cell, one a round: their mean, and the extreme passes.

    None where a document lacks the point: a rule that computes nothing has no ``_with_exit``.
    """
    points = []
    for curves in found:
        stage, rows = name.removesuffix("]").split("[")
        there = [p for p in curves.points if p.stage == stage]
        wanted = max((p.rows for p in there), default=0) if rows == WIDTH else int(rows)
        contexts = sorted({p.context for p in there if p.rows == wanted})
        if not contexts:
            return None
        middle = contexts[len(contexts) // 2]
        points += [p for p in there if p.rows == wanted and p.context == middle]
    if not points:
        return None
    return IntervalRecord(
        estimate=sum(p.time_s for p in points) / len(points),
        low=min(p.low_s for p in points),
        high=max(p.high_s for p in points),
        n=sum(p.passes for p in points),
    )

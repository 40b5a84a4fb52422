"""Accuracy by threshold and maximum of loops, against the fixed depths: texts alone, timed nowhere.

A sweep of its own beside the profile's: widths and rates change no answer that matters here, so
each operating point answers once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdbench.config import Tree, with_keys
from cdbench.metrics.envelope import height_at, upper_hull
from cdbench.profile.cells import accuracy_fields
from cdbench.profile.grid import Axes, depth_grid
from cdbench.schema import ModeResult, Result
from cdbench.schema.profile import AccuracyPoint, ProfileCell
from cdbench.sweep.cells import Sweep
from cdbench.sweep.directory import SweepDirectory
from cdbench.sweep.file import SweepFile, parse_sweep

STATIC = "static"


def accuracy_sweep(
    base: Tree, axes: Axes, name: str, mode: str, questions: int, full_depth: int
) -> SweepFile:
    """The operating points of a profile, each answering ``questions`` of every task.

    Beside ``mode`` the fixed depths below the least R (``full_depth`` without an axis of it) answer
    as well, and ``static``, over which every difference is.
    """
    least = min(axes.max_loops, default=full_depth)
    fixed = [STATIC, *(f"{STATIC}@{depth}" for depth in range(1, least))]
    modes = list(dict.fromkeys([STATIC, mode]))
    own = {"work": ["live"], "limit": questions, "modes": modes, "dense": [], "stages": "measure"}
    kept = {key: value for key, value in base.items() if key not in ("equal", "repeats")}
    document: dict[str, Any] = {
        "name": f"{name}-accuracy",
        "base": with_keys(kept, own, "profile"),
        "grid": depth_grid(axes, base),
        # Once: no threshold changes what a fixed depth answers.
        "include": [{"modes": fixed}] if least > 1 else [],
    }
    return parse_sweep(document, "profile")


def accuracy_points(sweep: Sweep, directory: SweepDirectory, mode: str) -> list[AccuracyPoint]:
    """What every finished operating point answered, by mean depth; each fixed depth once."""
    found: dict[Any, AccuracyPoint] = {}
    for cell in sweep.cells:
        for result in directory.results(cell, 1)[:1]:
            for label, row in result.modes.items():
                if label == mode or row.schedule == STATIC:
                    point = _point(result, label, row)
                    found.setdefault((label, point.rule, point.threshold, point.max_loops), point)
    points = sorted(found.values(), key=lambda p: (p.mean_depth or 0.0, p.mode))
    hull = list(upper_hull(sorted({xy for p in points if (xy := _fixed(p)) is not None})))
    return [
        point.model_copy(update={"static_at_depth": height_at(hull, point.mean_depth)})
        for point in points
    ]


def with_accuracy(cell: ProfileCell, points: Sequence[AccuracyPoint], mode: str) -> ProfileCell:
    """A cell with the accuracy of its operating point, where it has none of its own."""
    if cell.accuracy is not None:
        return cell
    key = (cell.rule, cell.threshold, cell.max_loops)
    for point in points:
        if point.mode == mode and (point.rule, point.threshold, point.max_loops) == key:
            return cell.model_copy(
                update={"accuracy": point.accuracy, "accuracy_verdict": point.verdict}
            )
    return cell


def _point(result: Result, label: str, mode: ModeResult) -> AccuracyPoint:
    known = accuracy_fields(result, mode, label)
    return AccuracyPoint(
        mode=label,
        rule=mode.exit.rule,
        threshold=mode.exit.threshold,
        max_loops=mode.max_loops,
        mean_depth=mode.answered_depth,
        accuracy=known.get("accuracy"),
        verdict=known.get("accuracy_verdict"),
    )


def _fixed(point: AccuracyPoint) -> tuple[float, float] | None:
    """Depth and accuracy of a fixed depth; None for an adaptive point, or without an answer."""
    if not point.mode.startswith(STATIC) or point.accuracy is None:
        return None
    share = point.accuracy.estimate
    return None if share is None else (float(point.max_loops), share)

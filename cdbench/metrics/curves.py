"""Stage curves: what one launch of a stage takes, by rows and context, as measured.

A curve is a grid of measured points, read between them by straight lines: in rows and in context.
Below the smallest context (and the fewest rows) the nearest point stands; above the largest context
the last two go on as they were; beyond the most rows measured there is no answer, because nothing
wider was ever launched.

Between two measured widths t(b) is a line, so t(b)/b rises or falls all the way and its least value
lies at a measured width or at the end: ``ideal_row_s`` looks at those alone and is exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

CurveStage = Literal[
    "prelude", "prelude_with_exit", "core", "core_with_exit", "coda", "coda_with_exit", "prefill"
]
"""What is timed. ``…_with_exit``: where tokens leave early by the run's exit rule. Its signal, test
and readback are in the core (and in the coda, of a rule that reads logits), and a prelude settles
the slots that the token before it never wrote. ``prefill``: all launches of one chunk of prompt
tokens together; rows are its tokens."""

CURVE_STAGES: tuple[CurveStage, ...] = get_args(CurveStage)
LARGEST = 2**31
"""No launch has more rows, and no row attends to more positions."""
SHORTEST_S, LONGEST_S = 1e-12, 86_400.0
"""What cannot be the time of a launch: sums over a run's launches would lose their meaning."""
WITHOUT_EXIT: dict[CurveStage, CurveStage] = {
    "prelude_with_exit": "prelude",
    "core_with_exit": "core",
    "coda_with_exit": "coda",
}
"""Stages that cost as much as another where the exit rule computes nothing in them."""


class Curves(Protocol):
    """Seconds that launches take on one machine, for one model and one set-up."""

    def launch_s(self, stage: CurveStage, rows: float, context: float) -> float:
        """Seconds of one launch of ``rows`` rows of which the longest attends to ``context``."""
        ...

    def launches_s(
        self, stage: CurveStage, rows: npt.ArrayLike, contexts: npt.ArrayLike
    ) -> FloatArray:
        """``launch_s`` of many launches of one stage at once, ``[N]`` each."""
        ...

    def ideal_row_s(self, stage: CurveStage, width: int, contexts: FloatArray) -> FloatArray:
        """t̂: the least t(b, context) / b over b ≤ ``width``, one value per context."""
        ...

    def prefill_token_s(self, tokens: int) -> float:
        """The least t_prefill(n) / n over n ≤ ``tokens``: a prompt token's prelude, R loops, coda.

        The readouts of first tokens are in it.
        """
        ...


@dataclass(frozen=True)
class CurvePoint:
    """The time of one launch: ``rows`` rows (``prefill``: tokens) at ``context`` positions."""

    stage: CurveStage
    rows: int
    context: int
    time_s: float


class MeasuredCurves:
    """``Curves`` from measured points.

    A ``…_with_exit`` stage without points is its plain stage: the rule computes nothing there.

    Raises:
        ValueError: a stage's points are no full grid of rows and contexts, or a time is none that
        a launch can take.
    """

    def __init__(self, points: Iterable[CurvePoint]) -> None:
        by_stage: dict[CurveStage, list[CurvePoint]] = {}
        for point in points:
            by_stage.setdefault(point.stage, []).append(point)
        self._grids = {stage: _Grid.of(found) for stage, found in by_stage.items()}

    @property
    def stages(self) -> tuple[CurveStage, ...]:
        """The stages with points of their own, in the order of ``CURVE_STAGES``."""
        return tuple(stage for stage in CURVE_STAGES if stage in self._grids)

    def widest(self, stage: CurveStage) -> int:
        """The most rows that were measured. ValueError for a stage without points."""
        return int(self._grid(stage).rows[-1])

    def narrowest(self, stage: CurveStage) -> int:
        """The fewest rows that were measured. ValueError for a stage without points."""
        return int(self._grid(stage).rows[0])

    def contexts(self, stage: CurveStage) -> list[int]:
        """The contexts measured, ascending. ValueError for a stage without points."""
        return [int(context) for context in self._grid(stage).contexts]

    def middle_context(self, stage: CurveStage) -> float:
        """The middle one of the contexts measured, or of an even number halfway between two."""
        return float(np.median(self._grid(stage).contexts))

    def launch_s(self, stage: CurveStage, rows: float, context: float) -> float:
        """Seconds of one launch. ValueError beyond the most rows measured, or for 0 rows."""
        return float(self.launches_s(stage, np.array([rows]), np.array([context]))[0])

    def launches_s(
        self, stage: CurveStage, rows: npt.ArrayLike, contexts: npt.ArrayLike
    ) -> FloatArray:
        """Seconds of many launches of one stage; ValueError as in ``launch_s``."""
        grid = self._grid(stage)
        rows_N = np.asarray(rows, dtype=np.float64)
        contexts_N = np.asarray(contexts, dtype=np.float64)
        if rows_N.size and not (rows_N.min() > 0 and rows_N.max() <= grid.rows[-1]):
            raise ValueError(
                f"curve {stage}: asked for {rows_N.min():g} to {rows_N.max():g} rows, measured up "
                f"to {grid.rows[-1]:g}; measure up to the width that is used"
            )
        return grid.at(rows_N, contexts_N)

    def ideal_row_s(self, stage: CurveStage, width: int, contexts: npt.ArrayLike) -> FloatArray:
        """t̂ per context ``[N]``: the least t(b, context) / b over b ≤ ``width``.

        Raises:
            ValueError: ``width`` is beyond the most rows measured, or below 1.
        """
        unique, back = np.unique(np.asarray(contexts, dtype=np.float64), return_inverse=True)
        widths = np.array(self._widths(stage, width))
        rows, at = np.repeat(widths, unique.size), np.tile(unique, widths.size)
        times = (self.launches_s(stage, rows, at) / rows).reshape(widths.size, unique.size)
        least: FloatArray = times.min(axis=0)[back.reshape(-1)]
        return least

    def prefill_token_s(self, tokens: int) -> float:
        """The least t(n) / n over chunks of n ≤ ``tokens`` prompt tokens.

        Chunks are never larger than the largest measured, however many tokens there are.
        ValueError below 1 token.
        """
        grid = self._grid("prefill")
        most = min(tokens, int(grid.rows[-1]))
        context = np.array([grid.contexts[0]])
        return float(self.ideal_row_s("prefill", most, context)[0])

    def _widths(self, stage: CurveStage, width: int) -> list[float]:
        """The widths at which t(b)/b can be least: those measured, and the end."""
        measured = self._grid(stage).rows
        return [*(float(b) for b in measured[measured < width]), float(width)]

    def _grid(self, stage: CurveStage) -> _Grid:
        grid = self._grids.get(stage) or self._grids.get(WITHOUT_EXIT.get(stage, stage))
        if grid is None:
            raise ValueError(f"curve {stage}: was not measured; there are {', '.join(self._grids)}")
        return grid


@dataclass(frozen=True)
class _Grid:
    """One stage: ``time_s[i, j]`` at ``rows[i]`` and ``contexts[j]``, both ascending."""

    rows: FloatArray
    contexts: FloatArray
    time_s: FloatArray

    @staticmethod
    def of(points: list[CurvePoint]) -> _Grid:
        times = {(p.rows, p.context): p.time_s for p in points}
        rows = sorted({p.rows for p in points})
        contexts = sorted({p.context for p in points})
        stage = points[0].stage
        if len(points) != len(rows) * len(contexts) or len(times) != len(points):
            raise ValueError(
                f"curve {stage}: {len(points)} points are no grid of {len(rows)} widths and "
                f"{len(contexts)} contexts"
            )
        if rows[0] < 1 or contexts[0] < 0 or max(rows[-1], contexts[-1]) > LARGEST:
            raise ValueError(
                f"curve {stage}: rows must be above 0, contexts not below, and both at most "
                f"{LARGEST:,}"
            )
        if not all(SHORTEST_S <= t <= LONGEST_S for t in times.values()):
            raise ValueError(
                f"curve {stage}: times must be above 0, {SHORTEST_S:g} to {LONGEST_S:g} s"
            )
        time_s = np.array([[times[b, c] for c in contexts] for b in rows], np.float64)
        return _Grid(np.array(rows, np.float64), np.array(contexts, np.float64), time_s)

    def at(self, rows_N: FloatArray, contexts_N: FloatArray) -> FloatArray:
        """Times ``[N]``, linear in rows and in context."""
        low, high, share = _place(self.rows, rows_N)
        left, right, along = _place(self.contexts, contexts_N, beyond=True)
        corner = self.time_s
        at_left = corner[low, left] + share * (corner[high, left] - corner[low, left])
        at_right = corner[low, right] + share * (corner[high, right] - corner[low, right])
        rise = at_right - at_left
        # Less time at more context is noise: followed far enough it would end below 0.
        past_end = np.maximum(along - 1, 0.0) * np.maximum(rise, 0.0)
        times: FloatArray = at_left + np.minimum(along, 1.0) * rise + past_end
        return times


def _place(
    axis: FloatArray, values: FloatArray, beyond: bool = False
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], FloatArray]:
    """Between which two points each value lies, and how far along; past the end with ``beyond``."""
    high = np.clip(np.searchsorted(axis, values), 1, max(1, axis.size - 1))
    if axis.size == 1:
        nowhere = np.zeros(values.shape, np.intp)
        return nowhere, nowhere, np.zeros(values.shape)
    low = high - 1
    share = (values - axis[low]) / (axis[high] - axis[low])
    return low, high, np.clip(share, 0.0, None if beyond else 1.0)

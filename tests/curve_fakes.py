"""Stage curves that can be worked out by hand: a fixed part, a part per row, a part by context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cdbench.metrics.curves import CurvePoint, CurveStage, FloatArray, MeasuredCurves


@dataclass(frozen=True)
class Line:
    """t(rows, context) = fixed + rows · (row + by_context · context), seconds."""

    fixed: float
    row: float
    by_context: float = 0.0


@dataclass(frozen=True)
class LinearCurves:
    """Curves of straight lines up to ``widest`` rows; the widest launch is the cheapest a row."""

    lines: dict[CurveStage, Line] = field(
        default_factory=lambda: {
            "prelude": Line(0.1, 0.1),
            "prelude_with_exit": Line(0.2, 0.1),
            "core": Line(1.0, -0.5, 0.1),
            "core_with_exit": Line(1.2, -0.5, 0.1),
            "coda": Line(0.2, 0.4),
            "coda_with_exit": Line(0.3, 0.4),
            "prefill": Line(1.0, 0.25),
        }
    )
    widest: int = 64

    def launch_s(self, stage: CurveStage, rows: float, context: float) -> float:
        return float(self.launches_s(stage, [rows], [context])[0])

    def launches_s(
        self, stage: CurveStage, rows: npt.ArrayLike, contexts: npt.ArrayLike
    ) -> FloatArray:
        rows_N, contexts_N = np.asarray(rows, np.float64), np.asarray(contexts, np.float64)
        self._check(rows_N.max())
        line = self.lines[stage]
        times: FloatArray = line.fixed + rows_N * (line.row + line.by_context * contexts_N)
        return times

    def ideal_row_s(self, stage: CurveStage, width: int, contexts: FloatArray) -> FloatArray:
        self._check(width)
        line = self.lines[stage]
        return line.fixed / width + line.row + line.by_context * np.asarray(contexts, np.float64)

    def prefill_token_s(self, tokens: int) -> float:
        line = self.lines["prefill"]
        return line.fixed / tokens + line.row

    def _check(self, rows: float) -> None:
        if rows > self.widest:
            raise ValueError(f"curve: asked for {rows:g} rows, measured up to {self.widest}")


def measured(
    lines: Mapping[CurveStage, Line],
    widest: int = 64,
    contexts: Sequence[int] = (10, 30),
    chunk: int = 64,
) -> MeasuredCurves:
    """Points on such lines: at 1 and ``widest`` rows, prompts at 1 and ``chunk`` tokens."""
    return MeasuredCurves(
        CurvePoint(stage, rows, at, line.fixed + rows * (line.row + line.by_context * at))
        for stage, line in lines.items()
        for rows in {1, chunk if stage == "prefill" else widest}
        for at in contexts
    )

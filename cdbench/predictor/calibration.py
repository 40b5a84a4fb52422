"""How far a gate's probabilities are what they say, on decisions that it was not fitted on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cdbench.runtime.core import BoolArray, FloatArray
from cdbench.schema.lookahead import Calibration, ReliabilityBin

BINS = 10


def calibration(
    probability_T: FloatArray,
    met_T: BoolArray,
    scale: tuple[float, list[float]],
    least_precision: float,
    precision: float | None,
) -> Calibration:
    """Of held-out decisions; ``scale``: Platt's slope and the offset of each loop."""
    bins = reliability(probability_T, met_T)
    return Calibration(
        slope=scale[0],
        offsets=scale[1],
        least_precision=least_precision,
        precision=precision,
        error=calibration_error(bins),
        reliability=bins,
    )


def reliability(probability_T: FloatArray, met_T: BoolArray) -> list[ReliabilityBin]:
    """Decisions by tenths of their probability."""
    place = np.minimum((probability_T * BINS).astype(np.int64), BINS - 1)
    bins = []
    for i in range(BINS):
        here = place == i
        n = int(here.sum())
        bins.append(
            ReliabilityBin(
                low=i / BINS,
                high=(i + 1) / BINS,
                decisions=n,
                mean_probability=float(probability_T[here].mean()) if n else None,
                met=float(met_T[here].mean()) if n else None,
            )
        )
    return bins


def calibration_error(bins: Sequence[ReliabilityBin]) -> float | None:
    """Mean over decisions of |mean probability − share met| of their tenth (Naeini et al. 2015)."""
    total = sum(one.decisions for one in bins)
    if not total:
        return None
    gaps = (
        one.decisions * abs(one.mean_probability - one.met)
        for one in bins
        if one.mean_probability is not None and one.met is not None
    )
    return sum(gaps) / total


def remarks(name: str, slope: float, precision: float | None, least_precision: float) -> list[str]:
    """What a reader must know of a gate that falls short; nothing of one that does not."""
    notes = []
    if slope <= 0:
        notes.append(
            f"on requests that it was not fitted on the {name} was no better than chance "
            f"(Platt slope {slope:.3g})"
        )
    if precision is None:
        notes.append(f"no threshold of the {name} calls any exit")
    elif precision < least_precision:
        notes.append(
            f"no threshold of the {name} reaches a precision of {least_precision:g}: the best has "
            f"{precision:.3g}"
        )
    return notes

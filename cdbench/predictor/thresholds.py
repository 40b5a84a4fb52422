"""From which probability on a gate calls: exact depths first, among what is right often enough."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cdbench.runtime.core import FloatArray
from cdbench.schema.lookahead import GateFigures

THRESHOLDS_TRIED = 200


def best_threshold(
    seen: FloatArray,
    figures_at: Callable[[float], GateFigures],
    precision_of: Callable[[GateFigures], float | None],
    least_precision: float,
) -> tuple[float, GateFigures]:
    """The threshold with most tokens at exactly their depth, its calls right often enough.

    Those tried are quantiles of the probabilities ``seen``. Where no threshold's calls are right
    often enough, the one whose calls are right most often.
    """
    tried = np.unique(np.quantile(seen, np.linspace(0, 1, THRESHOLDS_TRIED)).clip(1e-6, 1.0))
    found = [(float(x), figures_at(float(x))) for x in tried]
    called = [(x, f) for x, f in found if precision_of(f) is not None]
    if not called:
        return found[-1]
    enough = [(x, f) for x, f in called if (precision_of(f) or 0.0) >= least_precision]
    if not enough:
        return max(called, key=lambda pair: (precision_of(pair[1]) or 0.0, pair[0]))
    return max(enough, key=lambda pair: (pair[1].exact or 0.0, pair[0]))

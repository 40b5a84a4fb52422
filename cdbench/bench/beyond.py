"""Realised shares of a time bound beyond 1: which they are, and what may be behind them."""

from __future__ import annotations

from collections.abc import Mapping

from cdbench.metrics.bounds import MEASURING_ERROR, Scope
from cdbench.metrics.waterfall import EFFECTS
from cdbench.schema import BoundRecord, Waterfall, WaterfallRow

AFTER_THE_BOUND = frozenset(EFFECTS[2:9]) - {"stage_curves"}
"""Where static can honestly lose more than the mode; ``stage_curves`` is an error of measuring."""
PROMPTS = EFFECTS[9]
"""Where it can besides end to end: fewer prompts share a chunk where fewer requests are held."""


def measuring_errors(
    bounds: Mapping[str, Mapping[str, BoundRecord]], waterfalls: Mapping[str, Waterfall]
) -> list[str]:
    """One sentence for each realised share of a time bound above 1 beyond its interval.

    It names the effect of which the waterfall says that static lost most, where there is one that
    it can tell from none.
    """
    return [
        f"{mode}: {name} realised {record.realised.estimate:.1%}, above 1 beyond its interval: "
        f"{_cause(waterfalls.get(mode), record.scope)}"
        for mode, found in bounds.items()
        for name, record in found.items()
        if MEASURING_ERROR in (record.note or "")
        and record.realised is not None
        and record.realised.estimate is not None
    ]


def _cause(waterfall: Waterfall | None, scope: str) -> str:
    honest = AFTER_THE_BOUND | ({PROMPTS} if scope == Scope.E2E.value else set())
    gains = [
        (row.factor.estimate, row.effect)
        for row in (waterfall.rows if waterfall else [])
        if row.effect in honest and _is_gain(row)
    ]
    if not gains:
        return "a measuring error (stage curves or clock)"
    factor, effect = max(gains)
    return f"static loses more to {effect} (×{factor:.3f}), or it is a measuring error"


def _is_gain(row: WaterfallRow) -> bool:
    """Whether static loses more to this effect, beyond what is known of its noise."""
    factor = row.known_factor
    least = factor.estimate if factor.low is None else factor.low
    return least is not None and least > 1

"""Several tests at once, without more false alarms than one."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given (Holm 1979).

    Rejecting those at or below α keeps the chance of any false alarm at α, however the tests
    depend on one another: the i-th smallest of m is multiplied by m − i + 1, and none may fall
    below the one before it.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    reached = 0.0
    for rank, index in enumerate(order):
        reached = max(reached, min(1.0, (len(order) - rank) * p_values[index]))
        adjusted[index] = reached
    return adjusted

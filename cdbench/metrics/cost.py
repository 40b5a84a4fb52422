"""What a speed-up is worth in money: the prices at which two modes cost the same.

On equal work cost is price per hour · wall / 3600, and both modes produce the same tokens. So a
mode that is s times as fast as a baseline may run on a machine up to s times as expensive per hour,
and the baseline is the cheaper one only on a machine below price / s per hour.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdbench.stats.interval import Interval


@dataclass(frozen=True)
class BreakEven:
    """Prices at which ``mode`` and ``over`` cost the same per output token.

    ``price_ratio``: what an hour may cost for ``mode`` as a multiple of an hour for ``over``: the
    e2e speed-up. ``baseline_price_per_hour``: the hourly price at which ``over`` would cost what
    ``mode`` costs at ``price_per_hour``.
    """

    mode: str
    over: str
    price_per_hour: float
    price_ratio: Interval
    baseline_price_per_hour: Interval


def break_even(mode: str, over: str, price_per_hour: float, speedup: Interval) -> BreakEven:
    """The break-even of ``mode`` against ``over``. ``speedup``: wall_over / wall_mode, e2e scope.

    Raises:
        ValueError: the price or the speed-up is not positive.
    """
    if not price_per_hour > 0 or not speedup.estimate > 0:
        raise ValueError(
            f"break-even of {mode} over {over}: price {price_per_hour} and speed-up "
            f"{speedup.estimate} must be above 0"
        )
    baseline = Interval(
        price_per_hour / speedup.estimate,
        None if speedup.high is None else price_per_hour / speedup.high,
        None if speedup.low is None else price_per_hour / speedup.low,
        speedup.n,
    )
    return BreakEven(mode, over, price_per_hour, speedup, baseline)

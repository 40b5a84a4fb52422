"""An estimate and how far it may be off."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """An estimate from ``n`` observations; ``low`` and ``high`` are None where n is too small."""

    estimate: float
    low: float | None
    high: float | None
    n: int

    @property
    def defined(self) -> bool:
        """Whether the interval exists, and not only the estimate."""
        return self.low is not None and self.high is not None

    def scaled(self, factor: float) -> Interval:
        """The interval of ``factor`` times the quantity, for a positive exact factor."""
        return Interval(
            self.estimate * factor,
            None if self.low is None else self.low * factor,
            None if self.high is None else self.high * factor,
            self.n,
        )

    def shifted(self, by: float) -> Interval:
        """The interval of the quantity + ``by``, an exact number."""
        return Interval(
            self.estimate + by,
            None if self.low is None else self.low + by,
            None if self.high is None else self.high + by,
            self.n,
        )

    def widened(self, by: Interval | None) -> Interval:
        """The interval of a ratio that a second source of noise moves as well.

        ``by`` is how far that source moves a like quantity by itself: distances from the estimates
        add up in squares, on logs. Undefined where either is; as it is where there is no such
        source (None).
        """
        if by is None:
            return self
        centre, own = math.log(self.estimate), math.log(by.estimate)

        def end(mine: float | None, other: float | None, sign: int) -> float | None:
            if mine is None or other is None:
                return None
            reach = math.hypot(math.log(mine) - centre, math.log(other) - own)
            return math.exp(centre + sign * reach)

        return Interval(
            self.estimate, end(self.low, by.low, -1), end(self.high, by.high, 1), self.n
        )

    def __contains__(self, value: float) -> bool:
        """Whether a defined interval holds ``value``."""
        return self.low is not None and self.high is not None and self.low <= value <= self.high

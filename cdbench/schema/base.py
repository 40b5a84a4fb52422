"""What every record of the contract shares: numbers that may be undefined, and intervals."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

from cdbench.stats.interval import Interval

SCHEMA_VERSION: Literal[1] = 1


def _null_if_not_finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Measure = Annotated[float | None, BeforeValidator(_null_if_not_finite)]
"""A measured number, or null where it is undefined."""

Work = Literal["equal", "live"]
Scope = Literal["decode", "e2e"]


class Record(BaseModel):
    """Base of every section: keeps what a later version added, refuses NaN and infinity."""

    model_config = ConfigDict(
        extra="allow", allow_inf_nan=False, frozen=True, protected_namespaces=()
    )


class IntervalRecord(Record):
    """An estimate from ``n`` observations; ``low`` and ``high`` are null where n is too small."""

    estimate: Measure
    low: Measure = None
    high: Measure = None
    n: int

    @classmethod
    def of(cls, interval: Interval) -> IntervalRecord:
        """The record of a computed interval."""
        return cls(estimate=interval.estimate, low=interval.low, high=interval.high, n=interval.n)

    def to_interval(self) -> Interval:
        """The interval again. Raises ValueError where the estimate is undefined."""
        if self.estimate is None:
            raise ValueError("an undefined estimate has no interval")
        return Interval(self.estimate, self.low, self.high, self.n)

"""Prices at which two modes cost the same."""

from __future__ import annotations

from pydantic import Field

from cdbench.metrics.cost import BreakEven
from cdbench.schema.base import IntervalRecord, Record


class BreakEvenRecord(Record):
    """A mode against a baseline, on equal work and in e2e scope."""

    mode: str
    over: str
    price_per_hour: float = Field(description="of this run, in its currency")
    price_ratio: IntervalRecord = Field(
        description="what an hour may cost for mode as a multiple of one for over: the speed-up"
    )
    baseline_price_per_hour: IntervalRecord = Field(
        description="hourly price at which over would cost what mode costs at price_per_hour"
    )

    @classmethod
    def of(cls, found: BreakEven) -> BreakEvenRecord:
        """The record of a computed break-even."""
        return cls(
            mode=found.mode,
            over=found.over,
            price_per_hour=found.price_per_hour,
            price_ratio=IntervalRecord.of(found.price_ratio),
            baseline_price_per_hour=IntervalRecord.of(found.baseline_price_per_hour),
        )

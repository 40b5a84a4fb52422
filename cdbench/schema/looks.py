"""How a run that measures until its interval is narrow came to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from cdbench.schema.base import IntervalRecord, Record

if TYPE_CHECKING:  # it would load scipy for readers that only want the contract
    from cdbench.stats.looks import Look, Looks


class LooksRecord(Record):
    """Looks fixed in advance. Every interval of the run has the level of the look it ended at."""

    target: float = Field(description="half-width that is narrow enough, as a share of the ratio")
    after_blocks: list[int] = Field(description="blocks at each planned look")
    levels: list[float] = Field(description="level of the t interval at each, 95 % over all")
    ended_after: int = Field(description="blocks that ran")
    level: float = Field(description="of the intervals reported")
    narrow: bool = Field(description="whether the target was reached")
    speedup: IntervalRecord = Field(description="the ratio that was looked at, e2e scope")

    @classmethod
    def of(cls, looks: Looks, last: Look) -> LooksRecord:
        """The record of a run that ended at this look."""
        return cls(
            target=looks.target,
            after_blocks=list(looks.after_blocks),
            levels=list(looks.levels),
            ended_after=last.interval.n,
            level=last.level,
            narrow=last.narrow,
            speedup=IntervalRecord.of(last.interval),
        )

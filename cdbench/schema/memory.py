"""What ``equal: memory`` gave every mode of one KV budget."""

from __future__ import annotations

from pydantic import Field

from cdbench.schema.base import Measure, Record


class ModeMemory(Record):
    """One mode: how many requests the budget let it hold, and what one of them keeps."""

    residents: int = Field(
        description="requests held at once at most, counted with the largest; width of a launch"
    )
    kv_bytes_per_request: Measure = Field(
        description="KV of a request as it ends, mean over the workload: m slots a prompt token, "
        "min(depth, m) a later one"
    )


class EqualMemory(Record):
    """The budget that all modes have alike, and the residents that follow from it."""

    budget_bytes: int = Field(description="KV budget of each mode")
    modes: dict[str, ModeMemory] = Field(description="by mode; those that were timed")

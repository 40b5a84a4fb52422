"""Exit depths of tasks, compared with intervals."""

from __future__ import annotations

from pydantic import Field

from cdbench.schema.base import IntervalRecord, Measure, Record


class TaskDepths(Record):
    """Exit depths of one task."""

    task: str
    requests: int = Field(description="with at least one later token")
    tokens: int
    mean_depth: IntervalRecord = Field(description="95 % bootstrap-t over requests")
    histogram: list[int] = Field(description="entry d−1 counts later tokens at depth d")


class TaskDifference(Record):
    """How unlike two tasks exit."""

    first: str
    second: str
    difference: IntervalRecord = Field(description="mean depth, first − second")
    distance: float = Field(description="total variation between the shares per depth")
    by_chance: Measure = Field(description="the distance two equal tasks of these sizes show")
    p_value: Measure = Field(description="permutation test over requests")
    adjusted_p: Measure = Field(description="after Holm's correction over all pairs")


class ExitDistributions(Record):
    """Exit depths of tasks compared, at one setting."""

    where: str = Field(description="the mode and the setting they are of")
    tasks: list[TaskDepths]
    differences: list[TaskDifference]

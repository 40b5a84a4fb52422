"""What a suite's evaluation comes to: values per document, aggregates, groups, samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cdbench.evals.answers import Answer

Value = Any
"""A document's share in a metric: a number, or what its aggregation takes ([logprob, words])."""


@dataclass(frozen=True)
class MetricScore:
    """One metric of one filter: ``values`` by document id, and lm-eval's aggregate of them.

    ``stderr`` is the closed-form error of a mean; None for other aggregates and single documents.
    """

    metric: str
    filter: str
    higher_is_better: bool | None
    values: dict[int, Value]
    aggregate: float | None
    stderr: float | None


@dataclass(frozen=True)
class TaskScores:
    """A task's metrics, the primary one first. ``failed`` are documents without an answer.

    A failed document counts as wrong where a text was to be generated; where a likelihood was
    asked for it has no value in any metric. ``later_tokens`` are those that could exit early:
    without any the task is *not adaptive*. ``samples`` are lm-eval's, one a document and filter.
    """

    task: str
    metrics: tuple[MetricScore, ...]
    failed: tuple[int, ...]
    tokens: int
    later_tokens: int
    samples: tuple[dict[str, Any], ...] = field(repr=False)

    @property
    def primary(self) -> MetricScore | None:
        """The metric a verdict is about; None where no document has an answer."""
        return self.metrics[0] if self.metrics else None

    @property
    def adaptive(self) -> bool:
        """Whether any token could have exited early."""
        return self.later_tokens > 0


@dataclass(frozen=True)
class GroupMetric:
    """A metric over a group's tasks: ``weights`` sum to 1 over those that have it."""

    metric: str
    filter: str
    aggregate: float
    weights: dict[str, float]


@dataclass(frozen=True)
class GroupScores:
    """A group, its tasks at any depth, and what lm-eval aggregates over them."""

    group: str
    tasks: tuple[str, ...]
    metrics: tuple[GroupMetric, ...]


@dataclass(frozen=True)
class SuiteScores:
    """One mode's scores on a suite, whose ``hash`` says which questions were asked.

    ``answers`` are in the order of the suite's requests, repeats one after the other.
    """

    hash: str
    tasks: dict[str, TaskScores]
    groups: dict[str, GroupScores]
    answers: tuple[Answer, ...] = field(repr=False)
    notes: tuple[str, ...] = ()

    def answers_of(self, task: str, doc_id: int) -> tuple[Answer, ...]:
        """What was answered to one question."""
        return tuple(a for a in self.answers if (a.task, a.doc_id) == (task, doc_id))

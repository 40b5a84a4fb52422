"""``compare --json``: two runs, number by number, and what may be said of them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cdbench.schema.accuracy import AgreementRecord, PairedRecord
from cdbench.schema.base import SCHEMA_VERSION, IntervalRecord, Measure, Record, Scope

Effect = Literal["work", "machine", "setting", "code", "questions"]
"""What a difference means: other work (no ratio of times), another machine (no verdict), a setting
or code (what is compared), other questions (accuracy on those that both were asked)."""

Change = Literal["better", "worse", "~"]
"""``~``: the interval holds no change, or no more than the margin was seen."""


AccuracyVerdict = Literal["better", "worse", "within", "cannot tell"]
"""Beyond the margin of accuracy, within it on either side, or too few questions to tell."""


class DifferenceRecord(Record):
    """One thing that the two runs differ in beside their numbers."""

    what: str
    base: str
    run: str
    effect: Effect


class SideRecord(Record):
    """One side: which run it is, and what must be known before any of its numbers is read."""

    name: str
    started_utc: str
    verdict: Literal["VALID", "INVALID"]
    reasons: list[str]
    status: Literal["complete", "interrupted"]
    model: str | None
    workload: str = Field(description="its hash; empty where nothing was timed")
    blocks: int
    marks: list[str] = Field(description="random weights, synthetic depths, replay")
    rechecked: bool = Field(description="its summaries were made again from its raw records")


class MetricChange(Record):
    """One metric of one mode on both sides. ``ratio`` is run / base, whichever way is better.

    ``exact``: the metric did not vary between blocks on either side, so there is no noise in it.
    Without a verdict ``note`` says why.
    """

    mode: str
    metric: str
    unit: str
    direction: Literal["up", "down", "none"]
    base: Measure
    run: Measure
    ratio: IntervalRecord | None = None
    exact: bool = False
    verdict: Change | None = None
    note: str | None = None


class SpeedupChange(Record):
    """A speed-up that both sides have: ``ratio`` is the run's over the base's."""

    mode: str
    over: str
    scope: Scope
    base: IntervalRecord
    run: IntervalRecord
    ratio: IntervalRecord | None = None
    verdict: Change | None = None
    note: str | None = None


class BoundChange(Record):
    """A bound and the share of it realised, side by side: they come from one run each."""

    mode: str
    bound: str
    base: Measure
    run: Measure
    base_realised: IntervalRecord | None = None
    run_realised: IntervalRecord | None = None


class AccuracyChange(Record):
    """A mode's answers on both sides. ``paired`` is the run against the base, on shared questions.

    ``task`` null pools the tasks whose metric is right or wrong. ``difference`` is of a metric that
    is a number. ``verdict`` null: ``note`` says why.
    """

    mode: str
    task: str | None
    base: IntervalRecord | None
    run: IntervalRecord | None
    shared: int = Field(0, description="questions that both sides answered")
    paired: PairedRecord | None = None
    verdict: AccuracyVerdict | None = None
    difference: IntervalRecord | None = None
    agreement: AgreementRecord | None = None
    note: str | None = None


class HistogramChange(Record):
    """Later tokens by executed depth. ``distance``: half the sum over depths of |share - share|.

    ``by_chance`` and ``p_value`` are those of a permutation test over requests; null without the
    raw records of both sides.
    """

    mode: str
    task: str | None
    base: list[int]
    run: list[int]
    distance: Measure
    by_chance: Measure = None
    p_value: Measure = None


class LiveChange(Record):
    """A figure of the live pass, side by side. None of them is a time."""

    mode: str
    figure: str
    base: Measure
    run: Measure


class ComparisonDocument(Record):
    """A run against a base. ``sentences`` are the plain words that end the output."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["comparison"] = "comparison"
    base: SideRecord
    run: SideRecord
    verdict: Literal["comparable", "unfair", "other work", "INVALID"]
    margin: float = Field(description="a change of a time within it is ~, as a share")
    differences: list[DifferenceRecord] = Field(default_factory=list)
    metrics: list[MetricChange] = Field(default_factory=list)
    speedups: list[SpeedupChange] = Field(default_factory=list)
    bounds: list[BoundChange] = Field(default_factory=list)
    accuracy: list[AccuracyChange] = Field(default_factory=list)
    live: list[LiveChange] = Field(default_factory=list)
    histograms: list[HistogramChange] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list, description="modes that only one side has")
    sentences: list[str] = Field(default_factory=list)

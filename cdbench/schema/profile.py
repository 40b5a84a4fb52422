"""``profile.json``: latency, goodput and depth over a grid, a recommendation, and exit depths."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from cdbench.schema.base import SCHEMA_VERSION, IntervalRecord, Measure, Record
from cdbench.schema.exits import ExitDistributions

PROFILE_FILE = "profile.json"

SloVerdict = Literal["meets", "misses", "cannot tell"]


class SloRecord(Record):
    """The targets, and the share of requests that must meet all of them."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    percentile: float = Field(99.0, description="of requests that must meet every target")


class TailRecord(Record):
    """What the slowest requests of a cell cost, and whose they are."""

    percentile: float | None = Field(
        description="the highest of p99, p95, p90 that the requests allow; null below p90"
    )
    tpot_ratio: Measure = Field(description="that percentile of tpot over its median")
    e2e_ratio: Measure = Field(description="the same of e2e")
    full_depth_share: Measure = Field(description="later tokens at depth R / later tokens")
    task: str | None = Field(None, description="with the largest share of its tokens at depth R")
    task_full_depth_share: Measure = None
    task_request_share: Measure = Field(None, description="its requests / all requests")
    task_slow_share: Measure = Field(
        None, description="its requests among the tenth with the largest tpot"
    )


class ProfileCell(Record):
    """One setting: what it was, and how its requests fared."""

    number: int
    hash: str
    changes: dict[str, JsonValue]
    state: str = Field(description="VALID, INVALID, or why there are no numbers")
    threshold: Measure = None
    rule: str | None = None
    max_loops: int | None = None
    width: int
    arrivals: str
    requests: int = Field(0, description="distinct requests, which percentiles count")
    mean_depth: Measure = None
    output_throughput: IntervalRecord | None = None
    goodput: IntervalRecord | None = Field(None, description="req/s; null without a target")
    percentiles: dict[str, dict[str, Measure]] = Field(
        default_factory=dict, description="latency → p50, p90, p95, p99; null with too few"
    )
    attained: IntervalRecord | None = Field(
        None, description="share of requests meeting every target, 90 % Wilson interval"
    )
    slo: SloVerdict | None = None
    accuracy: IntervalRecord | None = Field(None, description="null where it was not measured")
    accuracy_verdict: str | None = None
    tail: TailRecord | None = None


class AccuracyPoint(Record):
    """What one operating point answered: the profiled mode's, or a fixed depth's."""

    mode: str
    rule: str
    threshold: Measure = None
    max_loops: int
    mean_depth: Measure = Field(None, description="of the live pass's later tokens")
    accuracy: IntervalRecord | None = None
    verdict: str | None = Field(None, description="against static on the same questions")
    static_at_depth: Measure = Field(
        None,
        description="what mixing fixed depths reaches at this mean depth: their upper hull",
    )


class Recommendation(Record):
    """Which setting serves most requests within the targets, or why that cannot be said."""

    verdict: Literal["recommended", "cannot tell", "none meets", "no target"]
    cell: int | None = None
    tied: list[int] = Field(
        default_factory=list, description="cells whose goodput cannot be told from the best"
    )
    sentences: list[str]


class ProfileDocument(Record):
    """``profile.json``, and what ``cdbench profile --json`` prints."""

    schema_version: Literal[1] = SCHEMA_VERSION
    status: Literal["planned", "complete", "partial", "interrupted"]
    mode: str
    slo: SloRecord
    varied: list[str]
    cells: list[ProfileCell]
    recommendation: Recommendation
    sustained: list[str] = Field(
        default_factory=list, description="the highest offered rate each setting keeps up with"
    )
    exits: ExitDistributions | None = None
    answers: list[AccuracyPoint] = Field(
        default_factory=list, description="by mean depth; empty without --questions"
    )
    notes: list[str] = Field(default_factory=list)

"""The paired gate: what its workers answer, and the document it leaves (``pair.json``).

Sides are ``old`` and ``new``. Messages between the gate and its workers are JSON lines; the hello
message of every protocol version has the fields of ``Hello``, so that versions can tell one another
apart.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from cdbench.schema.base import SCHEMA_VERSION, IntervalRecord, Measure, Record
from cdbench.schema.environment import RepeatEnvironment
from cdbench.schema.gating import GateReceipt
from cdbench.schema.machine import GitState, Manifest
from cdbench.schema.result import ModelFacts, Workload

PROTOCOL = 1
"""Rises when a command or an answer changes its meaning; both sides must have the same."""

SideName = Literal["old", "new"]


class Hello(Record):
    """Who a worker is. Answered before any model is loaded."""

    protocol: int
    cdbench_version: str | None
    source_sha256: str = Field(description="over cdbench's Python files")
    git: GitState | None
    python: str
    torch: str | None


class Recorded(Record):
    """The work both sides are to replay, written to the file that was named.

    ``invalid``: why its depths mean nothing; ``notes``: what a reader must know of it.
    """

    requests: int
    invalid: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)


class Timed(Record):
    """One timed region of one mode. ``unequal``: why it was not the recorded work."""

    mode: str
    wall_s: float = Field(gt=0)
    decode_wall_s: Measure
    metrics: dict[str, Measure]
    environment: RepeatEnvironment | None = None
    unequal: list[str] = Field(default_factory=list)


class Prepared(Record):
    """A worker that is loaded and warm. ``warm``: an untimed region of every mode, in order."""

    manifest: Manifest
    config: dict[str, JsonValue]
    model: ModelFacts
    workload: Workload
    wall_ratios: bool = Field(description="whether walls may form ratios under these arrivals")
    compute_threads: int
    warm: dict[str, Timed]
    unequal: list[str] = Field(default_factory=list)


class Farewell(Record):
    """Files that changed while the worker ran: the code that was timed has no name then."""

    changed_sources: list[str]
    changed_models: list[str]


class PairRun(Record):
    """One timed region. ``order`` is its place within the pair, over all modes, from 0."""

    pair: int
    order: int
    side: SideName
    mode: str
    wall_s: float = Field(gt=0)
    decode_wall_s: Measure
    metrics: dict[str, Measure]
    environment: RepeatEnvironment | None = None


class PairSide(Record):
    """One side: who it was and what it resolved."""

    python: str = Field(description="as typed")
    hello: Hello
    prepared: Prepared | None = Field(None, description="null where the gate ended before")


class NoiseRecord(Record):
    """What one check can see at the noise of a self-test. Losses and margins are shares.

    ``offset`` is NEW over OLD though both are the same code: what two processes differ in.
    """

    spread: Measure = Field(description="standard deviation of the pairs' log ratios")
    offset: IntervalRecord
    loss_failed_80: Measure = Field(description="smallest loss that FAILs in 80 % of gates")
    loss_failed_98: Measure
    margin_passed_80: Measure = Field(description="smallest margin that no change PASSes at, 80 %")
    margin_passed_98: Measure


class SelfTestRecord(Record):
    """The gate on the same code twice, and on its pairs with their signs flipped.

    Under no change every pair's log ratio is as likely to have the other sign, so each choice of
    signs is another gate that might have been seen.
    """

    pairs: int
    flips: int
    enumerated: bool = Field(description="whether the flips are all there are")
    false_alarms: float = Field(description="share of them that FAIL")
    passes: float
    inconclusive: float
    checks: dict[str, NoiseRecord] = Field(description="by the name of the check")
    sentences: list[str]


class PairOutcome(Record):
    """``pair.json``: the receipt of a paired gate, and every timed region that it rests on."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["paired-gate"] = "paired-gate"
    receipt: GateReceipt
    old: PairSide
    new: PairSide
    runs: list[PairRun] = Field(default_factory=list)
    self_test: SelfTestRecord | None = None

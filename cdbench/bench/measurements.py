"""What a run has measured so far, complete or not; and whom it tells of its progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from cdbench.bench.equal import RecordedRequest, TimedRun
from cdbench.bench.findings import Findings
from cdbench.bench.live import AutoDepth, LivePass
from cdbench.bench.plan import Subject
from cdbench.runtime.core import RequestResult
from cdbench.schema.stages import StageCurves, StagePassRecord
from cdbench.workloads.arrival_times import ArrivalSchedule


class Progress(Protocol):
    """Told what is going on. Never called inside a timed region."""

    def phase(self, name: str, units: int) -> None: ...

    def advance(self, units: int) -> None: ...


@dataclass
class Measurements:
    """Filled step by step as a run goes on.

    ``refused`` are requests of the workload that the recorded run could not serve, so that none is
    timed; ``other_work`` says which modes were given another workload than the recorded one;
    ``failure`` is the error that ended the run early, if one did.
    ``characters_per_token`` is known of modes that have the same text in tokens of their own.
    ``schedule_notes`` are what engines say of how they ran, by mode.
    """

    live: dict[str, LivePass] = field(default_factory=dict)
    auto: AutoDepth | None = None
    workload: list[RecordedRequest] = field(default_factory=list)
    arrivals: ArrivalSchedule = field(default_factory=ArrivalSchedule)
    refused: list[RequestResult] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    other_work: list[str] = field(default_factory=list)
    timed: list[TimedRun] = field(default_factory=list)
    subjects: dict[str, Subject] = field(default_factory=dict)
    characters_per_token: dict[str, float] = field(default_factory=dict)
    stages: StageCurves | None = None
    stage_passes: tuple[StagePassRecord, ...] = ()
    flags: list[str] = field(default_factory=list)
    schedule_notes: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    failure: str | None = None

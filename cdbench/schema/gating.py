"""What a gate said of a run: the receipt, whole, and its checks one by one."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cdbench.schema.base import SCHEMA_VERSION, IntervalRecord, Measure, Record
from cdbench.schema.comparing import DifferenceRecord, SideRecord

GateVerdict = Literal["PASS", "FAIL", "INCONCLUSIVE", "INVALID"]
CheckKind = Literal["mode", "exact", "timed", "within"]


class GateCheck(Record):
    """One thing that a gate looked at. ``name`` is the same from run to run.

    ``ratio`` is how many times as good the run is as its base (above 1 is better, whichever way the
    metric points). ``why`` is one sentence that needs nothing beside it.
    """

    name: str
    kind: CheckKind
    verdict: GateVerdict
    why: str
    mode: str | None = None
    metric: str | None = None
    unit: str = ""
    base: Measure = None
    run: Measure = None
    floor: Measure = Field(None, description="at_least of a within check")
    ceiling: Measure = Field(None, description="at_most of a within check")
    ratio: IntervalRecord | None = None
    margin: Measure = None
    p: Measure = Field(None, description="of the FAIL test, after Holm's correction")
    n: int | None = Field(None, description="blocks, pairs or questions that it rests on")
    pass_bound: Measure = Field(
        None, description="one-sided bound of ratio that PASS looks at; at a look, its own"
    )
    fail_bound: Measure = Field(None, description="the same of FAIL")


class LookRecord(Record):
    """One look of a paired gate."""

    pairs: int
    fail_error: float
    pass_error: float
    verdicts: dict[str, GateVerdict] = Field(description="check → its verdict at this look")


class GateReceipt(Record):
    """The verdict of one gate. ``exit_code`` is what the process ended with."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["gate"] = "gate"
    gate: str = Field(description="the name the gate file gives itself")
    gate_sha256: str
    verdict: GateVerdict
    exit_code: int
    run: SideRecord
    base: SideRecord | None = Field(None, description="null where nothing was compared")
    baselines: dict[str, str] = Field(
        default_factory=dict, description="exact, timed → the baseline file that was used"
    )
    checks: list[GateCheck]
    differences: list[DifferenceRecord] = Field(default_factory=list)
    looks: list[LookRecord] = Field(default_factory=list, description="of a paired gate")
    notes: list[str] = Field(default_factory=list)
    sentences: list[str] = Field(default_factory=list)


class BaselineMode(Record):
    """What of a mode repeats to the digit."""

    max_loops: int
    width: int | None
    max_residents: int | None
    exact: dict[str, Measure]


class ExactBaseline(Record):
    """``NAME.json``: figures that are the same on any machine, with what they are figures of."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["exact-baseline"] = "exact-baseline"
    name: str
    promoted_utc: str
    run: str = Field(description="the run directory it came from, by name only")
    cdbench_version: str | None
    commit: str | None
    workload: str = Field(description="hash of the workload")
    model_files: dict[str, dict[str, str]] = Field(description="model → file → sha256")
    modes: dict[str, BaselineMode]

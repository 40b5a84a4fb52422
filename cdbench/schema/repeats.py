"""``repeats.jsonl``: one line per timed run and live pass, written when all else of it is on disk.

Together with its requests (``requests.jsonl``) and launches (``launches.npz``) a line holds all
that metrics are made from. What has no line here did not finish, and is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from cdbench.metrics.trace import (
    Arrivals,
    KvFigures,
    KvShape,
    LaunchTrace,
    RequestTrace,
    RunTrace,
    Slo,
    StageCosts,
)
from cdbench.schema.base import Measure, Record


class KvShapeRecord(Record):
    """What the KV layout stores per token. ``slots``: per core layer."""

    prelude_layers: int
    core_layers: int
    coda_layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int
    slots: int


class KvRecord(Record):
    """KV use of one timed run."""

    peak_rows: int
    bytes_per_row: int = Field(description="1 where peak_rows counts bytes")
    shape: KvShapeRecord
    preemptions: int = 0
    prefix_hit_rate: Measure = None

    def figures(self) -> KvFigures:
        """What metrics read."""
        shape = {name: getattr(self.shape, name) for name in KvShapeRecord.model_fields}
        return KvFigures(
            peak_rows=self.peak_rows,
            bytes_per_row=self.bytes_per_row,
            shape=KvShape(**shape),
            preemptions=self.preemptions,
            prefix_hit_rate=self.prefix_hit_rate,
        )


class CostsRecord(Record):
    """FLOPs per token of each stage; ``core``: of one loop. It satisfies ``StageCosts``."""

    prelude: float
    core: float
    coda: float


class SloRecord(Record):
    """Latency limits, seconds; null where none was set."""

    ttft_s: Measure = None
    tpot_s: Measure = None
    e2e_s: Measure = None


class ModeFacts(Record):
    """What bounds and the waterfall need to know of a mode, of its rule and of its model."""

    adaptive: bool = Field(description="whether its tokens may exit early")
    dense: bool = Field(description="a decoder without loops: it runs other stages")
    rule_computes: bool = Field(description="its exit rule computes a signal at every loop")
    readout_every_loop: bool = Field(description="its exit rule reads logits at every loop")
    work: dict[str, float] = Field(
        description="FLOPs per token of each stage, its layers with attention and R: the fields of "
        "cdbench.metrics.work.ModelWork"
    )


class RepeatRecord(Record):
    """One timed run of one mode."""

    work: Literal["equal"] = "equal"
    block: int
    order: int = Field(description="place within the block, from 0")
    mode: str
    requests: int = Field(description="its lines in requests.jsonl")
    launches: str | None = Field(description="its member of launches.npz; null without records")
    launch_count: int
    wall_s: float = Field(gt=0, description="timed region")
    width: int = Field(ge=1, description="most decode rows of one launch")
    max_residents: int = Field(ge=1)
    max_loops: int = Field(ge=1, description="the mode's own R")
    arrivals: str
    cancelled_loops: int = Field(0, description="loops of tokens that a late stop threw away")
    kv: KvRecord | None = None
    costs: CostsRecord | None = None
    slo: SloRecord | None = None
    price_per_hour: Measure = None
    energy_j: Measure = Field(None, description="of the device over the timed region")
    peak_device_bytes: int | None = Field(None, description="most memory in tensors on the device")
    earliest_call: int = Field(
        2, ge=1, description="least depth that a gate that looks ahead could call"
    )
    facts: ModeFacts
    environment: JsonValue = Field(None, description="the machine while it ran, where watched")

    @classmethod
    def of(
        cls,
        trace: RunTrace,
        *,
        block: int,
        order: int,
        launches: str | None,
        facts: ModeFacts,
        environment: JsonValue = None,
    ) -> RepeatRecord:
        """The line of one timed run. ``launches`` is the member its launches were written to."""
        return cls(
            block=block,
            order=order,
            mode=trace.mode,
            requests=len(trace.requests),
            launches=launches,
            launch_count=len(trace.launches),
            wall_s=trace.wall_s,
            width=trace.width,
            max_residents=trace.max_residents,
            max_loops=trace.max_loops,
            arrivals=str(trace.arrivals),
            cancelled_loops=trace.cancelled_loops,
            kv=KvRecord.model_validate(asdict(trace.kv)) if trace.kv else None,
            costs=_costs(trace.costs),
            slo=SloRecord.model_validate(asdict(trace.slo)) if trace.slo else None,
            price_per_hour=trace.price_per_hour,
            energy_j=trace.energy_j,
            peak_device_bytes=trace.peak_device_bytes,
            earliest_call=trace.earliest_call,
            facts=facts,
            environment=environment,
        )

    def trace(self, requests: Sequence[RequestTrace], launches: Sequence[LaunchTrace]) -> RunTrace:
        """The timed run again, as metrics read it, but for what comes from stage curves.

        Raises:
            ValueError: requests or launches contradict this line (see ``RunTrace``).
        """
        if len(requests) != self.requests:
            raise ValueError(f"{len(requests)} request lines instead of {self.requests}")
        if len(launches) != self.launch_count:
            raise ValueError(f"{len(launches)} launches instead of {self.launch_count}")
        return RunTrace(
            mode=self.mode,
            requests=requests,
            launches=launches,
            wall_s=self.wall_s,
            width=self.width,
            max_residents=self.max_residents,
            max_loops=self.max_loops,
            kv=self.kv.figures() if self.kv else None,
            costs=self.costs,
            arrivals=Arrivals(self.arrivals),
            cancelled_loops=self.cancelled_loops,
            slo=Slo(self.slo.ttft_s, self.slo.tpot_s, self.slo.e2e_s) if self.slo else None,
            price_per_hour=self.price_per_hour,
            energy_j=self.energy_j,
            peak_device_bytes=self.peak_device_bytes,
            earliest_call=self.earliest_call,
        )


class LivePassRecord(Record):
    """One mode's answers. No wall: modes do unequal work here, so their times form no ratio."""

    work: Literal["live"] = "live"
    mode: str
    requests: int = Field(description="its lines in requests.jsonl, those with right not null")
    tasks: dict[str, int] = Field(
        default_factory=dict, description="task → its questions, each a line of its samples"
    )
    prefix_hit_rate: Measure = None
    preemptions: int = 0


RepeatLine = Annotated[RepeatRecord | LivePassRecord, Field(discriminator="work")]


def _costs(costs: StageCosts | None) -> CostsRecord | None:
    if costs is None:
        return None
    return CostsRecord(prelude=costs.prelude, core=costs.core, coda=costs.coda)

"""``stages.json``: the stage curves of one model on one machine, with the floors below them.

The same document is the section ``stages`` of a ``result.json``. ``stages.jsonl`` has the passes
that a run made for it, one a line.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from pydantic import Field

from cdbench.metrics.curves import (
    CURVE_STAGES,
    WITHOUT_EXIT,
    CurvePoint,
    CurveStage,
    MeasuredCurves,
)
from cdbench.schema.base import SCHEMA_VERSION, Measure, Record

STAGES_FILE = "stages.json"


class StageKey(Record):
    """All that a launch's time depends on. Curves are reused only where every field is the same."""

    code_version: str = Field(description="sha256 over the sources of models, runtime and stages")
    torch_version: str
    threads: int = Field(description="of one operation, as torch has it")
    attention: str = Field(description="attention backend")
    compiled: bool = Field(False, description="whether the stages ran through torch.compile")
    graphs: bool = Field(False, description="whether decode launches were captured")
    dtype: str
    kv_layout: str
    device: str = Field(description="name of the GPU, or model of the CPU")
    model: str = Field(description="sha256 over the model's files")
    weights: str = Field(description="checkpoint, or random:SEED")
    max_loops: int
    layers: str = Field(description="layers of prelude, core and coda, P-C-K")
    exit_rule: str = Field(description="by name: a threshold changes no launch")
    state_init: str


class StagePoint(Record):
    """One launch of a stage: ``rows`` rows (``prefill``: prompt tokens) at one context."""

    stage: CurveStage
    rows: int
    context: int = Field(
        description="positions that the longest row attends to, itself included; prefill: tokens "
        "of one prompt"
    )
    time_s: float = Field(gt=0, description="lower quartile over passes of the pass's mean launch")
    low_s: float = Field(description="of the fastest pass")
    high_s: float = Field(description="of the slowest pass")
    passes: int
    launches: int = Field(description="launches timed, over all passes")
    floor_s: float = Field(
        description="least that a launch of this size can take on this machine, its attention "
        "padding every row to the longest one's context"
    )


class StagePassPoint(Record):
    """One stage at one size in one pass. ``rows`` and ``context`` as in ``StagePoint``."""

    stage: CurveStage
    rows: int
    context: int
    mean_s: float = Field(gt=0, description="mean launch, without those held up from outside")
    launches: int = Field(description="launches timed")


class StagePassRecord(Record):
    """One line of ``stages.jsonl``: one whole pass over the grid."""

    number: int = Field(description="from 0; pass 0 is made before the first block")
    points: list[StagePassPoint] = Field(description="in the order in which they were timed")


class StageWork(Record):
    """What one launch of a stage must move and compute at least, every row at one context.

    bytes = weight_bytes + rows·(row_bytes + context·position_bytes), FLOPs = rows·(row_flops +
    context·position_flops).
    """

    weight_bytes: float = Field(ge=0, description="weights read, whatever the rows")
    row_bytes: float = Field(ge=0, description="states read and written, keys and values written")
    position_bytes: float = Field(
        ge=0, description="keys and values read, per position attended to"
    )
    row_flops: float = Field(ge=0, description="two per matrix weight")
    position_flops: float = Field(ge=0, description="attention, per position attended to")


class StageFloors(Record):
    """What the machine was measured to do, and what each stage asks of it.

    Floors are those of launches whose attention pads every row to the longest one's context.
    """

    bandwidth_bytes_per_s: float = Field(gt=0, description="best of large copies and triads")
    matmul_flops_per_s: float = Field(gt=0, description="best of large products in this dtype")
    work: dict[CurveStage, StageWork] = Field(description="by stage; prelude, core, coda, prefill")

    def floor_s(self, stage: CurveStage, rows: float, context: float) -> float:
        """max(bytes / bandwidth, FLOPs / rate) of one launch, in seconds.

        Every row is charged ``context``, that of the longest one: the floor of a launch whose
        attention pads to its longest row, as the reference backend does, and not of ragged
        attention, which reads less for the shorter rows.

        The exit rule's own work is left out. A small model's weights stay in the processor's
        caches, which are faster than the memory: its launches can come close to this or below.
        """
        work = self.work[WITHOUT_EXIT.get(stage, stage)]
        moved = work.weight_bytes + rows * (work.row_bytes + context * work.position_bytes)
        flops = rows * (work.row_flops + context * work.position_flops)
        return max(moved / self.bandwidth_bytes_per_s, flops / self.matmul_flops_per_s)


class StageCurves(Record):
    """``stages.json``."""

    kind: Literal["stages"] = "stages"
    schema_version: Literal[1] = SCHEMA_VERSION
    key: StageKey
    model: str = Field(description="name of the model")
    contexts: list[int] = Field(description="at which decode launches were timed")
    rows: Literal["equal", "ragged"] = Field(
        description="equal: all rows of a launch at its context; ragged: one is, the others below "
        "it as in a workload"
    )
    passes: int = Field(description="over the whole grid, each in an order of its own")
    points: list[StagePoint] = Field(description="by stage, context and rows")
    floors: StageFloors
    measured_utc: str = Field(description="ISO 8601, UTC; of the last pass")
    command: list[str] = Field(description="command line as typed; the program by name only")
    seconds: Measure = Field(None, description="that all passes took")
    notes: list[str] = Field(default_factory=list, description="such as random weights")

    def curves(self) -> MeasuredCurves:
        """The points as curves, to be asked for any launch up to their widest.

        Raises:
            ValueError: they form no grid.
        """
        return MeasuredCurves(CurvePoint(p.stage, p.rows, p.context, p.time_s) for p in self.points)

    @property
    def widest(self) -> int:
        """The most decode rows that every stage was measured at. ValueError as ``curves``."""
        curves = self.curves()
        return min(curves.widest(stage) for stage in curves.stages if stage != "prefill")

    def check(self, needed: Collection[CurveStage] = ()) -> None:
        """Raise ValueError where this is not what a meter leaves, so that no run can use it.

        Every stage must be there, those of ``needed`` with an exit rule as well: a full grid each,
        decode stages from 1 row on and at the contexts of the document.
        """
        curves = self.curves()
        wanted = {*CURVE_STAGES} - {*WITHOUT_EXIT} | {*needed}
        for stage in (stage for stage in CURVE_STAGES if stage in wanted):
            if stage not in curves.stages:
                raise ValueError(f"curve {stage}: has no points")
        for stage in (stage for stage in CURVE_STAGES if stage not in WITHOUT_EXIT):
            if stage not in self.floors.work:
                raise ValueError(f"floors: {stage} is missing")
        for stage in (stage for stage in curves.stages if stage != "prefill"):
            if curves.contexts(stage) != self.contexts:
                raise ValueError(
                    f"curve {stage}: has contexts {_listed(curves.contexts(stage))}, the document "
                    f"{_listed(self.contexts)}"
                )
            if curves.narrowest(stage) != 1:
                raise ValueError(
                    f"curve {stage}: begins at {curves.narrowest(stage)} rows, a run has launches "
                    "of one"
                )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"

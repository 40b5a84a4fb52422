"""What ``cdbench predictor`` writes: the recording that a gate is fitted on, and the gate.

A recording is one safetensors file. Its header holds this document under ``document``; its tensors
are ``states`` ``[later tokens, R − 1, D]`` (float32, after loop k in place k − 1), ``signals``
``[later tokens, R]`` (the rule's, after loop k in place k − 1) and ``offsets`` ``[requests + 1]``
(request i has lines ``offsets[i]`` to ``offsets[i + 1] − 1``, its later tokens in order); where a
pre-loop gate can be fitted on it, also ``preludes`` ``[later tokens, D]`` (float32, what the
prelude gave: the injection, or the state where the model has none).

A gate is a directory: its tensors in ``lookahead.safetensors``, all else in ``lookahead.json``. The
tensors of a pre-loop gate stand in the same file under ``before.``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from cdbench.schema.base import SCHEMA_VERSION, Measure, Record
from cdbench.schema.machine import Manifest, ModelIdentity
from cdbench.schema.result import ExitSettings
from cdbench.schema.workload import WorkloadRecord

GATE_FILE = "lookahead.json"
GATE_WEIGHTS_FILE = "lookahead.safetensors"


class GateSetting(Record):
    """What a gate belongs to: it is refused for anything else."""

    model: ModelIdentity
    weight_seed: int | None = Field(None, description="set where the model's weights are random")
    layers: str | None = Field(None, description="layers in place of the model's own, as P-C-K")
    exit: ExitSettings = Field(description="the rule, its threshold, and the floor recorded with")
    max_loops: int = Field(ge=3, description="R")
    state_size: int = Field(ge=1, description="D")
    kv_layout: str
    dtype: str = Field(description="of the model, as it was recorded")


class StateRecording(Record):
    """The document of a recording: a model's own text and decisions at lag 0."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["predictor-recording"] = "predictor-recording"
    marks: list[str] = Field(
        default_factory=list, description="what in it is not the model's own doing"
    )
    notes: list[str] = Field(default_factory=list)
    setting: GateSetting
    device: str = Field(description="cpu or cuda")
    workload_hash: str
    source: str = Field(description="workload.source of the run")
    tokens: int = Field(ge=0, description="later tokens: lines of the tensors")
    pre_loop: bool = Field(
        False, description="what the prelude gave is there, and tokens could leave after loop 1"
    )
    arrays_sha256: str = Field(description="over the bytes of the tensors, in the order of names")
    seconds: float = Field(ge=0, description="that the run took, ghost loops included")
    config: dict[str, JsonValue] = Field(description="the resolved configuration")
    manifest: Manifest
    requests: list[WorkloadRecord]


class LoopFigures(Record):
    """How calls after one loop went."""

    loop: int = Field(ge=0, description="after which the gate was asked; 0: the pre-loop gate")
    asked: int
    called: int
    right: int = Field(description="calls of an exit that the rule asks for after the next loop")
    missed: int = Field(description="exits after the next loop that were not called")


class GateFigures(Record):
    """A gate against its rule, over later tokens; counts are of decisions before R."""

    requests: int
    tokens: int
    precision: Measure = Field(description="right calls / calls")
    recall: Measure = Field(description="right calls / exits that the rule asks for before R")
    exact: Measure = Field(
        description="share of tokens at exactly the rule's depth, at least the earliest called"
    )
    depth_error: Measure = Field(description="mean |executed − the rule's depth|, in loops")
    token_loops: int = Field(description="executed with the gate, lag 1")
    token_loops_lag0: int = Field(description="executed by the rule at lag 0 with the same floor")
    token_loops_lag1: int = Field(description="executed by the rule alone at lag 1")
    by_loop: list[LoopFigures] = Field(default_factory=list)

    @property
    def loops_over_lag0(self) -> float | None:
        """Token loops with the gate / those of the rule at lag 0."""
        return self.token_loops / self.token_loops_lag0 if self.token_loops_lag0 else None

    @property
    def lag1_over_lag0(self) -> float | None:
        """The same for the rule alone at lag 1."""
        return self.token_loops_lag1 / self.token_loops_lag0 if self.token_loops_lag0 else None


class ReliabilityBin(Record):
    """Decisions whose probability lies in one tenth: how often the rule then was met."""

    low: float
    high: float
    decisions: int
    mean_probability: Measure
    met: Measure = Field(description="share that was met")


class Calibration(Record):
    """Platt scaling, sigmoid(slope · score + offset), folded into the weights."""

    method: Literal["platt"] = "platt"
    slope: float
    offsets: list[float] = Field(description="by loop, from 1")
    least_precision: float = Field(description="asked of the threshold on the calibration part")
    precision: Measure = Field(description="had there")
    error: Measure = Field(
        description="expected calibration error over tenths, on the held-out part"
    )
    reliability: list[ReliabilityBin] = Field(default_factory=list)


class PreLoopFigures(Record):
    """The pre-loop gate of a gate: its calls end a token after loop 1."""

    threshold: float = Field(gt=0, le=1, description="probability from which an exit is called")
    parameters: int
    flops_per_row: float = Field(description="of one token: counted in F_p")
    due: dict[str, int] = Field(description="tokens that the rule asks to leave after loop 1")
    calibration: Calibration


class GateTraining(Record):
    """What a gate was fitted on, and what that cost."""

    recording_sha256: str
    workload_hash: str
    source: str
    seed: int
    holdout: float = Field(description="share of the requests held out; as many calibrate")
    requests: dict[str, int] = Field(description="train, calibrate, hold out")
    tokens: dict[str, int]
    decisions: dict[str, int] = Field(description="loops of tokens at which a call was possible")
    prompts: list[str] = Field(
        description="of the requests fitted or calibrated on: the first 12 digits of the sha256 of "
        "their prompts"
    )
    seconds: float
    flops: float = Field(description="two a weight and row forward, four backward")
    threads: int


class GateWatch(Record):
    """When a request goes on without its gate (``cdbench/runtime/lookahead.py``)."""

    window: int = Field(ge=1)
    floor: float = Field(ge=0, le=1)
    least_calls: int = Field(ge=1)


class GateDocument(Record):
    """``lookahead.json``."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["lookahead"] = "lookahead"
    marks: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    setting: GateSetting
    gate: Literal["linear", "mlp"]
    threshold: float = Field(gt=0, le=1, description="probability from which an exit is called")
    falls: bool = Field(description="whether the rule's signal falls to its threshold")
    weights_sha256: str
    parameters: int
    flops_per_row: float = Field(description="of one decision: counted in F_c")
    watch: GateWatch
    calibration: Calibration
    trained_on: GateTraining
    pre_loop: PreLoopFigures | None = Field(
        None, description="the gate on what the prelude gave; null without one"
    )
    held_out: GateFigures
    manifest: Manifest


class PositionFigures(Record):
    """A stretch of later tokens by their place in the output: how a gate does over time."""

    first: int = Field(ge=1, description="place of the first later token, counted from 1")
    last: int
    tokens: int
    precision: Measure
    recall: Measure
    exact: Measure
    mean_depth: Measure = Field(description="executed with the gate, in loops")
    mean_due: Measure = Field(description="of the rule at lag 0 with the same floor, in loops")


class GateJudgement(Record):
    """What ``cdbench predictor judge`` prints: a gate at work, its tokens forced."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["predictor-judgement"] = "predictor-judgement"
    marks: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    gate: str = Field(description="as it was named")
    kind_of_gate: Literal["linear", "mlp"]
    threshold: float
    setting: GateSetting
    weights_sha256: str
    workload_hash: str
    figures: GateFigures = Field(description="the live gate's tokens, fallen back ones included")
    asked_tokens: int = Field(description="tokens that the gate was asked about")
    by_position: list[PositionFigures]
    fallen_back: int = Field(description="requests that went on with the plain rule")
    flops_per_row: float
    core_flops_per_row: float = Field(description="one loop of the model, without attention")
    config: dict[str, JsonValue]
    manifest: Manifest

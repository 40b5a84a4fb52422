"""``result.json``: the whole of a run, written last."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from cdbench.schema.accuracy import Accuracy, Scores
from cdbench.schema.base import SCHEMA_VERSION, IntervalRecord, Measure, Record, Scope
from cdbench.schema.cost import BreakEvenRecord
from cdbench.schema.environment import Environment
from cdbench.schema.exits import ExitDistributions
from cdbench.schema.looks import LooksRecord
from cdbench.schema.machine import Manifest
from cdbench.schema.memory import EqualMemory
from cdbench.schema.waterfall import Waterfall


class Validity(Record):
    """Whether the numbers may be used, and why not."""

    verdict: Literal["VALID", "INVALID"]
    reasons: list[str] = Field(default_factory=list, description="empty for a VALID run")
    flags: list[str] = Field(
        default_factory=list, description="what to mind; it does not make a run INVALID"
    )
    timing: list[str] = Field(
        default_factory=list,
        description="those of the reasons that spoil times alone: counts and answers stand",
    )

    @property
    def beyond_times(self) -> list[str]:
        """Reasons that spoil counts and answers too."""
        return [why for why in self.reasons if why not in self.timing]


class ModelFacts(Record):
    """The static facts of the looped model: what is known before anything is measured."""

    name: str
    model_type: str
    parameters: int
    max_loops: int = Field(description="R of this run")
    cost_ratio: float = Field(description="(F_p + F_k) / F_c: boundary stages against one loop")
    kv_bytes_per_token: int = Field(description="at full depth, under kv_layout")
    kv_layout: str
    dtype: str
    device: str
    attention: str | None = Field(
        None, description="attention backend of decode launches; null in results that lack it"
    )
    compile_s: Measure = Field(
        None, description="that torch.compile took before anything ran; null: not compiled"
    )
    random_weights_seed: int | None = None
    notes: list[str] = Field(default_factory=list)


class Workload(Record):
    """The requests every mode processed."""

    hash: str = Field(
        description="sha256 over prompts, lengths, arrivals, forced tokens and depths"
    )
    source: str
    requests: int
    prompt_tokens: int = Field(description="sum over requests")
    output_tokens: int | None = Field(None, description="sum over requests, where fixed")
    arrivals: str = Field(description="all-at-once, closed-loop, open-loop or trace")
    seed: int | None = None
    replayed: list[str] = Field(
        default_factory=list, description="what was recorded and replayed: tokens, lengths, depths"
    )
    synthetic: str | None = Field(
        None, description="what must be said of depths that no model chose; null for a model's own"
    )
    notes: list[str] = Field(
        default_factory=list, description="what a reader may not expect of the selection"
    )


class ExitSettings(Record):
    """The exit rule as it ran. ``depth`` belongs to ``fixed``; ``threshold`` null without one."""

    rule: str
    threshold: float | None = None
    min_loops: int = 1
    lag: int = 0
    depth: int | None = None
    lookahead: str | None = Field(
        None, description="gate that called exits one loop ahead, and from which probability on"
    )
    lookahead_sha256: str | None = Field(None, description="of that gate's weights")


class ModeResult(Record):
    """One mode: how it ran, and its numbers."""

    schedule: Literal["dense", "static", "lockstep", "cdb"]
    model: str
    exit: ExitSettings
    max_loops: int
    width: int | None = Field(None, description="most decode rows of a launch; null where untimed")
    max_residents: int | None = Field(None, description="its cap; null where it was not timed")
    note: str | None = Field(None, description="what must be said beside this row")
    metrics: dict[str, Measure] = Field(
        default_factory=dict,
        description="equal work, by metric name (`cdbench list metrics`): mean over the timed runs",
    )
    intervals: dict[str, IntervalRecord] = Field(
        default_factory=dict, description="of metrics that vary between blocks"
    )
    percentiles: dict[str, dict[str, Measure]] = Field(
        default_factory=dict,
        description="metric → p50, p90, … ; null below the minimum of requests",
    )
    live: dict[str, Measure] = Field(
        default_factory=dict, description="live pass: the model's own text and exits; no ratios"
    )
    depth_histogram: list[int] | None = Field(
        None, description="later tokens per executed depth: entry d−1 counts depth d"
    )
    depth_histogram_by_task: dict[str, list[int]] = Field(default_factory=dict)
    mean_depth_by_position: list[float] = Field(
        default_factory=list, description="entry i−1: later token i, over the requests that have it"
    )

    @property
    def answered_depth(self) -> float | None:
        """Mean depth of the live pass: of generated later tokens, without them of scored ones."""
        generated = self.live.get("mean_depth")
        return self.live.get("scored_mean_depth") if generated is None else generated


class BlockRecord(Record):
    """One timed run of one mode."""

    index: int = Field(description="block, from 0")
    order: int = Field(description="place within the block, from 0")
    mode: str
    wall_s: float = Field(gt=0, description="timed region")
    decode_wall_s: Measure = Field(None, description="timed region − time in prefill launches")
    metrics: dict[str, Measure] = Field(default_factory=dict, description="of this run alone")


class Comparison(Record):
    """speedup(mode over another) = wall_over / wall_mode on equal work: above 1, mode is faster."""

    mode: str
    over: str
    scope: Scope
    speedup: IntervalRecord = Field(
        description="geometric mean over blocks, 95 % t interval on logs"
    )
    log_ratios: list[float] = Field(default_factory=list, description="one per block")
    over_requests: IntervalRecord | None = Field(
        None,
        description="bootstrap over requests, over static only: how the speed-up would move with "
        "other requests if the share realised of flop_bound (decode) or work_bound (e2e) stayed",
    )
    note: str | None = None


class BoundRecord(Record):
    """A theoretical speed-up over static, and the share of it realised in the same scope."""

    value: Measure
    scope: Scope
    realised: IntervalRecord | None = None
    over_requests: IntervalRecord | None = Field(
        None,
        description="the bound for other requests: 95 % bootstrap over those there were (FLOPs)",
    )
    over_passes: IntervalRecord | None = Field(
        None,
        description="the bound with other passes over the stages: a bootstrap over those there "
        "were (time bounds); null where they were too few",
    )
    note: str | None = None


class Result(Record):
    """``result.json``. Sections from ``waterfall`` on appear where they were made."""

    schema_version: Literal[1] = SCHEMA_VERSION
    status: Literal["complete", "interrupted"]
    validity: Validity
    manifest: Manifest
    config: dict[str, JsonValue] = Field(description="the resolved configuration")
    model: ModelFacts | None = Field(None, description="null where only other parts were made")
    workload: Workload
    modes: dict[str, ModeResult]
    blocks: list[BlockRecord] = Field(default_factory=list)
    comparisons: list[Comparison] = Field(default_factory=list)
    bounds: dict[str, dict[str, BoundRecord]] = Field(
        default_factory=dict, description="mode → bound name (flop_bound, …) → bound"
    )
    break_even: list[BreakEvenRecord] = Field(
        default_factory=list, description="prices at which modes cost the same; empty without one"
    )
    looks: LooksRecord | None = Field(
        None, description="null where the number of blocks was fixed (repeats.interval)"
    )
    equal_memory: EqualMemory | None = Field(
        None, description="under equal: memory, what each mode held of the budget; else null"
    )
    environment: Environment | None = Field(
        None, description="the machine during the timed repeats; null where it was not watched"
    )
    accuracy: Accuracy | None = None
    exits: ExitDistributions | None = Field(
        None, description="exit depths of tasks, compared; null without tasks or early exits"
    )
    scores: Scores | None = Field(
        None, description="what lm-eval made of the answers; null without a live pass"
    )
    samples: dict[str, str] = Field(
        default_factory=dict, description="task → file of its evaluation samples"
    )
    files: dict[str, str] = Field(default_factory=dict, description="what else the run wrote")
    waterfall: dict[str, Waterfall] | None = Field(
        None, description="mode → from the loops saved to its measured speed-up over static"
    )
    stages: JsonValue = Field(None, description="the stage curves used, with their key")

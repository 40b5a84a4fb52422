"""Everything ``cdbench run`` needs to know, section by section."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from cdbench import resources
from cdbench.errors import UsageError
from cdbench.grammar import (
    Mode,
    parse_mode,
    parse_modes,
    refuse_repeats,
    split_commas,
)
from cdbench.keys.depth import ExitConfig, KvConfig
from cdbench.keys.evaluation import EvaluationConfig
from cdbench.keys.section import HIGHEST_PRICE, FileName, Section, value_at
from cdbench.keys.serving import EngineConfig, RepeatsConfig, SamplingConfig, SloConfig
from cdbench.keys.workload import WorkloadConfig
from cdbench.later import LATER, refuse_later

Names = Annotated[tuple[FileName, ...], BeforeValidator(split_commas)]
Work = Annotated[
    tuple[Literal["equal", "live"], ...], Field(min_length=1), BeforeValidator(split_commas)
]


def _default_dense(data: Mapping[str, Any]) -> tuple[str, ...]:
    return ("demo-dense",) if data.get("model") == resources.DEFAULT_MODEL else ()


class RunConfig(Section):
    """Everything ``cdbench run`` needs to know. Raises UsageError or pydantic's ValidationError."""

    model: FileName = Field(
        resources.DEFAULT_MODEL,
        description="The looped model: a demo name, a local directory or a hub id",
    )
    dense: Names = Field(
        default_factory=_default_dense,
        description="Dense models to compare with, each a mode dense:NAME; unrolled is the looped "
        "model with a copy of its core per loop (default: demo-dense for the demo)",
    )
    modes: Names | None = Field(
        None,
        description="Modes to run: dense:NAME, static, static@D, static@auto, lockstep, cdb; "
        "null: every dense, static, static@auto, lockstep, cdb",
    )
    tasks: Names | None = Field(
        None,
        description="Evaluation tasks: any name lm-eval knows, a YAML file or a directory of them; "
        "null takes those on the model's card",
    )
    limit: int | None = Field(150, ge=1, description="Documents per task; null: all")
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    work: Work = Field(
        ("live", "equal"),
        description="live (the model's own text: accuracy), equal (fixed work: wall-clock ratios)",
    )
    equal: Literal["residents", "memory"] = Field(
        "residents",
        description="What all modes have alike in equal work: residents (the same cap), or memory "
        "(the same KV budget, each mode with the residents that fit it)",
    )
    exit: ExitConfig = Field(default_factory=ExitConfig)
    kv: KvConfig = Field(default_factory=KvConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    first_token: Literal["full", "select"] = Field(
        "full",
        description="Loop the first token is read from: full (the last), or select (the one its "
        "rule picks; saves no compute)",
    )
    state_init: Literal["zero", "random"] = Field(
        "zero",
        description="State before the first loop: zero, or random (Huginn; keyed by seed, request "
        "and position)",
    )
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    workload: WorkloadConfig = Field(default_factory=WorkloadConfig)
    stages: FileName = Field(
        "measure",
        description="Stage curves for the time bounds and the waterfall: measure (between the "
        "blocks), none, or a file that `cdbench stages` saved for this very set-up",
    )
    repeats: RepeatsConfig = Field(default_factory=RepeatsConfig)
    slo: SloConfig = Field(default_factory=SloConfig)
    price_per_hour: float | None = Field(
        None,
        gt=0,
        le=HIGHEST_PRICE,
        description="Price of the machine per hour, in any currency",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where to run: auto takes CUDA where there is a device"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = Field(
        "auto", description="Number format of weights and states; float64 is for proofs"
    )
    weights: str = Field(
        "checkpoint", description="checkpoint, or random:SEED for the shape without the values"
    )
    layers: str | None = Field(
        None,
        description="Layers of prelude, core and coda as P-C-K, in place of the model's own; for "
        "timing, with random weights only",
    )
    out: FileName | None = Field(
        None, description="Run directory; null: results/runs/<date>-<name>"
    )

    @field_validator("model")
    @classmethod
    def _alias(cls, value: str) -> str:
        return resources.canonical_model(value)

    @field_validator("modes")
    @classmethod
    def _known_modes(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if value is None else tuple(str(mode) for mode in parse_modes(value))

    @field_validator("weights")
    @classmethod
    def _known_weights(cls, value: str) -> str:
        if value != "checkpoint" and not re.fullmatch(r"random:[0-9]{1,18}", value):
            raise UsageError(
                f"weights: {value!r} is unknown; write checkpoint, or random:SEED with a whole "
                "number of up to 18 digits"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for key in ("dense", "tasks", "work"):
            refuse_repeats(key, getattr(self, key) or ())
        if self.tasks == ():
            raise UsageError("tasks: empty; name a task, or null for those on the model's card")
        if self.layers is not None and self.weight_seed is None:
            raise UsageError(
                "layers: changes the model, so the checkpoint's weights do not fit; add weights: "
                "random:SEED"
            )
        self._check_coda_minimum()
        if self.equal == "memory" and self.kv.budget_bytes is self.kv.budget_fraction is None:
            raise UsageError(
                "equal: memory needs a KV budget to share; add kv.budget_bytes or budget_fraction"
            )
        if "equal" not in self.work:
            self._refuse_equal_only()
        if self.exit.rule == "trace" and self.workload.depths != "recorded":
            raise UsageError(
                f"workload.depths: {self.workload.depths} beside a trace, whose depths are "
                "replayed; use recorded, or drop the trace"
            )
        self._check_modes()
        for later in LATER:
            refuse_later(later.key, value_at(self, later.key))
        return self

    def _check_coda_minimum(self) -> None:
        timed = "equal" in self.work and any(mode.kind == "cdb" for mode in self.resolved_modes)
        if self.engine.coda_min_rows == "auto" and timed and self.stages == "none":
            raise UsageError(
                "engine.coda_min_rows: auto chooses from stage curves, which stages: none leaves "
                "out; use stages: measure or a saved file, or give a number of rows"
            )

    def _refuse_equal_only(self) -> None:
        """What says something of equal work alone is refused beside live work alone."""
        alone = {"stages": ("measure", "none"), "equal": ("residents",)}
        for key, neutral in alone.items():
            value = getattr(self, key)
            if value not in neutral:
                raise UsageError(
                    f"{key}: {value} is for equal work, which work: [live] leaves out; add equal "
                    "to it, or drop the key"
                )

    def _check_modes(self) -> None:
        for mode in self.resolved_modes:
            if mode.depth == "auto" and "live" not in self.work:
                raise UsageError(
                    "mode 'static@auto': its depth is chosen by accuracy, which work: [equal] does "
                    "not measure; add live, or name a depth"
                )
            if isinstance(mode.depth, int) and mode.depth > (self.exit.max_loops or mode.depth):
                raise UsageError(
                    f"mode '{mode}': above exit.max_loops {self.exit.max_loops}; lower its depth"
                )

    @property
    def resolved_modes(self) -> tuple[Mode, ...]:
        """The modes to run, in order. Without live work the default leaves ``static@auto`` out."""
        if self.modes is not None:
            return tuple(parse_mode(text) for text in self.modes)
        auto = (Mode("static", depth="auto"),) if "live" in self.work else ()
        dense = tuple(Mode("dense", dense=name) for name in self.dense)
        return (*dense, Mode("static"), *auto, Mode("lockstep"), Mode("cdb"))

    @property
    def weight_seed(self) -> int | None:
        """The seed of random weights; None for those of the checkpoint."""
        kind, _, seed = self.weights.partition(":")
        return int(seed) if kind == "random" else None

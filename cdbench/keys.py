"""The keys of a run configuration: default, meaning and unit of each, and what may not go together.

Checks raise UsageError themselves, so that a message can say what to do; what pydantic finds comes
as its ValidationError, which ``cdbench.config`` turns into the same kind of line.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from cdbench import resources
from cdbench.errors import UsageError
from cdbench.grammar import (
    ExitSpec,
    Mode,
    check_spec,
    parse_depths,
    parse_exit,
    parse_kv,
    parse_mode,
    parse_modes,
    refuse_repeats,
    split_commas,
)
from cdbench.later import LATER, refuse_later
from cdbench.workloads.arrivals import parse_arrivals
from cdbench.workloads.lengths import parse_lengths

Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(split_commas)]
Work = Annotated[
    tuple[Literal["equal", "live"], ...], Field(min_length=1), BeforeValidator(split_commas)
]


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys refused, NaN and infinity refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_for_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Python counts true as 1; a configuration that says so means something else.
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and bool not in (field.annotation, *get_args(field.annotation)):
            raise ValueError("true and false mean nothing here")
        return value


class ExitConfig(Section):
    """When a later token stops looping."""

    rule: str | None = Field(
        None,
        description="Exit rule: none, fixed:D, RULE, RULE@THRESHOLD or trace:FILE[@THRESHOLD]; "
        "null takes the one on the model's card",
    )
    threshold: float | None = Field(
        None, description="Threshold of the rule, in the unit of its signal; null takes its default"
    )
    depth: int | None = Field(None, ge=1, description="Loops per later token, for rule fixed")
    trace_file: str | None = Field(None, description="File of recorded depths, for rule trace")
    min_loops: int = Field(1, ge=1, description="Floor on the executed depth, in loops")
    max_loops: int | None = Field(
        None, ge=1, description="Loops per token at full depth (R); null takes the model's own"
    )
    lag: Literal[0, 1] = Field(
        0, description="Loops between an exit decision and the token's leaving: 0 or 1"
    )

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return expand_exit(value)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.rule is None:
            if self.depth is not None or self.trace_file is not None:
                raise UsageError("exit.rule: missing beside depth or trace_file; name the rule")
        else:
            refuse_later("exit.rule", self.rule)
            check_spec(ExitSpec(self.rule, self.threshold, self.depth, self.trace_file))
        for key, loops in (("min_loops", self.min_loops), ("depth", self.depth)):
            if loops is not None and self.max_loops is not None and loops > self.max_loops:
                raise UsageError(
                    f"exit.{key}: {loops} is above max_loops {self.max_loops}; lower one of them"
                )
        if self.depth is not None and self.depth < self.min_loops:
            raise UsageError(
                f"exit.depth: {self.depth} is below min_loops {self.min_loops}; lower the floor"
            )
        return self

    @property
    def spec(self) -> ExitSpec | None:
        """The rule as ``--exit`` has it; None where the model's card decides."""
        if self.rule is None:
            return None
        return ExitSpec(self.rule, self.threshold, self.depth, self.trace_file)


class KvConfig(Section):
    """How keys and values are kept."""

    layout: str = Field(
        "per-loop",
        description="KV slots a core layer keeps: per-loop, first-shared, shared, slots:M",
    )
    budget_bytes: int | None = Field(
        None, ge=1, description="Most bytes of KV in use at once, in every mode; null: no limit"
    )
    budget_fraction: float | None = Field(
        None,
        gt=0,
        le=1,
        description="The same as a share of the device's free memory, split among the modes",
    )
    host_bytes: int | None = Field(
        None,
        ge=1,
        description="Most bytes of host memory for requests moved there under a KV budget; "
        "null: no limit",
    )
    prefix_cache: bool | None = Field(
        None,
        description="Reuse the KV of equal prompt prefixes; null: where questions are answered, "
        "not where work is timed",
    )

    @field_validator("layout")
    @classmethod
    def _known_layout(cls, value: str) -> str:
        return parse_kv(value)

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if self.budget_bytes is not None and self.budget_fraction is not None:
            raise UsageError("kv.budget_bytes: given beside kv.budget_fraction; keep one of them")
        if self.host_bytes is not None and self.budget_bytes is self.budget_fraction is None:
            raise UsageError(
                "kv.host_bytes: means nothing without a KV budget; add kv.budget_bytes or drop it"
            )
        return self


# A derived default is asked for even where what it derives from was refused: `data` lacks it then.
def _default_width(data: Mapping[str, Any]) -> int:
    return int(data.get("max_residents", 1))


def _default_min_free(data: Mapping[str, Any]) -> int:
    return max(1, min(int(data.get("width", 1)) // 8, int(data.get("max_residents", 1))))


class EngineConfig(Section):
    """Sizes of launches, the same in every mode."""

    max_residents: int = Field(128, ge=1, description="Most requests that hold KV at once")
    width: int = Field(
        default_factory=_default_width,
        ge=1,
        description="Most decode rows of one launch (default: max_residents)",
    )
    coda_min_rows: int | Literal["auto"] = Field(
        1,
        description="Exited tokens that a coda launch waits for, in rows; or auto",
    )
    min_free_residents: int = Field(
        default_factory=_default_min_free,
        ge=1,
        description="Free residents that a prefill waits for (default: width/8)",
    )
    prefill_tokens: int = Field(512, ge=1, description="Most prompt tokens of one prefill launch")
    max_itl_s: float | None = Field(
        None, gt=0, description="Longest gap between tokens that a prefill may cause, in seconds"
    )
    graphs: bool = Field(False, description="Capture launches as CUDA graphs")
    compile: bool = Field(False, description="Compile the stages with torch.compile")
    attention: Literal["auto", "sdpa", "triton", "varlen", "flashinfer"] = Field(
        "auto", description="Attention backend: auto or sdpa"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if isinstance(self.coda_min_rows, int) and self.coda_min_rows < 1:
            raise UsageError("engine.coda_min_rows: below 1; give a number of rows or auto")
        if self.min_free_residents > self.max_residents:
            raise UsageError(
                f"engine.min_free_residents: {self.min_free_residents} is above max_residents "
                f"{self.max_residents}, so no prompt would start; lower it"
            )
        return self


class SamplingConfig(Section):
    """How the next token is chosen, per request."""

    temperature: float = Field(0.0, ge=0, description="0 is greedy; above, the softmax temperature")
    top_k: int = Field(0, ge=0, description="Keep the k likeliest tokens; 0 keeps all")
    top_p: float = Field(1.0, gt=0, le=1, description="Keep the likeliest tokens up to this mass")
    seed: int = Field(0, ge=0, description="Seed of the counter-based random stream")


class WorkloadConfig(Section):
    """Which requests are timed."""

    source: str = Field(
        "demo",
        min_length=1,
        description="demo (questions of the tasks), random (token ids), "
        "trace (the requests of --exit trace:FILE), "
        "a json, jsonl, csv, parquet or txt file, or hf:NAME from the hub",
    )
    format: Literal["auto", "text", "chat", "sharegpt", "alpaca", "ids"] = Field(
        "auto", description="What a row holds: text, chat, sharegpt, alpaca, ids; auto looks at it"
    )
    column: str | None = Field(
        None, min_length=1, description="Column of the prompt or the turns; null: the known one"
    )
    reference_column: str | None = Field(
        None, min_length=1, description="Column of the reference answer; null: the known one"
    )
    template: str | None = Field(
        None,
        min_length=1,
        description='Prompt made of columns, as "Question: {question}\\nAnswer:"',
    )
    subset: str | None = Field(None, description="Configuration of a dataset on the hub")
    split: str | None = Field(None, description="Split of a dataset; null where it has one only")
    requests: int = Field(224, ge=1, description="How many requests are timed")
    prompt_tokens: int | str | None = Field(
        None,
        description="Cut or repeat prompts to this length, in tokens: N, A-B (uniform), or "
        "lognormal:MEDIAN:SIGMA; null: as they are",
    )
    output: Literal["recorded", "reference"] | Annotated[int, Field(ge=1)] = Field(
        "recorded",
        description="Outputs: recorded (until they stop), reference (forced to the known answer), "
        "or so many tokens each",
    )
    max_new_tokens: int | None = Field(
        None,
        ge=1,
        description="Longest recorded output, in tokens; null: the task's, or 256 at most",
    )
    arrivals: str = Field(
        "all-at-once",
        description="When requests arrive: all-at-once, closed-loop:CLIENTS, open-loop:RATE"
        "[:BURSTINESS], ramp:RATE1-RATE2, trace:FILE; rates in requests per second",
    )
    depths: str = Field(
        "recorded",
        description="Executed depths of timed work: recorded, or synthetic and marked: full, "
        "shallow, bimodal, clustered, shallow-heavy, deep-heavy, serial:RHO",
    )
    seed: int = Field(
        0, ge=0, description="Seed that picks and orders the requests, their lengths and arrivals"
    )

    @field_validator("prompt_tokens", mode="before")
    @classmethod
    def _known_lengths(cls, value: Any) -> Any:
        if not isinstance(value, int | str) or isinstance(value, bool):
            return value
        spec = str(parse_lengths(str(value)))
        return int(spec) if spec.isdecimal() else spec

    @field_validator("depths")
    @classmethod
    def _known_depths(cls, value: str) -> str:
        return str(parse_depths(value))

    @field_validator("arrivals")
    @classmethod
    def _known_arrivals(cls, value: str) -> str:
        return str(parse_arrivals(value))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        rows = self.source not in ("demo", "random", "trace")
        for key in ("format", "column", "reference_column", "template", "subset", "split"):
            if not rows and getattr(self, key) not in (None, "auto"):
                raise UsageError(
                    f"workload.{key}: means nothing for source {self.source}; name a file or "
                    "hf:NAME as workload.source, or drop it"
                )
        if not rows and self.output == "reference":
            raise UsageError(
                f"workload.output: source {self.source} has no reference answers; use recorded, "
                "or a number of tokens"
            )
        if self.max_new_tokens is not None and self.output != "recorded":
            raise UsageError(
                f"workload.max_new_tokens: means nothing where output is {self.output}; drop it"
            )
        return self


class RepeatsConfig(Section):
    """How often the timed part is repeated."""

    blocks: int = Field(6, ge=1, description="Palindromic blocks; an interval needs at least 6")
    max_seconds: float | None = Field(
        None, gt=0, description="Start no further block after this many seconds; null: no limit"
    )
    interval: float | None = Field(
        None,
        gt=0,
        description="Add blocks, at looks after 1, 2 and 4 times as many, until the interval of "
        "cdb over static is this narrow: half its width as a share, such as 0.02",
    )


class SloConfig(Section):
    """Latency targets, for goodput."""

    ttft_s: float | None = Field(None, gt=0, description="Longest time to first token, in seconds")
    tpot_s: float | None = Field(None, gt=0, description="Longest time per later token, in seconds")
    e2e_s: float | None = Field(None, gt=0, description="Longest time per request, in seconds")


def _default_dense(data: Mapping[str, Any]) -> tuple[str, ...]:
    return ("demo-dense",) if data.get("model") == resources.DEFAULT_MODEL else ()


class RunConfig(Section):
    """Everything ``cdbench run`` needs to know. Raises UsageError or pydantic's ValidationError."""

    model: str = Field(
        resources.DEFAULT_MODEL,
        min_length=1,
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
        None, description="Evaluation tasks; null takes those on the model's card"
    )
    limit: int | None = Field(150, ge=1, description="Documents per task; null: all")
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
    stages: str = Field(
        "measure",
        min_length=1,
        description="Stage curves for the time bounds and the waterfall: measure (between the "
        "blocks), none, or a file that `cdbench stages` saved for this very set-up",
    )
    repeats: RepeatsConfig = Field(default_factory=RepeatsConfig)
    slo: SloConfig = Field(default_factory=SloConfig)
    price_per_hour: float | None = Field(
        None, gt=0, description="Price of the machine per hour, in any currency"
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
    out: str | None = Field(None, description="Run directory; null: results/runs/<date>-<name>")

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
            raise UsageError(f"weights: {value!r} is unknown; write checkpoint or random:SEED")
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
        if self.equal == "memory" and self.kv.budget_bytes is self.kv.budget_fraction is None:
            raise UsageError(
                "equal: memory needs a KV budget to share; add kv.budget_bytes or budget_fraction"
            )
        if self.exit.rule == "trace" and self.workload.depths != "recorded":
            raise UsageError(
                f"workload.depths: {self.workload.depths} beside a trace, whose depths are "
                "replayed; use recorded, or drop the trace"
            )
        self._check_modes()
        for later in LATER:
            refuse_later(later.key, _value_at(self, later.key))
        return self

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


RULE_KEYS = ("threshold", "depth", "trace_file")
"""Keys of ``exit`` that mean something only together with the rule they were written for."""


def expand_exit(value: Any) -> Any:
    """Split a rule written as ``cdf@0.5`` or ``fixed:2`` into the keys it stands for."""
    if isinstance(value, str):
        value = {"rule": value}
    if not isinstance(value, dict) or not isinstance(value.get("rule"), str):
        return value
    if not re.search("[:@]", value["rule"]):
        return value
    spec = parse_exit(value["rule"])
    expanded = {**value, "rule": spec.rule}
    for key in RULE_KEYS:
        short, plain = getattr(spec, key), value.get(key)
        if short is not None and plain is not None and short != plain:
            raise UsageError(
                f"exit.{key}: {plain!r} contradicts rule {value['rule']!r}; give it once"
            )
        if short is not None:
            expanded[key] = short
    return expanded


@dataclass(frozen=True)
class KeyInfo:
    """One configuration key: its dotted path, its default as YAML text, and what it means."""

    key: str
    default: str
    description: str


def sections() -> dict[str, type[Section]]:
    """The keys of ``RunConfig`` that hold keys of their own."""
    return {
        name: field.annotation
        for name, field in RunConfig.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }


def known_keys() -> tuple[str, ...]:
    """Every key by its dotted path, in the order of the file."""
    nested = sections()
    keys: list[str] = []
    for name in RunConfig.model_fields:
        if name in nested:
            keys.extend(f"{name}.{inner}" for inner in nested[name].model_fields)
        else:
            keys.append(name)
    return tuple(keys)


def describe_keys() -> tuple[KeyInfo, ...]:
    """Every key with its default and description."""
    defaults = RunConfig()
    return tuple(
        KeyInfo(
            key, yaml_scalar(_plain(_value_at(defaults, key))), _field_at(key).description or ""
        )
        for key in known_keys()
    )


def _field_at(key: str) -> Any:
    section, _, name = key.rpartition(".")
    owner: type[Section] = sections()[section] if section else RunConfig
    return owner.model_fields[name]


def nearest_key(unknown: str) -> str | None:
    """The known key, or section, that an unknown dotted path most likely meant."""
    candidates = (*known_keys(), *sections())
    last = unknown.rpartition(".")[2]
    same_name = [key for key in candidates if key.rpartition(".")[2] == last]
    if same_name:
        return same_name[0]
    near = difflib.get_close_matches(unknown, candidates)
    if near:
        swapped = [key for key in near if sorted(key) == sorted(unknown)]
        return (swapped or near)[0]
    by_name = {key.rpartition(".")[2]: key for key in candidates}
    near = difflib.get_close_matches(last, by_name, n=1)
    return by_name[near[0]] if near else None


def _value_at(config: BaseModel, key: str) -> Any:
    for part in key.split("."):
        config = getattr(config, part)
    return config


def yaml_scalar(value: Any) -> str:
    """A value as one line of YAML."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=math.inf)
    return text.removesuffix("\n").removesuffix("\n...")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

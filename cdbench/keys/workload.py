"""Which requests are timed, and when they arrive."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import (
    Field,
    field_validator,
    model_validator,
)

from cdbench.errors import UsageError
from cdbench.grammar import (
    parse_depths,
)
from cdbench.keys.section import MOST_REQUESTS, FileName, Section, Seed, Tokens, nameable
from cdbench.workloads.arrivals import parse_arrivals
from cdbench.workloads.lengths import parse_lengths


class WorkloadConfig(Section):
    """Which requests are timed."""

    source: FileName = Field(
        "demo",
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
    requests: int = Field(224, ge=1, le=MOST_REQUESTS, description="How many requests are timed")
    prompt_tokens: int | str | None = Field(
        None,
        description="Cut or repeat prompts to this length, in tokens: N, A-B (uniform), or "
        "lognormal:MEDIAN:SIGMA; null: as they are",
    )
    output: Literal["recorded", "reference"] | Tokens = Field(
        "recorded",
        description="Outputs: recorded (until they stop), reference (forced to the known answer), "
        "or so many tokens each",
    )
    max_new_tokens: Tokens | None = Field(
        None,
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
    seed: Seed = Field(
        0, description="Seed that picks and orders the requests, their lengths and arrivals"
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
        return str(parse_arrivals(nameable(value)))

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

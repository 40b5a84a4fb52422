"""When a later token stops looping, and how keys and values are kept."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import (
    Field,
    field_validator,
    model_validator,
)

from cdbench.errors import UsageError
from cdbench.grammar import (
    LOOKAHEAD,
    ExitSpec,
    check_spec,
    parse_exit,
    parse_kv,
)
from cdbench.keys.section import Bytes, FileName, Section

RULE_KEYS = ("threshold", "depth", "trace_file", "predictor")
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


class ExitConfig(Section):
    """When a later token stops looping."""

    rule: str | None = Field(
        None,
        description="Exit rule: none, fixed:D, RULE, RULE@THRESHOLD, trace:FILE[@THRESHOLD] or "
        "lookahead:PATH[@THRESHOLD]; null takes the one on the model's card",
    )
    threshold: float | None = Field(
        None, description="Threshold of the rule, in the unit of its signal; null takes its default"
    )
    depth: int | None = Field(None, ge=1, description="Loops per later token, for rule fixed")
    trace_file: FileName | None = Field(None, description="File of recorded depths, for rule trace")
    predictor: FileName | None = Field(
        None,
        description="Gate of `cdbench predictor fit`, for rule lookahead: its directory, or a demo "
        "model that has one",
    )
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
            if any(value is not None for value in (self.depth, self.trace_file, self.predictor)):
                raise UsageError(
                    "exit.rule: missing beside depth, trace_file or predictor; name the rule"
                )
        else:
            check_spec(self._spec(self.rule))
        if self.rule == LOOKAHEAD and self.lag == 0:
            raise UsageError(
                "exit.lag: 0 beside rule lookahead: at lag 0 a rule's own decision is on time, and "
                "earlier than the gate's; use --exit-lag 1"
            )
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
        return self._spec(self.rule)

    def _spec(self, rule: str) -> ExitSpec:
        return ExitSpec(rule, self.threshold, self.depth, self.trace_file, self.predictor)


class KvConfig(Section):
    """How keys and values are kept."""

    layout: str = Field(
        "per-loop",
        description="KV slots a core layer keeps: per-loop, first-shared, shared, slots:M",
    )
    budget_bytes: Bytes | None = Field(
        None, description="Most bytes of KV in use at once, in every mode; null: no limit"
    )
    budget_fraction: float | None = Field(
        None,
        gt=0,
        le=1,
        description="The same as a share of the device's free memory, split among the modes",
    )
    host_bytes: Bytes | None = Field(
        None,
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

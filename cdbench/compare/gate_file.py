"""The gate file: what must hold of a run, and what is done where it cannot be told.

name: demo
modes: [static, lockstep, cdb]
exact: [token_loops, core_launches, coda_launches]
timed: {metrics: [output_throughput], modes: [cdb], margin: 0.05}
within:
  - {metric: speedup, mode: cdb, over: static, at_least: 1.1}
  - {metric: host_share, mode: cdb, at_most: 0.05}
inconclusive: pass
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from cdbench.bench.places import typed_path
from cdbench.compare.counted import COUNTED
from cdbench.config import parse_yaml
from cdbench.errors import UsageError
from cdbench.grammar import parse_mode
from cdbench.keys.section import Section
from cdbench.metrics.registry import METRICS
from cdbench.resources import data_dir, nearest_hint
from cdbench.stats.gate import DEFAULT_MARGIN

RATIOS = ("speedup", "realised_flop", "realised_work", "realised_time")
ANSWERS = ("accuracy", "accuracy_difference")
WITHIN = (*RATIOS, *ANSWERS, *METRICS)
"""What a floor or a ceiling may be put on."""
OF_TWO = ("speedup", "accuracy_difference")
"""Figures of one mode over another."""
IN_A_SCOPE = ("speedup", "realised_time")
"""Figures that there are of decoding and of the whole."""
TIMED = ("speedup", *(name for name, metric in METRICS.items() if metric.direction != "none"))
LARGEST_MARGIN = 1.0
SHIPPED = "gates"
"""Folder of the shipped configurations that holds gate files."""


class TimedSection(Section):
    """Metrics that are compared with a base, with a margin."""

    metrics: tuple[str, ...] = Field((), description="Metric names (`cdbench list metrics`)")
    modes: tuple[str, ...] = Field((), description="Modes; none: every required mode")
    over: str = Field("static", description="The other mode of the metric speedup")
    scope: Literal["decode", "e2e"] = Field("e2e", description="Scope of the metric speedup")
    margin: float = Field(
        DEFAULT_MARGIN, gt=0, le=LARGEST_MARGIN, description="A loss within this share passes"
    )

    @field_validator("metrics")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _once(_known_names(names, TIMED))

    @field_validator("modes")
    @classmethod
    def _are_modes(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        return _modes(labels)

    @model_validator(mode="after")
    def _of_a_speedup(self) -> Self:
        for key in ("over", "scope"):
            if key in self.model_fields_set and self.metrics and "speedup" not in self.metrics:
                raise UsageError(f"timed.{key}: belongs to the metric speedup; drop it")
        return self


class WithinCheck(Section):
    """A floor or a ceiling on a figure of the run alone."""

    metric: str = Field(description="speedup, realised_*, accuracy, accuracy_difference, a metric")
    mode: str = Field("cdb", description="Of which mode")
    over: str = Field("static", description="The other mode of speedup and accuracy_difference")
    scope: Literal["decode", "e2e"] = Field("e2e", description="Of speedup and realised_time")
    at_least: float | None = Field(None, description="Floor")
    at_most: float | None = Field(None, description="Ceiling")

    @field_validator("metric")
    @classmethod
    def _known(cls, name: str) -> str:
        return _known_names((name,), WITHIN)[0]

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            raise UsageError(
                f"within: {self.metric} of {self.mode}: give one of at_least and at_most"
            )
        for key, metrics in (("over", OF_TWO), ("scope", IN_A_SCOPE)):
            if key in self.model_fields_set and self.metric not in metrics:
                raise UsageError(
                    f"within: {key} belongs to {' and '.join(metrics)}; drop it from {self.metric}"
                )
        return self

    @property
    def name(self) -> str:
        """The same from run to run."""
        over = f"/{self.over}" if self.metric in OF_TWO else ""
        scope = f".{self.scope}" if self.metric in IN_A_SCOPE else ""
        side = "at least" if self.at_least is not None else "at most"
        return f"within: {self.mode}{over} {self.metric}{scope} {side}"


class GateFile(Section):
    """Everything a gate file may say."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][\w.-]*$", description="Names its baselines: results/baselines/NAME"
    )
    modes: tuple[str, ...] = Field((), description="Modes that must have run")
    exact: tuple[str, ...] = Field(
        (), description="Metrics that must equal the exact baseline's to the digit, in every mode"
    )
    timed: TimedSection = Field(default_factory=TimedSection, description="Compared with a base")
    within: tuple[WithinCheck, ...] = Field((), description="Floors and ceilings on the run itself")
    inconclusive: Literal["pass", "stop"] = Field(
        "pass", description="What an inconclusive gate ends with: pass (code 0) or stop (code 5)"
    )

    @field_validator("modes")
    @classmethod
    def _are_modes(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        return _modes(labels)

    @field_validator("exact")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in _once(_known_names(names, tuple(METRICS))):
            if name not in COUNTED:
                raise ValueError(f"{name} is no count and never repeats to the digit; use timed")
        return names

    @model_validator(mode="after")
    def _checks_something(self) -> Self:
        if not (self.modes or self.exact or self.timed.metrics or self.within):
            raise UsageError("checks nothing; give modes, exact, timed or within")
        if self.exact and not self.modes:
            raise UsageError("exact: of which modes? give modes")
        if self.timed.metrics and not self.timed_modes:
            raise UsageError("timed: of which modes? give modes or timed.modes")
        if self.timed.metrics == ("speedup",) and set(self.timed_modes) == {self.timed.over}:
            raise UsageError(
                f"timed: speedup of {self.timed.over} over itself compares nothing; give another "
                "mode, or timed.over"
            )
        names = [check.name for check in self.within]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"{name}: is there twice; keep one of them")
        return self

    @property
    def timed_modes(self) -> tuple[str, ...]:
        """The modes whose times are compared."""
        return self.timed.modes or self.modes


def read_gate(typed: str) -> tuple[GateFile, str]:
    """A gate file (a path, or the name of a shipped one) and the sha256 of its text.

    Raises:
        UsageError: it is missing, no YAML, or says something that is no key or no value of it.
    """
    path = _find(typed)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
        raise UsageError(f"--gate {typed}: {why}; name a gate file (docs/gates.md)") from None
    tree = parse_yaml(text, f"--gate {typed}")
    if not isinstance(tree, dict):
        raise UsageError(f"--gate {typed}: holds no mapping of keys; see docs/gates.md")
    return parse_gate(tree, f"--gate {typed}"), hashlib.sha256(text.encode()).hexdigest()


def parse_gate(tree: dict[str, Any], source: str) -> GateFile:
    """The keys of a gate file, validated. UsageError names the first that is wrong."""
    try:
        return GateFile.model_validate(tree)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None
    except ValidationError as error:
        raise UsageError(f"{source}: {_complaint(error)}") from None


def _complaint(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        *section, last = first["loc"]
        sections: dict[str, type[Section]] = {"timed": TimedSection, "within": WithinCheck}
        fields = sections.get(str(section[0]) if section else "", GateFile)
        return f"unknown key `{key}`; {nearest_hint(str(last), tuple(fields.model_fields))}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{key}: {message}; see docs/gates.md"


def _modes(labels: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(str(parse_mode(label)) for label in _once(labels))
    except UsageError as error:
        raise ValueError(str(error)) from None


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is there twice; keep one of them")
    return names


def _known_names(names: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            raise ValueError(f"no such metric {name!r}; {nearest_hint(name, known)}")
    return names


def _find(typed: str) -> Path:
    path = typed_path(typed, "--gate")
    shipped = data_dir("configs") / SHIPPED / f"{typed}.yaml"
    return shipped if not path.is_file() and shipped.is_file() else path

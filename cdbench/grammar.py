"""The texts of ``--exit``, ``--kv`` and ``--modes``: read, checked, written back.

Everything read here prints as the text it came from. What depends on a model or on an exit rule's
own range is checked where that is known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from cdbench import resources
from cdbench.errors import UsageError

LOOKAHEAD = "lookahead"
"""The rule of a gate that looks one loop ahead; its threshold is a probability."""


@dataclass(frozen=True)
class ExitSpec:
    """An exit rule as written in ``--exit``; ``str()`` gives the text back.

    ``depth`` belongs to ``fixed``, ``trace_file`` to ``trace``, ``predictor`` to ``lookahead``.
    """

    rule: str
    threshold: float | None = None
    depth: int | None = None
    trace_file: str | None = None
    predictor: str | None = None

    def __str__(self) -> str:
        argument = self.trace_file or self.predictor if self.depth is None else self.depth
        text = self.rule if argument is None else f"{self.rule}:{argument}"
        return text if self.threshold is None else f"{text}@{self.threshold!r}"


def parse_exit(text: str) -> ExitSpec:
    """Read ``none``, ``fixed:D``, ``RULE[@THRESHOLD]``, ``trace:FILE[@THRESHOLD]`` or
    ``lookahead:PATH[@THRESHOLD]``.

    Raises UsageError for anything else. Whether the rule exists and the threshold is in its range
    is for ``check_exit``: the rules are not loaded here.
    """
    head, threshold = _split_threshold(text)
    rule, colon, argument = head.partition(":")
    if not re.fullmatch(r"[a-z][a-z0-9-]*", rule):
        raise UsageError(f"exit rule {text!r}: no rule name; write RULE, RULE@THRESHOLD or fixed:D")
    if rule == "fixed":
        spec = ExitSpec(rule, threshold, depth=_positive(argument, f"exit rule {text!r}: depth"))
    elif rule == "trace":
        spec = ExitSpec(rule, threshold, trace_file=argument or None)
    elif rule == LOOKAHEAD:
        spec = ExitSpec(rule, threshold, predictor=argument or None)
    elif colon:
        raise UsageError(f"exit rule {text!r}: {rule} takes no ':'; write {rule}@THRESHOLD")
    else:
        spec = ExitSpec(rule, threshold)
    check_spec(spec)
    return spec


def _split_threshold(text: str) -> tuple[str, float | None]:
    """Split off ``@THRESHOLD``; in the name of a file an ``@`` without a number stays."""
    head, at, number = text.rpartition("@")
    if not at:
        return text, None
    try:
        threshold = float(number)
    except ValueError:
        if text.startswith(("trace:", "lookahead:")):
            return text, None
        raise UsageError(
            f"exit rule {text!r}: threshold {number!r} is no number; write RULE@0.5"
        ) from None
    if not math.isfinite(threshold):
        raise UsageError(f"exit rule {text!r}: threshold is not finite; give a number")
    return head, threshold


def check_spec(spec: ExitSpec) -> None:
    """Raise UsageError where a rule lacks what belongs to it or has what does not."""
    if spec.rule in ("none", "fixed") and spec.threshold is not None:
        raise UsageError(f"exit rule {spec.rule!r}: takes no threshold; drop {spec.threshold:g}")
    if (spec.rule == "fixed") != (spec.depth is not None):
        raise UsageError(f"exit rule {spec.rule!r}: exit.depth belongs to fixed; write fixed:D")
    if (spec.rule == "trace") != (spec.trace_file is not None):
        raise UsageError(
            f"exit rule {spec.rule!r}: exit.trace_file belongs to trace; write trace:FILE"
        )
    if (spec.rule == LOOKAHEAD) != (spec.predictor is not None):
        raise UsageError(
            f"exit rule {spec.rule!r}: exit.predictor belongs to lookahead; write lookahead:PATH"
        )


class RuleInfo(Protocol):
    """What ``check_exit`` asks of an exit rule (``cdbench.runtime.exits.RULES`` has them)."""

    @property
    def threshold_range(self) -> _Range | None: ...


class _Range(Protocol):
    def __contains__(self, value: float, /) -> bool: ...


def check_exit(rule: str, threshold: float | None, rules: Mapping[str, RuleInfo]) -> None:
    """Raise UsageError for an unknown rule or a threshold outside the rule's range."""
    if rule not in rules:
        raise UsageError(
            f"exit rule {rule!r}: unknown; {resources.nearest_hint(rule, tuple(rules))}"
        )
    allowed = rules[rule].threshold_range
    if rule == LOOKAHEAD and threshold is not None:
        if not 0 < threshold <= 1:
            raise UsageError(
                f"exit rule 'lookahead': threshold {threshold:g} is no probability to call at; use "
                "above 0 to 1"
            )
        return
    if threshold is None:
        return
    if allowed is None:
        raise UsageError(f"exit rule {rule!r}: takes no threshold; drop {threshold:g}")
    if threshold not in allowed:
        raise UsageError(
            f"exit rule {rule!r}: threshold {threshold:g} is out of range; use {allowed}"
        )


KV_LAYOUTS = ("per-loop", "first-shared", "shared")


def parse_kv(text: str) -> str:
    """A KV layout in its canonical spelling; UsageError where it is none."""
    if text in KV_LAYOUTS:
        return text
    prefix, colon, count = text.partition(":")
    if prefix == "slots" and colon:
        return f"slots:{_positive(count, f'kv.layout {text!r}: slot count')}"
    raise UsageError(
        f"kv.layout {text!r}: unknown; {resources.nearest_hint(text, (*KV_LAYOUTS, 'slots:M'))}"
    )


@dataclass(frozen=True)
class Mode:
    """One schedule to run; ``str()`` gives the text of ``--modes`` back.

    ``depth`` belongs to ``static`` (None: the model's own loops), ``dense`` to the kind of that
    name.
    """

    kind: Literal["dense", "static", "lockstep", "cdb"]
    depth: int | Literal["auto"] | None = None
    dense: str | None = None

    @property
    def adaptive(self) -> bool:
        """Whether tokens leave at depths of their own."""
        return self.kind in ("lockstep", "cdb")

    def __str__(self) -> str:
        if self.dense is not None:
            return f"dense:{self.dense}"
        return self.kind if self.depth is None else f"{self.kind}@{self.depth}"


_MODE_FORMS = ("dense:NAME", "static", "static@D", "static@auto", "lockstep", "cdb")


def parse_mode(text: str) -> Mode:
    """Read one mode; UsageError names the nearest form."""
    if text in ("static", "lockstep", "cdb"):
        return Mode(text)  # type: ignore[arg-type]  # the test narrows it
    if text == "static@auto":
        return Mode("static", depth="auto")
    if text.startswith("static@"):
        depth = _positive(text.removeprefix("static@"), f"mode {text!r}: depth")
        return Mode("static", depth=depth)
    if text.startswith("dense:") and text != "dense:":
        return Mode("dense", dense=text.removeprefix("dense:"))
    raise UsageError(f"mode {text!r}: unknown; {resources.nearest_hint(text, _MODE_FORMS)}")


def parse_modes(modes: str | Sequence[str]) -> tuple[Mode, ...]:
    """Read a comma list or a list of modes, in order; UsageError for none or a repeated one."""
    parsed = tuple(parse_mode(text) for text in split_commas(modes))
    if not parsed:
        raise UsageError(f"modes: empty; choose from {', '.join(_MODE_FORMS)}")
    refuse_repeats("modes", [str(mode) for mode in parsed])
    return parsed


def _positive(text: str, what: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise UsageError(f"{what} {text!r} is refused; give a whole number of at least 1")
    return int(text)


def split_commas(value: Any) -> Any:
    """A comma list as a list of its parts; anything but a text unchanged."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def refuse_repeats(key: str, names: Sequence[str]) -> None:
    """Raise UsageError where a key lists the same name twice."""
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{key}: {name!r} is listed twice; name it once")


DEPTHS = ("recorded", "full", "shallow", "bimodal", "clustered", "shallow-heavy", "deep-heavy")
"""What ``workload.depths`` may be called, beside ``serial:RHO``."""


@dataclass(frozen=True)
class DepthSpec:
    """Where executed depths come from; ``str()`` gives the text of ``workload.depths`` back.

    ``correlation`` belongs to ``serial``: of the depths of two tokens in a row, 0 to below 1.
    """

    name: str = "recorded"
    correlation: float | None = None

    @property
    def synthetic(self) -> bool:
        """Whether the depths are drawn, and no model's."""
        return self.name != "recorded"

    def __str__(self) -> str:
        return self.name if self.correlation is None else f"{self.name}:{self.correlation!r}"


def parse_depths(text: str) -> DepthSpec:
    """Read ``recorded``, the name of a distribution, or ``serial:RHO``; UsageError otherwise."""
    if text in DEPTHS:
        return DepthSpec(text)
    name, colon, number = text.partition(":")
    if name != "serial":
        raise UsageError(
            f"workload.depths {text!r}: unknown; "
            f"{resources.nearest_hint(text, (*DEPTHS, 'serial:RHO'))}"
        )
    try:
        correlation = float(number)
    except ValueError:
        correlation = math.nan
    if not colon or not 0 <= correlation < 1:
        raise UsageError(
            f"workload.depths {text!r}: the correlation of two tokens in a row is 0 to below 1; "
            "write serial:0.8"
        )
    return DepthSpec(name, correlation)

"""A task's generation arguments as the engine takes them: stops, length and sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lm_eval.models.utils import normalize_gen_kwargs

from cdbench.errors import UsageError

DEFAULT_MAX_TOKENS = 256
"""What lm-eval generates at most where a task does not say."""
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
KNOWN = ("until", *LENGTHS, "do_sample", "temperature", "top_k", "top_p")
NEUTRAL = {"num_beams": 1, "repetition_penalty": 1.0}
"""Arguments of other engines that tasks set to what they are anyway."""


@dataclass(frozen=True)
class GenerationSettings:
    """``stops`` end a text where they appear; greedy at temperature 0; ``top_k`` 0 keeps all."""

    stops: tuple[str, ...]
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float


def read_settings(kwargs: Mapping[str, Any], where: str) -> GenerationSettings:
    """Read lm-eval's generation arguments. UsageError, naming ``where``, for one that is not kept.

    An argument that this engine does not have would change the answers if it were left out, so it
    is refused; one with no effect at its value is not.
    """
    for key, value in kwargs.items():
        if key not in KNOWN and NEUTRAL.get(key) != value:
            raise UsageError(
                f"{where}: generation argument {key}={value!r} is not available; "
                f"known: {', '.join(KNOWN)}"
            )
    plain = {key: value for key, value in kwargs.items() if value is not None}
    _check_values(plain, where)
    try:
        read = normalize_gen_kwargs(plain, DEFAULT_MAX_TOKENS)
        settings = GenerationSettings(
            stops=tuple(str(stop) for stop in read["until"] if stop),
            max_tokens=int(read["max_gen_toks"]),
            temperature=float(read.get("temperature", 0.0)) if read["do_sample"] else 0.0,
            top_k=int(read.get("top_k", 0)),
            top_p=float(read.get("top_p", 1.0)),
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{where}: generation arguments: {error}; correct them") from None
    _check(settings, plain, where)
    return settings


def _check_values(given: Mapping[str, Any], where: str) -> None:
    for key, value in given.items():
        if value is not None and (wanted := _wanted(key, value)) is not None:
            raise UsageError(f"{where}: generation argument {key}={value!r}; use {wanted}")


def _wanted(key: str, value: Any) -> str | None:
    """What should stand in a value's place; None where it can be meant."""
    if key == "do_sample":
        return None if isinstance(value, bool) else "true or false"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if key in (*LENGTHS, "top_k"):
        return None if number and value % 1 == 0 else "a whole number"
    if key in ("temperature", "top_p"):
        return None if number and abs(value) < math.inf else "a number"
    return None


def _check(settings: GenerationSettings, given: Mapping[str, Any], where: str) -> None:
    if settings.max_tokens < 1:
        raise UsageError(f"{where}: max_gen_toks is {settings.max_tokens}; use at least 1")
    if settings.temperature < 0 or settings.top_k < 0 or not 0 < settings.top_p <= 1:
        raise UsageError(
            f"{where}: temperature {settings.temperature:g}, top_k {settings.top_k}, top_p "
            f"{settings.top_p:g}; use 0 or more, 0 or more, above 0 and at most 1"
        )
    if given.get("do_sample") and not settings.temperature:
        raise UsageError(f"{where}: do_sample without a temperature; add temperature=1.0")


def one_length(own: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A change that gives the length by one of its names, with the others a task uses unset."""
    given = [name for name in LENGTHS if change.get(name) is not None]
    if not given:
        return dict(change)
    return {**{name: None for name in LENGTHS if name in own}, **change}


def check_change(own: Mapping[str, Any], change: Mapping[str, Any], where: str) -> None:
    """Raise UsageError where what is asked for has no meaning, or would have no effect."""
    _check_values(change, where)
    lengths = [name for name in LENGTHS if change.get(name) is not None]
    if len(lengths) > 1:
        raise UsageError(f"{where}: {' and '.join(lengths)} are one length; give one of them")
    kept = {**own, **change}
    if change.get("temperature") and kept.get("do_sample") is False:
        raise UsageError(
            f"{where}: temperature {change['temperature']} has no effect beside the task's "
            "do_sample: false; add do_sample=true"
        )

"""Keys by their dotted paths: what there is, what it means, and what a typo meant."""

from __future__ import annotations

import difflib
import functools
import math
from dataclasses import dataclass
from typing import Any

import yaml

from cdbench.keys.run import RunConfig
from cdbench.keys.section import Section, value_at


@dataclass(frozen=True)
class KeyInfo:
    """One configuration key: its dotted path, its default as YAML text, and what it means."""

    key: str
    default: str
    description: str


@functools.cache  # asked several times for every cell of a sweep
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
        KeyInfo(key, yaml_scalar(_plain(value_at(defaults, key))), _field_at(key).description or "")
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


def yaml_scalar(value: Any) -> str:
    """A value as one line of YAML."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=math.inf)
    return text.removesuffix("\n").removesuffix("\n...")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

"""``cdbench.json``: how a checkpoint is read whose keys and tensors have other names than ours."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdbench.errors import UsageError
from cdbench.models.config_reader import CONFIG_NAME, read_json
from cdbench.resources import nearest_hint

TRANSLATION_NAME = "cdbench.json"


@dataclass(frozen=True)
class Translation:
    """A ``cdbench.json``: how to read a checkpoint that goes by other names.

    ``family`` is the ``model_type`` that serves it. ``keys`` says for our configuration keys which
    of theirs holds the value, or ``{"value": …}`` for what theirs does not say; keys of the same
    name need no entry. ``tensors`` maps regular expressions to replacements, applied to each of
    their tensor names one after the other; null leaves a tensor out.
    """

    path: Path
    family: str
    keys: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, str | None] = field(default_factory=dict)

    def config(self, theirs: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
        """Their configuration under our keys, of which ``known`` are all that the family reads."""
        ours = dict(theirs)
        for key, source in self.keys.items():
            if key not in known:
                hint = nearest_hint(key, tuple(sorted(known)))
                raise UsageError(f"{self.path}: {self.family} has no key {key!r}; {hint}")
            if isinstance(source, dict) and source.keys() == {"value"}:
                ours[key] = source["value"]
            elif not isinstance(source, str):
                raise UsageError(
                    f"{self.path}: `keys.{key}` is {source!r}; "
                    'expected the name of a key of theirs, or {"value": …}'
                )
            elif source not in theirs:
                hint = nearest_hint(source, tuple(sorted(theirs)))
                raise UsageError(
                    f"{self.path}: `keys.{key}`: {CONFIG_NAME} has no key {source!r}; {hint}"
                )
            else:
                ours[key] = theirs[source]
        return {**ours, "model_type": self.family}

    def tensor(self, name: str) -> str | None:
        """Our name of a tensor of theirs; None where it is to be left out."""
        for pattern, replacement in self.tensors.items():
            if replacement is None:
                if re.search(pattern, name):
                    return None
                continue
            try:
                name = re.sub(pattern, replacement, name)
            except (re.error, IndexError) as error:  # a group that the pattern does not have
                raise UsageError(
                    f"{self.path}: `tensors`: {pattern!r} → {replacement!r}: {error}; correct it"
                ) from None
        return name


def read_translation(directory: Path) -> Translation | None:
    """The ``cdbench.json`` of a checkpoint; UsageError where it is malformed."""
    path = directory / TRANSLATION_NAME
    raw = read_json(path)
    if raw is None:
        return None
    expected = {"family": str, "keys": dict, "tensors": dict}
    for key, value in raw.items():
        if key not in expected:
            raise UsageError(f"{path}: unknown key {key!r}; {nearest_hint(key, tuple(expected))}")
        if not isinstance(value, expected[key]):
            what = "a name" if key == "family" else "an object"
            raise UsageError(f"{path}: `{key}` is {value!r}; expected {what}")
    if "family" not in raw:
        raise UsageError(f"{path}: `family` is missing; name the model_type that serves this model")
    for pattern, replacement in raw.get("tensors", {}).items():
        if replacement is not None and not isinstance(replacement, str):
            raise UsageError(
                f"{path}: `tensors`: {pattern!r} → {replacement!r}; expected a name or null"
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"{path}: `tensors`: {pattern!r}: {error}; correct it") from None
    return Translation(path, **raw)

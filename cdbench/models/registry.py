"""Which code builds which ``model_type``: the families here, and those that packages bring.

A built-in family is one record below; its module is imported only when such a model is built. An
installed package adds one by an entry point in the group ``cdbench.models``: its name is the
``model_type``, its value a callable that takes a configuration and returns a ``StagedModel``. See
``docs/add-a-model.md``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from cdbench.errors import UsageError
from cdbench.models.base import StagedModel
from cdbench.models.config_reader import core_layers_only
from cdbench.resources import nearest_hint

ENTRY_POINT_GROUP = "cdbench.models"
_BLAME = "update or remove that package"

Builder = Callable[[dict[str, Any]], StagedModel]
"""Takes a parsed ``config.json``, returns the model with unset weights."""


@dataclass(frozen=True)
class Family:
    """One ``model_type``: where its code is, and what to expect of it.

    ``stages`` are those that may hold layers. None stands for what a configuration decides; of a
    package's family nothing is known until it builds a model.
    """

    model_type: str
    path: str
    """``module:attribute`` of the builder."""
    summary: str
    stages: tuple[str, ...] | None = ("core",)
    gate: bool | None = False
    """A learned exit gate: the rule ``cdf`` works."""
    injection: bool | None = False
    """The prelude's output goes into every loop."""
    halting: bool | None = False
    """Reads out a halting-weighted mean of the states (rule ``act``)."""
    package: str = "cdbench"
    """The distribution that brings it."""


ALL_STAGES = ("prelude", "core", "coda")
_LLAMA = "cdbench.models.llama:Llama"

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        Family("ouro", "cdbench.models.ouro:Ouro", "looped block, learned gate", gate=True),
        Family(
            "huginn_raven",
            "cdbench.models.huginn:Huginn",
            "recurrent depth: prelude, looped block behind an adapter, coda",
            stages=ALL_STAGES,
            injection=True,
        ),
        Family(
            "universal_transformer",
            "cdbench.models.universal:UniversalTransformer",
            "one shared layer with adaptive computation time",
            gate=True,
            halting=True,
        ),
        Family(
            "looped_llama",
            "cdbench.models.looped_llama:LoopedLlama",
            "any looped model of Llama layers, by configuration",
            stages=ALL_STAGES,
            injection=None,
        ),
        Family("llama", _LLAMA, "dense decoder"),
        Family("mistral", _LLAMA, "dense decoder, full attention"),
        Family("qwen2", _LLAMA, "dense decoder with q, k, v biases"),
        Family("qwen3", _LLAMA, "dense decoder with q and k norms"),
    )
}


def families() -> dict[str, Family]:
    """Every ``model_type`` that can be built, the installed packages' included.

    A built-in name is not overridden. No package is imported.
    """
    found = {point.name: _plugin_family(point) for point in _entry_points()}
    return {**FAMILIES, **{name: found[name] for name in sorted(found.keys() - FAMILIES.keys())}}


def build_model(config: dict[str, Any]) -> StagedModel:
    """An uninitialised model for an official configuration.

    Raises UsageError for an unknown type, and for a package that does not bring what it promises.
    """
    builder, what = _builder(config)
    try:
        model = builder(config)
    except UsageError:
        raise
    except Exception as error:
        if what is None:
            raise
        raise UsageError(f"{what} failed ({_one_line(error)}); {_BLAME}") from error
    if not isinstance(model, StagedModel):
        raise UsageError(
            f"{what} returned a {type(model).__name__}, expected a StagedModel; {_BLAME}"
        )
    return model


def with_layers(config: dict[str, Any], layers: str) -> dict[str, Any]:
    """``config`` with other numbers of layers, ``PRELUDE-CORE-CODA``: another model.

    How is up to the builder's own ``with_layers(config, prelude, core, coda)``; a built-in family
    without one has core layers only. UsageError for a split that is malformed or not to be had.
    """
    split = re.fullmatch(r"(\d{1,4})-(\d{1,4})-(\d{1,4})", layers, re.ASCII)
    if split is None:
        raise UsageError(f"layers: {layers!r} is no split; write PRELUDE-CORE-CODA, as in 1-4-1")
    prelude, core, coda = (int(count) for count in split.groups())
    if core == 0:
        raise UsageError(f"layers: {layers!r} has no core; give it at least one layer")
    builder, what = _builder(config)
    change = getattr(builder, "with_layers", None)
    if change is not None:
        changed: dict[str, Any] = change(config, prelude, core, coda)
        return changed
    if what is not None:
        raise UsageError(f"{what} has no with_layers; edit the config.json itself")
    return core_layers_only(config, prelude, core, coda)


def config_keys(model_type: str) -> frozenset[str]:
    """Our configuration keys of a family that serves checkpoints by other names.

    UsageError for any other: its format is its own, and a ``cdbench.json`` does not apply.
    """
    builder, _ = _builder({"model_type": model_type})
    keys: frozenset[str] | None = getattr(builder, "config_keys", None)
    if keys is None:
        raise UsageError(f"model_type {model_type!r} has a format of its own; use looped_llama")
    return keys


def _builder(config: dict[str, Any]) -> tuple[Builder, str | None]:
    """The callable for a configuration, and what to call it where a package brings it."""
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in FAMILIES:
        module, _, attribute = FAMILIES[model_type].path.partition(":")
        builder: Builder = getattr(importlib.import_module(module), attribute)
        return builder, None
    points = [point for point in _entry_points() if point.name == model_type]
    if not points:
        hint = nearest_hint(str(model_type), tuple(sorted(families())))
        raise UsageError(f"config.json: model_type {model_type!r} is not supported; {hint}")
    if len({point.value for point in points}) > 1:
        packages = " and ".join(sorted({_package(point) for point in points}))
        raise UsageError(
            f"config.json: model_type {model_type!r} is brought by {packages}; remove all but one"
        )
    return _load_plugin(points[0]), _named(points[0])


def _load_plugin(point: EntryPoint) -> Builder:
    try:
        builder = point.load()
    except Exception as error:  # whatever a package does while it is imported
        raise UsageError(
            f"{_named(point)} cannot be imported ({_one_line(error)}); {_BLAME}"
        ) from error
    if not callable(builder):
        raise UsageError(f"{_named(point)} is a {type(builder).__name__}, no callable; {_BLAME}")
    found: Builder = builder
    return found


def _entry_points() -> list[EntryPoint]:
    return list(entry_points(group=ENTRY_POINT_GROUP))


def _plugin_family(point: EntryPoint) -> Family:
    about = point.dist.metadata.json if point.dist else {}
    return Family(
        model_type=point.name,
        path=point.value,
        summary=str(about.get("summary", "")),
        stages=None,
        gate=None,
        injection=None,
        halting=None,
        package=_package(point),
    )


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unnamed package"


def _named(point: EntryPoint) -> str:
    return (
        f"config.json: model_type {point.name!r}: entry point `{point.name} = {point.value}` "
        f"of package {_package(point)}"
    )


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())

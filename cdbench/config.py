"""The run configuration: where it comes from and which source wins.

Precedence is flag > ``--set key=value`` > YAML file > default, decided in ``load_config`` and
nowhere else. Every complaint is one UsageError that names the key's full path. The keys themselves
stand in ``cdbench.keys``, the texts some of them hold in ``cdbench.grammar``, what is not available
yet in ``cdbench.later``; this module is the one to import from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from cdbench import resources
from cdbench.errors import UsageError
from cdbench.grammar import (
    ExitSpec,
    Mode,
    RuleInfo,
    check_exit,
    parse_exit,
    parse_kv,
    parse_mode,
    parse_modes,
)
from cdbench.keys import (
    RULE_KEYS,
    EngineConfig,
    ExitConfig,
    KeyInfo,
    KvConfig,
    RepeatsConfig,
    RunConfig,
    SamplingConfig,
    SloConfig,
    WorkloadConfig,
    describe_keys,
    expand_exit,
    known_keys,
    nearest_key,
    sections,
)

__all__ = [
    "EngineConfig",
    "ExitConfig",
    "ExitSpec",
    "KeyInfo",
    "KvConfig",
    "Mode",
    "RepeatsConfig",
    "RuleInfo",
    "RunConfig",
    "SamplingConfig",
    "SloConfig",
    "WorkloadConfig",
    "check_exit",
    "describe_keys",
    "json_schema",
    "known_keys",
    "load_config",
    "nearest_key",
    "parse_config",
    "parse_exit",
    "parse_kv",
    "parse_mode",
    "parse_modes",
    "parse_yaml",
    "read_tree",
    "sections",
    "set_layer",
    "to_yaml",
    "with_keys",
]

Tree = dict[str, Any]
"""A configuration as nested mappings, before validation."""


def load_config(
    path: str | Path | None = None,
    overrides: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
) -> RunConfig:
    """The configuration of a run: flags over ``--set`` over the file over the defaults.

    ``path`` is a YAML file, or the name of a shipped configuration. ``overrides`` are the texts of
    ``--set`` (``a.b=c``, the value read as YAML). ``flags`` maps dotted keys to values; None means
    that the flag was not given. A layer that names a rule drops the threshold, depth and trace file
    of the layers below. ``base`` takes the defaults' place where an earlier run is repeated. Raises
    UsageError, one line, for whatever is wrong.
    """
    tree: Tree = dict(base or {})
    if path is not None:
        tree = _overlay(tree, read_tree(path), str(path))
    tree = _overlay(tree, set_layer(overrides), "--set")
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    tree = _overlay(tree, _nest(given, "flags"), "flags")
    return parse_config(tree)


def parse_config(tree: Tree) -> RunConfig:
    """Validate nested mappings; UsageError names the first key that is wrong."""
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise UsageError(_first_complaint(error)) from None


def to_yaml(config: RunConfig) -> str:
    """The whole configuration as YAML that ``load_config`` reads back to an equal one."""
    return yaml.safe_dump(
        config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=100
    )


def json_schema() -> Tree:
    """The JSON Schema of a configuration file."""
    return RunConfig.model_json_schema()


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key given twice is an error instead of the last one winning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key_node.value!r} is given twice", key_node.start_mark
                )
            seen.add(str(key_node.value))
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, source: str) -> Any:
    """The plain values of a YAML text; UsageError names ``source`` and the line that is wrong."""
    try:
        return yaml.load(text, _StrictLoader)  # a SafeLoader: builds plain values only
    except (yaml.YAMLError, RecursionError) as error:
        problem = getattr(error, "problem", None) or "cannot be read"
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise UsageError(f"{source}: no valid YAML{where} ({problem}); correct it") from None


def read_tree(path: str | Path) -> Tree:
    """The mapping of a YAML file, or of a shipped configuration by name; UsageError otherwise.

    One without a key is refused too: whoever names a file does not ask for the defaults.
    """
    file = Path(path)
    if str(path) in resources.config_names() and not file.exists():
        file = resources.config_path(str(path))
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        known = resources.nearest_hint(str(path), resources.config_names())
        raise UsageError(f"{path}: no such configuration file; {known}") from None
    except (OSError, ValueError) as error:  # no UTF-8 text, or a name with a NUL character
        why = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
        raise UsageError(f"{path}: {why}; expected a YAML file") from None
    tree = parse_yaml(text, str(path))
    if not isinstance(tree, dict | None):
        raise UsageError(f"{path}: holds no mapping of keys; see `cdbench config schema`")
    if not tree or all(key in sections() and not value for key, value in tree.items()):
        raise UsageError(f"{path}: is empty; write the keys to change, or leave the file out")
    return tree


def set_layer(overrides: Sequence[str]) -> Tree:
    """The texts of ``--set`` (``a.b=c``, the value read as YAML) as nested mappings."""
    values: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {text!r}: no key=value; write --set exit.min_loops=2")
        values[key.strip()] = parse_yaml(value, f"--set {text!r}")
    return _nest(values, "--set")


def with_keys(tree: Tree, values: Mapping[str, Any], source: str) -> Tree:
    """``tree`` with dotted keys or whole sections laid over it; unknown keys are refused.

    A new exit rule drops the threshold, depth and trace file of the one below it.
    """
    return _overlay(tree, _nest(values, source), source)


def _nest(values: Mapping[str, Any], source: str) -> Tree:
    """Dotted keys → mappings by section. Keys that do not exist stay as they are, to be refused."""
    tree: Tree = {}
    for key, value in values.items():
        section, dot, name = key.partition(".")
        if section not in sections():
            tree[key] = value
        elif dot:
            tree.setdefault(section, {})[name] = value
        elif value is not None:
            tree.setdefault(section, {}).update(_section_mapping(section, value, source))
    return tree


def _overlay(base: Tree, layer: Tree, source: str) -> Tree:
    """``layer`` over ``base``, both by section; refuses unknown keys."""
    merged = dict(base)
    nested = sections()
    for raw_key, value in layer.items():
        key = str(raw_key)
        if key not in RunConfig.model_fields:
            raise _unknown(key, source)
        if key not in nested:
            merged[key] = value
        elif value is not None:  # a section with all its keys commented out
            merged[key] = _overlay_section(key, merged.get(key, {}), value, source)
    return merged


def _overlay_section(name: str, base: Tree, value: Any, source: str) -> Tree:
    layer = _section_mapping(name, value, source)
    for key in layer:
        if key not in sections()[name].model_fields:
            raise _unknown(f"{name}.{key}", source)
    if name == "exit":
        layer = expand_exit(layer)
        if "rule" in layer:
            base = {key: old for key, old in base.items() if key not in RULE_KEYS}
    return {**base, **layer}


def _section_mapping(name: str, value: Any, source: str) -> Tree:
    """The keys of a section; ``exit`` alone may also be written as the text of ``--exit``."""
    if name == "exit" and isinstance(value, str):
        return {"rule": value}
    if not isinstance(value, dict):
        raise UsageError(f"{source}: {name} holds keys of its own, not {value!r}; write {name}.KEY")
    return value


def _unknown(key: str, source: str) -> UsageError:
    near = nearest_key(key)
    hint = f"did you mean `{near}`?" if near else "see `cdbench config schema`"
    return UsageError(f"{source}: unknown key `{key}`; {hint}")


def _first_complaint(error: ValidationError) -> str:
    """One line from pydantic's list: the first key, with every alternative it would have taken."""
    by_key: dict[str, list[str]] = {}
    values: dict[str, Any] = {}
    for item in error.errors(include_url=False, include_context=False):
        key = _known_prefix(item["loc"])
        by_key.setdefault(key, []).append(_expected(item["msg"]))
        values.setdefault(key, item["input"])
    key, expected = next(iter(by_key.items()))
    alternatives = " or ".join(dict.fromkeys(expected))
    cure = "see `cdbench config schema`"
    if isinstance(values[key], dict) and key not in sections():  # as YAML reads `hf:`
        cure = "put a text with a colon in quotes"
    return f"{key}: {_short(values[key])} is refused, {alternatives}; {cure}"


def _known_prefix(loc: tuple[int | str, ...]) -> str:
    """The longest part of an error's path that is a key: the rest is pydantic's own."""
    parts = [str(part) for part in loc]
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in (*known_keys(), *sections()):
            return ".".join(parts[:length])
    return ".".join(parts) or "configuration"


def _expected(message: str) -> str:
    message = message.removeprefix("Value error, ").replace("a valid tuple", "a list")
    return re.sub(r"^(Input|String|Tuple) should", "it should", message)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""``run --from``: an earlier run's configuration, and what is no longer as it was then.

A repeat is the same configuration, not the same command line. The recorded configuration is taken
whole, so that a default that another version changed does not change the run. A key that was left
open then, for the model's card or another key to decide, is left open again, so that a flag given
beside ``--from`` means what it would have meant in the first place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdbench.bench.places import typed_path
from cdbench.config import RunConfig, Tree, known_keys, load_config, parse_config, with_keys
from cdbench.errors import UsageError
from cdbench.schema import RESULT_FILE, Manifest, RepeatedRun, Result, read_result

OWN = ("started_utc", "command", "load_average", "given", "repeated")
"""Parts of a manifest that belong to one run and say nothing of code or machine."""

HASH_CHARACTERS = 12


@dataclass(frozen=True)
class Again:
    """An earlier run as the start of another. ``tree`` is its configuration, without ``out``."""

    run: str
    tree: Tree
    before: Result

    def config(
        self, overrides: Sequence[str] = (), flags: Mapping[str, Any] | None = None
    ) -> RunConfig:
        """The configuration to run: the recorded one under ``--set`` and flags."""
        return load_config(None, overrides, flags, base=self.tree)

    def differences(self, now: Manifest) -> list[str]:
        """What code, packages, machine or model files are no longer as they were, one line each."""
        return manifest_differences(self.before.manifest, now)

    def mark(self, result: Result) -> Result:
        """``result`` with its manifest naming this run, what differs, and whether the work does."""
        repeated = RepeatedRun(
            run=self.run,
            started_utc=self.before.manifest.started_utc,
            overridden=_overridden(_resolved(self.tree), result.config),
            differences=self.differences(result.manifest),
            same_workload=_same_workload(self.before, result),
        )
        manifest = result.manifest.model_copy(update={"repeated": repeated})
        return result.model_copy(update={"manifest": manifest})


def config_from(run: str | Path) -> Again:
    """The run in a directory (or in its ``result.json``), ready to be repeated.

    Raises:
        UsageError: it cannot be read, or has a key that this version does not know.
    """
    path = typed_path(str(run), "--from")
    before = read_result(path)
    directory = path if path.is_dir() else path.parent
    source = f"--from {path / RESULT_FILE if path.is_dir() else path}"
    recorded = {key: value for key, value in before.config.items() if key != "out"}
    tree, given = with_keys({}, recorded, source), before.manifest.given
    try:
        if given is not None:
            tree = _reopened(tree, frozenset(key for key, _ in flat(given)))
        else:
            tree = _reopened(*_guessed(tree, before))
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None
    return Again(directory.resolve().name, tree, before)


def manifest_differences(before: Manifest, now: Manifest) -> list[str]:
    """What two manifests disagree in, one line each. What either does not know is left out."""
    then, today = manifest_facts(before), manifest_facts(now)
    lines = [
        f"{name}: {short(then[name])} then, {short(today[name])} now"
        for name in then
        if name in today and then[name] != today[name]
    ]
    for name in dict.fromkeys((*before.env, *now.env)):
        was, has = before.env.get(name, "not set"), now.env.get(name, "not set")
        if was != has:
            lines.append(f"{name}: {was} then, {has} now")
    return [*lines, *_model_differences(before, now)]


def repeated_lines(repeated: RepeatedRun) -> list[str]:
    """What a person should know of a repeated run, for the report."""
    lines = [f"repeats the run {repeated.run} of {repeated.started_utc}"]
    if repeated.overridden:
        lines.append(f"with other values of {', '.join(repeated.overridden)}")
    if repeated.same_workload is not None:
        lines.append("the same workload" if repeated.same_workload else "another workload")
    return [*lines, *repeated.differences]


def _guessed(tree: Tree, before: Result) -> tuple[Tree, frozenset[str]]:
    """The tree and keys to keep of a run that did not record which keys were set.

    What a model's card may have decided is taken from what ran.
    """
    if before.model is None:
        return tree, frozenset()
    kept = {"kv.layout": before.model.kv_layout}
    return with_keys(tree, kept, "--from"), frozenset(kept)


def _reopened(tree: Tree, given: frozenset[str]) -> Tree:
    """The tree without the keys that were not given and whose value it has without them too."""
    whole = _resolved(tree)
    for key in known_keys():
        if key in given or not _has(tree, key):
            continue
        shorter = _without(tree, key)
        try:
            if _resolved(shorter) == whole:
                tree = shorter
        except UsageError:  # the key holds up another one
            continue
    return tree


def _resolved(tree: Tree) -> Tree:
    return parse_config(tree).model_dump(mode="json")


def _has(tree: Tree, key: str) -> bool:
    section, _, name = key.rpartition(".")
    return name in (tree.get(section, {}) if section else tree)


def _without(tree: Tree, key: str) -> Tree:
    section, _, name = key.rpartition(".")
    if not section:
        return {kept: value for kept, value in tree.items() if kept != name}
    inner = {kept: value for kept, value in tree[section].items() if kept != name}
    return {**_without(tree, section), **({section: inner} if inner else {})}


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything that holds no keys of its own."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _overridden(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Keys of both configurations whose values differ."""
    then, today = dict(flat(before)), dict(flat(now))
    return [key for key in then if key != "out" and key in today and then[key] != today[key]]


def _same_workload(before: Result, now: Result) -> bool | None:
    if not before.workload.requests or not now.workload.requests:
        return None
    return before.workload.hash == now.workload.hash


def manifest_facts(manifest: Manifest) -> dict[str, Any]:
    """What a manifest knows of code and machine, by dotted name; unset parts are left out."""
    known = manifest.model_dump(mode="json", exclude_unset=True, exclude={*OWN, "env", "models"})
    return dict(flat(known))


def _model_differences(before: Manifest, now: Manifest) -> Iterator[str]:
    today = {model.name: model.files for model in now.models}
    for model in before.models:
        if model.name not in today:
            continue  # another model was asked for: an override, named as such
        files = today[model.name]
        for name in dict.fromkeys((*model.files, *files)):
            was, has = model.files.get(name), files.get(name)
            if was != has:
                yield f"{model.name}/{name}: {short(was)} then, {short(has)} now"


def short(value: Any) -> str:
    """A value in a line of text: hashes by their first characters."""
    if value is None:
        return "none"
    text = str(value)
    is_hash = len(text) >= 40 and all(c in "0123456789abcdef" for c in text)
    return text[:HASH_CHARACTERS] if is_hash else text

"""Promoting a run to a baseline: what it qualifies for, and what changes against the one before.

Counts and times are promoted apart. An exact baseline needs work and an order that repeat to the
digit, and nothing of the machine; a timed one needs a VALID run with enough blocks, and is of one
machine.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cdbench.bench.places import claim_directory, prove_writable
from cdbench.compare.baselines import (
    check_timed,
    exact_baseline,
    exact_figures,
    exact_path,
    inexact,
    read_exact,
    read_timed,
    timed_path,
    write_exact,
    write_timed,
)
from cdbench.compare.counted import COUNTED
from cdbench.compare.document import compare_sides
from cdbench.compare.gate import spoiled
from cdbench.compare.sides import Side
from cdbench.errors import CdbenchError, InvalidRunError, UsageError
from cdbench.schema.gating import ExactBaseline

Kind = Literal["exact", "timed"]
KINDS: tuple[Kind, ...] = ("exact", "timed")
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
"""What a gate file may call itself, since it names its baselines."""


@dataclass(frozen=True)
class Promotion:
    """What a run can be a baseline of. ``refused``: kind → why it is none of that."""

    name: str
    side: Side
    exact: ExactBaseline | None = None
    timed: bool = False
    refused: dict[Kind, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """What was written, by kind, and what changed against the baselines that were there."""

    files: dict[Kind, Path]
    changes: list[str]


def promotion(side: Side, name: str, kinds: Sequence[Kind], promoted_utc: str) -> Promotion:
    """What of ``kinds`` the run qualifies for.

    Raises:
        InvalidRunError: nothing, and the run is INVALID.
        UsageError: nothing, for another reason; or ``name`` is none that a gate can have.
    """
    if NAME.fullmatch(name) is None:
        raise UsageError(f"--name {name!r}: is no name; use letters, digits, `_`, `-` and `.`")
    checks = {"exact": _not_exact, "timed": _not_timed}
    refused = {kind: why for kind in kinds if (why := checks[kind](side)) is not None}
    if len(refused) == len(kinds):
        said = "; ".join(f"{kind}: {why}" for kind, why in refused.items())
        invalid = any("INVALID" in why for why in refused.values())
        error: type[CdbenchError] = InvalidRunError if invalid else UsageError
        raise error(f"{side.name}: no baseline: {said}")
    exact = "exact" in kinds and "exact" not in refused
    return Promotion(
        name=name,
        side=side,
        exact=exact_baseline(side, name, promoted_utc) if exact else None,
        timed="timed" in kinds and "timed" not in refused,
        refused=refused,
    )


def write_promotion(promoted: Promotion, directory: Path) -> Written:
    """Write the baselines, each whole, in place of those of the same name.

    Raises:
        UsageError: a place cannot be written, or holds something else; nothing is written then.
        OutputError: a file can no longer be written.
    """
    with claim_directory(directory, "--dir"):
        places = dict(_places(promoted, directory))
        for kind, path in places.items():
            _refuse_foreign(path, kind)
            prove_writable(path, "--dir")
        changes = list(_changes(promoted, directory, places))
        if promoted.exact is not None:
            write_exact(directory, promoted.exact)
        if promoted.timed:
            write_timed(directory, promoted.name, promoted.side.result)
        return Written(places, changes)


def kind_of(path: Path) -> Kind | None:
    """Which baseline a file is, by what it says of itself; None where it is none.

    A file that cannot be read is none.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    if document.get("kind") == "exact-baseline":
        return "exact"
    return "timed" if {"manifest", "validity", "modes", "blocks"} <= set(document) else None


def _not_exact(side: Side) -> str | None:
    """Why the run's counts are no baseline; None where they are."""
    why = spoiled(side, times=False) or next(inexact(side.result), None)
    if why is None and not any(exact_figures(side).values()):
        return "no count in it repeats, since no block of it is whole"
    return why


def _not_timed(side: Side) -> str | None:
    try:
        check_timed(side)
    except UsageError as error:
        return str(error).removeprefix(f"{side.name}: ")
    return None


def _places(promoted: Promotion, directory: Path) -> Iterator[tuple[Kind, Path]]:
    if promoted.exact is not None:
        yield "exact", exact_path(directory, promoted.name)
    if promoted.timed:
        yield "timed", timed_path(directory, promoted.name, promoted.side.result)


def _refuse_foreign(path: Path, kind: Kind) -> None:
    """Only a baseline of the same kind is written over."""
    if path.exists() and kind_of(path) != kind:
        raise UsageError(
            f"{path}: is there and no {kind} baseline; move it away, or name another --name or "
            "--dir"
        )


def _changes(promoted: Promotion, directory: Path, places: dict[Kind, Path]) -> Iterator[str]:
    if promoted.exact is not None:
        yield from _left_out(promoted.side)
    for kind, path in places.items():
        if not path.exists():
            continue
        try:
            yield from (
                _exact_changes(promoted, directory)
                if kind == "exact"
                else _timed_changes(promoted, directory)
            )
        except UsageError:
            yield f"{kind}: what was there could not be read, and is replaced"


def _left_out(side: Side) -> Iterator[str]:
    for label, metrics in side.block_values.items():
        for name, values in metrics.items():
            if name in COUNTED and len(set(values)) > 1:
                yield f"exact: {name} of {label} varied between blocks, and is left out"


def _exact_changes(promoted: Promotion, directory: Path) -> Iterator[str]:
    before, now = read_exact(directory, promoted.name), promoted.exact
    assert before is not None, "its file is there"
    assert now is not None, "it has a place"
    if before.workload != now.workload:
        yield f"exact: other work, {before.workload[:12]} before and {now.workload[:12]} now"
    moved = list(moved_counts(before, now))
    yield from (f"exact: {line}" for line in moved)
    if not moved:
        yield "exact: every count is what it was"


def moved_counts(before: ExactBaseline, now: ExactBaseline) -> Iterator[str]:
    """Every mode and count in which two exact baselines differ, a line each."""
    for label in dict.fromkeys((*before.modes, *now.modes)):
        if label not in now.modes or label not in before.modes:
            yield f"mode {label} is {'new' if label in now.modes else 'gone'}"
            continue
        theirs, ours = before.modes[label].exact, now.modes[label].exact
        for name in dict.fromkeys((*theirs, *ours)):
            if theirs.get(name) != ours.get(name):
                was, has = _count(theirs.get(name)), _count(ours.get(name))
                yield f"{name} of {label}: {was} before, {has} now"


def _count(value: float | None) -> str:
    return "none" if value is None else f"{value:,.16g}"


def _timed_changes(promoted: Promotion, directory: Path) -> Iterator[str]:
    before = read_timed(directory, promoted.name, promoted.side)
    assert before is not None, "its file is there"
    yield f"timed: replaces the run of {before.result.manifest.started_utc}"
    with contextlib.suppress(UsageError):  # no mode in common: there is nothing to compare
        document = compare_sides(before, promoted.side)
        yield from (f"timed: {sentence}" for sentence in document.sentences)

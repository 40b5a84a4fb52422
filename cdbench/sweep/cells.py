"""From a sweep file to its cells: each a whole, checked run configuration with a stable name."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cdbench.config import RunConfig, Tree, parse_config, with_keys
from cdbench.errors import UsageError
from cdbench.sweep.file import Changes, SweepFile, Verb

HASH_CHARACTERS = 12


@dataclass(frozen=True)
class Cell:
    """One point of the sweep: ``changes`` against the base, and the configuration they make.

    ``number`` counts from 1 in the order of the file; ``hash`` names its directory.
    """

    number: int
    changes: Changes
    config: RunConfig
    hash: str

    @property
    def words(self) -> str:
        """``exit.threshold=0.4 engine.width=16``; ``the base`` where nothing changes."""
        return _words(self.changes)


@dataclass(frozen=True)
class Sweep:
    """A sweep whose every cell has been checked. ``varied`` are the keys that differ."""

    name: str
    verb: Verb
    seed: int
    rounds: int
    base: Tree
    cells: tuple[Cell, ...]
    varied: tuple[str, ...]
    show: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def order(self, round_number: int) -> tuple[Cell, ...]:
        """The cells in the order of one round (from 1): the same whenever it is asked for."""
        cells = list(self.cells)
        random.Random(f"{self.seed}/{round_number}").shuffle(cells)
        return tuple(cells)


Check = Callable[[RunConfig], None]
"""Raises UsageError for what a configuration by itself does not show."""


def expand(
    file: SweepFile, source: str, overrides: Changes | None = None, check: Check | None = None
) -> Sweep:
    """Every cell of a sweep, checked; ``overrides`` are laid over the base of all of them.

    Raises UsageError, one line that names every cell that is refused and why.
    """
    assert isinstance(file.base, dict), "read_sweep has read it"
    base = with_keys({}, file.base, f"{source}: base")
    base = with_keys(base, overrides or {}, "--set")
    cells: dict[str, Cell] = {}
    merged, refused = [], []
    for number, changes in enumerate(_all_changes(file, base, source), start=1):
        try:
            config = parse_config(with_keys(base, changes, source))
            _check_repeats(config)
            if check is not None:
                check(config)
        except UsageError as error:
            refused.append(f"cell {number} ({_words(changes)}): {error}")
            continue
        cell = Cell(number, changes, config, cell_hash(config, file.verb))
        first = cells.setdefault(cell.hash, cell)
        if first is not cell:
            merged.append(f"cell {number} ({cell.words}) is cell {first.number}: it runs once")
    if refused:
        total = number
        raise UsageError(
            f"{source}: {len(refused)} of {total} cells refused: {' | '.join(refused)}"
        )
    if not cells:
        raise UsageError(f"{source}: no cell is left; drop a pattern of exclude")
    return Sweep(
        name=file.name,
        verb=file.verb,
        seed=file.seed,
        rounds=file.rounds,
        base=base,
        cells=tuple(cells.values()),
        varied=file.varied,
        show=file.show,
        notes=tuple(merged),
    )


def _check_repeats(config: RunConfig) -> None:
    """A sweep's intervals are of 95 % over the blocks of all rounds, and so of fixed blocks."""
    if config.repeats.interval is not None:
        raise UsageError(
            "repeats.interval: cells are compared over a fixed number of blocks; drop it, or add "
            "--set repeats.interval=null"
        )


def cell_hash(config: RunConfig, verb: Verb) -> str:
    """A name that depends on the resolved configuration and the verb, and not on ``out``.

    Twelve hexadecimal digits of the sha256 of the configuration as JSON with sorted keys.
    """
    tree = config.model_dump(mode="json", exclude={"out"})
    text = json.dumps({"config": tree, "verb": verb}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_CHARACTERS]


def _all_changes(file: SweepFile, base: Tree, source: str) -> list[Changes]:
    factors = [[{key: value} for value in values] for key, values in file.grid.items()]
    factors += [list(group) for group in file.link]
    product = [
        {key: value for part in parts for key, value in part.items()}
        for parts in itertools.product(*factors)
    ]
    if not factors and file.include:
        product = []  # only single cells were asked for
    for pattern in file.exclude:
        left = [changes for changes in product if not _matches(pattern, changes, base)]
        if len(left) == len(product):
            raise UsageError(
                f"{source}: exclude {_words(pattern)}: matches no cell; correct or drop it"
            )
        product = left
    return [*product, *file.include]


def _matches(pattern: Changes, changes: Changes, base: Tree) -> bool:
    return all(
        _value(key, changes, base) in (wanted if isinstance(wanted, list) else [wanted])
        for key, wanted in pattern.items()
    )


def _value(key: str, changes: Changes, base: Tree) -> Any:
    """What a cell has under a key as written; the base's where the cell leaves it alone."""
    if key in changes:
        return changes[key]
    section, dot, name = key.partition(".")
    return base.get(section, {}).get(name) if dot else base.get(key)


def _words(changes: Changes) -> str:
    return " ".join(f"{key}={plain(value)}" for key, value in changes.items()) or "the base"


def plain(value: Any) -> str:
    """A changed value as it is written on a command line."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return json.dumps(value, sort_keys=True, default=str)

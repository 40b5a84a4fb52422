"""From a sweep file to its cells: each a whole, checked run configuration with a stable name."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cdbench.config import RunConfig, Tree, parse_config, with_keys
from cdbench.errors import UsageError
from cdbench.sweep.changes import all_changes, check_size, words
from cdbench.sweep.file import Changes, SweepFile, Verb
from cdbench.sweep.refusals import Refusal, refuse

HASH_CHARACTERS = 12
TWINS = 5
"""Cells like another one that are named."""


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
        return words(self.changes)


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


Check = Callable[[Sequence[Cell]], Mapping[int, str]]
"""What configurations by themselves do not show: number of a cell that would be refused → why."""


def expand(
    file: SweepFile, source: str, overrides: Changes | None = None, check: Check | None = None
) -> Sweep:
    """Every cell of a sweep, checked; ``overrides`` are laid over the base of all of them.

    Raises UsageError, one line that names every cell that is refused and why.
    """
    assert isinstance(file.base, dict), "read_sweep has read it"
    check_size(file, source)
    base = with_keys({}, file.base, f"{source}: base")
    base = with_keys(base, overrides or {}, "--set")
    if base.get("out") is not None:
        raise UsageError(
            f"{source}: base: out: every cell has a directory of its own; drop it (or add --set "
            "out=null) and give the sweep's with --out"
        )
    cells: dict[str, Cell] = {}
    merged, refused = [], []
    everything = all_changes(file, base, source)
    for number, changes in enumerate(everything, start=1):
        try:
            config = parse_config(with_keys(base, changes, source))
            _check_repeats(config)
        except UsageError as error:
            refused.append(Refusal(number, words(changes), str(error)))
            continue
        cell = Cell(number, changes, config, cell_hash(config, file.verb))
        first = cells.setdefault(cell.hash, cell)
        if first is not cell:
            merged.append(f"cell {number} ({cell.words}) is cell {first.number}: it runs once")
    refused += refusals(tuple(cells.values()), check)
    refuse(refused, len(everything), source)
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
        notes=tuple(_twins(merged)),
    )


def _twins(merged: Sequence[str]) -> Sequence[str]:
    """Of many cells that are others' twins the first few are named."""
    left = len(merged) - TWINS
    if left <= 0:
        return merged
    return [*merged[:TWINS], f"{left} more cells are like an earlier one: each runs once"]


def refusals(cells: Sequence[Cell], check: Check | None) -> list[Refusal]:
    """What a check refuses of these cells."""
    found = {} if check is None else check(cells)
    return [Refusal(c.number, c.words, found[c.number]) for c in cells if c.number in found]


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

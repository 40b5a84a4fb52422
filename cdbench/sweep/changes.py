"""What each cell changes: the product of the factors, less ``exclude``, and ``include`` beside it.

The cells are counted before they are made: a product of long lists has more than memory holds.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

from cdbench.config import Tree, with_keys
from cdbench.errors import UsageError
from cdbench.sweep.file import Changes, SweepFile

MOST_RUNS = 10_000
"""Cells times rounds. At ten seconds a run, more than a day of them."""


def check_size(file: SweepFile, source: str) -> None:
    """Raise UsageError where a sweep has more runs than anyone waits for, before it has any."""
    factors = _factors(file)
    product = math.prod(map(len, factors)) if _has_product(file) else 0
    cells = product + len(file.include)
    if cells * file.rounds <= MOST_RUNS:
        return
    lengths = " x ".join(str(len(factor)) for factor in factors)
    rounds = f" in {file.rounds:,} rounds" if file.rounds > 1 else ""
    made = f" ({lengths} values)" if len(factors) > 1 else ""
    raise UsageError(
        f"{source}: {cells:,} cells{made}{rounds} are {cells * file.rounds:,} runs, above the "
        f"{MOST_RUNS:,} of one sweep; shorten the lists, or split the file (exclude is applied "
        "after they are counted)"
    )


def all_changes(file: SweepFile, base: Tree, source: str) -> list[Changes]:
    """What every cell changes, in the order of the file. UsageError for a pattern that is wrong."""
    product: list[Changes] = []
    if _has_product(file):
        product = [
            {key: value for part in parts for key, value in part.items()}
            for parts in itertools.product(*_factors(file))
        ]
    dropped: set[int] = set()
    for pattern in file.exclude:
        _check_pattern(pattern, source)
        matched = {n for n, changes in enumerate(product) if _matches(pattern, changes, base)}
        if not matched:
            raise UsageError(
                f"{source}: exclude {words(pattern)}: matches no cell; correct or drop it"
            )
        dropped |= matched
    return [*(c for n, c in enumerate(product) if n not in dropped), *file.include]


def words(changes: Changes) -> str:
    """``exit.threshold=0.4 engine.width=16``; ``the base`` where nothing changes."""
    return " ".join(f"{key}={plain(value)}" for key, value in changes.items()) or "the base"


def plain(value: Any) -> str:
    """A changed value as it is written on a command line."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return json.dumps(value, sort_keys=True, default=str)


def _factors(file: SweepFile) -> list[Sequence[Changes]]:
    grid = [[{key: value} for value in values] for key, values in file.grid.items()]
    return [*grid, *file.link]


def _has_product(file: SweepFile) -> bool:
    """Whether there are cells beside ``include``: without a factor, the base alone is one."""
    return bool(file.grid or file.link or not file.include)


def _check_pattern(pattern: Changes, source: str) -> None:
    """A misspelt key would match nothing, or with null every cell."""
    if not pattern:
        raise UsageError(f"{source}: exclude: an empty pattern matches every cell; drop it")
    with_keys({}, dict.fromkeys(pattern), f"{source}: exclude")


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

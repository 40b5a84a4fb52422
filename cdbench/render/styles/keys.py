"""Configuration keys in which points differ: what an ablation varies, what no fact says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdbench.bench.again import flat
from cdbench.compare.effective import effective_config
from cdbench.render.styles.points import Point
from cdbench.render.sweep_report import short_names
from cdbench.render.table import Cell, Column, text
from cdbench.sweep.changes import plain

_WITHOUT_EFFECT = ("out", "modes", "dense", "work", "stages")
"""Where a run writes, and which rows it has: nothing that changes a row's figures."""


def differing_keys(points: Sequence[Point]) -> tuple[str, ...]:
    """The dotted keys whose values are not the same in all points, in the order of the file.

    A key that nobody set follows from another one, and says nothing beside it.
    """
    trees = [_tree(point) for point in points]
    given = _given(points)
    keys = dict.fromkeys(key for tree in trees for key in tree)
    return tuple(
        key
        for key in keys
        if not speaks_of(_WITHOUT_EFFECT, key)
        and (given is None or key in given)
        and len({plain(tree.get(key)) for tree in trees}) > 1
    )


def _given(points: Sequence[Point]) -> set[str] | None:
    """The keys that someone set in any of the points; None where one does not tell."""
    known = [point.given for point in points if point.given is not None]
    return set().union(*known) if len(known) == len(points) else None


def _tree(point: Point) -> dict[str, Any]:
    """Its configuration by dotted keys; exit keys that nobody set as they ran."""
    return dict(flat(effective_config(point.config, point.first)))


def speaks_of(keys: Sequence[str], key: str) -> bool:
    """Whether a key is one of these, or lies in a section that is."""
    return any(key == each or key.startswith(f"{each}.") for each in keys)


def key_columns(keys: Sequence[str]) -> list[Column]:
    """A column for each key, by its last part where no other ends the same."""
    titles = short_names(keys)
    return [Column(titles[key], name=key) for key in keys]


def key_cell(point: Point, key: str) -> Cell:
    """A point's value as it is written on a command line; a dash where the key is not set."""
    value = _tree(point).get(key)
    return text("-" if value is None else plain(value))

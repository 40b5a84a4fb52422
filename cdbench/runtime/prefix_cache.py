"""Cached prompt prefixes: a radix tree over token ids whose edges own KV rows.

A cached position keeps the rows of all R loops in the core, and one in the prelude and the coda, so
that a prompt which continues it computes what it would have computed alone, in every layout. Only
prompt tokens are cached, never generated ones. A request pins the path it reads; what is not pinned
is given up, least recently used leaves first, when rows are wanted elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from cdbench.runtime.core import IntArray, Stage
from cdbench.runtime.stage_cache import TableArray

StageLines = dict[Stage, TableArray]
"""For each stage with layers, rows ``[lines, positions]``: R lines in the core, else one."""


@dataclass(eq=False)
class Prefix:
    """One edge of the tree and the node below it."""

    tokens: IntArray
    lines: StageLines
    parent: Prefix | None = None
    children: dict[int, Prefix] = field(default_factory=dict)
    pins: int = 0
    last_use: int = 0

    def path(self) -> list[Prefix]:
        """The edges from the root to here; the root itself holds nothing."""
        edges: list[Prefix] = []
        node: Prefix | None = self
        while node is not None and node.parent is not None:
            edges.append(node)
            node = node.parent
        return edges[::-1]

    @property
    def length(self) -> int:
        """Positions from the root to here."""
        return sum(edge.tokens.size for edge in self.path())


class PrefixCache:
    """The tree. It knows rows by number; taking and freeing them is the KV cache's business."""

    def __init__(self) -> None:
        self.root = Prefix(np.empty(0, np.int64), {})
        self._ticks = itertools.count(1)
        self.positions = 0
        """Positions cached now."""

    def match(self, ids: IntArray, limit: int) -> Prefix:
        """The longest cached prefix of ``ids`` of at most ``limit`` tokens (the root: none)."""
        node, at = self.root, 0
        while at < limit:
            child = node.children.get(int(ids[at]))
            if child is None:
                break
            same = _common(child.tokens, ids[at:limit])
            if same < child.tokens.size:
                child = self._split(child, same)
            node, at = child, at + same
            node.last_use = next(self._ticks)
        return node

    def lines(self, node: Prefix) -> StageLines:
        """The rows of the whole prefix, stage by stage."""
        edges = node.path()
        return {
            stage: np.concatenate([edge.lines[stage] for edge in edges], axis=1)
            for stage in edges[0].lines
        }

    def insert(self, ids: IntArray, lines: StageLines) -> tuple[Prefix, int]:
        """Cache a prompt, whose rows are ``lines``; the end of its path, and how much was there.

        From that position on the tree owns the rows given; before it, it has its own.
        """
        node = self.match(ids, ids.size)
        known = node.length
        if known < ids.size:
            rest = {stage: rows[:, known : ids.size].copy() for stage, rows in lines.items()}
            child = Prefix(ids[known:].copy(), rest, node, last_use=next(self._ticks))
            node.children[int(ids[known])] = child
            self.positions += child.tokens.size
            node = child
        return node, known

    def evictable(self) -> Prefix | None:
        """The least recently used leaf that nobody reads."""
        free = [n for n in self._nodes() if not n.children and not n.pins and n.parent]
        return min(free, key=lambda n: n.last_use, default=None)

    def remove(self, leaf: Prefix) -> StageLines:
        """Take a leaf out of the tree; its rows are the caller's to free."""
        assert leaf.parent is not None
        assert not leaf.children
        assert not leaf.pins
        del leaf.parent.children[int(leaf.tokens[0])]
        self.positions -= leaf.tokens.size
        return leaf.lines

    def _split(self, child: Prefix, length: int) -> Prefix:
        """Cut an edge in two; readers of the whole edge go on holding its lower half."""
        parent = child.parent
        assert parent is not None
        upper = Prefix(
            child.tokens[:length],
            {stage: rows[:, :length] for stage, rows in child.lines.items()},
            parent,
            last_use=child.last_use,
        )
        parent.children[int(child.tokens[0])] = upper
        child.tokens = child.tokens[length:]
        child.lines = {stage: rows[:, length:] for stage, rows in child.lines.items()}
        child.parent = upper
        upper.children[int(child.tokens[0])] = child
        return upper

    def _nodes(self) -> Iterator[Prefix]:
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())


def _common(a: IntArray, b: IntArray) -> int:
    """How many leading entries two arrays share."""
    length = min(a.size, b.size)
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if differs.size else length

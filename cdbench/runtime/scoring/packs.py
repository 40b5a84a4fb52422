"""Which continuations run together: packs of bounded size, contexts side by side.

Everything in a pack is padded to its longest member, so continuations of like length go together,
and those over one context stay together, because it is prefilled once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cdbench.runtime.scoring.continuation import Continuation
from cdbench.runtime.scoring.setting import Setting

MOST_LINES = 256
"""Continuations of one pack, at most."""
CONTEXT_PREFILLS = 8
"""Positions that the lines of one pack may read, padded, in chunks of prefill tokens."""

ContextKey = Hashable


@dataclass(frozen=True)
class PackLimits:
    """What a pack may come to. A single continuation may exceed all but ``held``.

    ``queries`` are the tokens that run, ``reads`` the positions that lines attend to, both padded
    to the pack's longest; ``held`` the positions that lie in the KV cache (None: no budget).
    """

    queries: int
    reads: int
    held: int | None
    lines: int = MOST_LINES

    @staticmethod
    def of(setting: Setting) -> PackLimits:
        tokens = setting.config.prefill_tokens
        return PackLimits(tokens, CONTEXT_PREFILLS * tokens, setting.most_positions)


@dataclass(frozen=True)
class Pack:
    """Continuations that run together, those of one context side by side."""

    items: tuple[Continuation, ...]
    keys: tuple[ContextKey, ...]
    """For each of them, which context it stands on."""

    @property
    def fed(self) -> int:
        """Tokens that run."""
        return sum(item.fed for item in self.items)

    @property
    def context_positions(self) -> int:
        """Positions of the distinct contexts."""
        lengths = {key: len(item.context) for key, item in zip(self.keys, self.items, strict=True)}
        return sum(lengths.values())

    @property
    def held(self) -> int:
        """Positions that lie in the KV cache when the pack has run."""
        return self.context_positions + self.fed


def context_key(continuation: Continuation, setting: Setting) -> ContextKey:
    """Equal where a prefill and its readout serve both continuations."""
    key: list[Hashable] = [np.asarray(continuation.context, np.int64).tobytes()]
    if setting.selects_first:
        key.append(continuation.exit)
    if setting.random_state:
        key.append(continuation.id)
    return tuple(key)


def by_context(
    continuations: Sequence[Continuation], setting: Setting
) -> dict[ContextKey, list[Continuation]]:
    """Continuations by the context they stand on, in order of first appearance."""
    groups: dict[ContextKey, list[Continuation]] = {}
    for continuation in continuations:
        groups.setdefault(context_key(continuation, setting), []).append(continuation)
    return groups


def cut_packs(
    continuations: Sequence[Continuation], setting: Setting, limits: PackLimits
) -> list[Pack]:
    """Packs within the limits. A context whose continuations are many may go through several."""
    groups = by_context(continuations, setting)

    def size(key: ContextKey) -> tuple[int, int]:
        group = groups[key]
        return max(item.fed for item in group).bit_length(), len(group[0].context)

    # Queries are padded too: continuations of one token and of a thousand do not go together.
    ordered = [
        (k, item)
        for k in sorted(groups, key=size)
        for item in sorted(groups[k], key=lambda c: c.fed)
    ]
    return list(_cut(ordered, limits))


def _cut(ordered: list[tuple[ContextKey, Continuation]], limits: PackLimits) -> Iterator[Pack]:
    begin = 0
    queries = reads = held = 0
    for i, (key, item) in enumerate(ordered):
        own = item.fed + (0 if i > begin and ordered[i - 1][0] == key else len(item.context))
        queries, reads = max(queries, item.fed, 1), max(reads, item.positions)
        lines = i - begin + 1
        fits = (
            lines <= limits.lines
            and lines * queries <= limits.queries
            and lines * reads <= limits.reads
            and (limits.held is None or held + own <= limits.held)
        )
        if not fits and i > begin:
            yield _pack(ordered[begin:i])
            begin, queries, reads, held = i, max(item.fed, 1), item.positions, 0
            own = item.positions
        held += own
    if ordered:
        yield _pack(ordered[begin:])


def _pack(part: list[tuple[ContextKey, Continuation]]) -> Pack:
    keys, items = zip(*part, strict=True)
    return Pack(items, keys)

"""What the configuration's keys cannot say yet: one table, from which later work deletes lines.

A key is there from the start, so that a file written for a later version is understood; a value
that this version would ignore is refused: a refused combination beats a wrong number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cdbench.errors import UsageError


@dataclass(frozen=True)
class Later:
    """A key with values that are not available yet.

    Where ``values`` are given only those are refused, otherwise everything but ``neutral``, the
    key's default.
    """

    key: str
    neutral: Any
    values: tuple[str, ...] = ()

    def refuses(self, value: Any) -> bool:
        """Whether this value has to wait for a later version."""
        return value in self.values if self.values else bool(value != self.neutral)


LATER: tuple[Later, ...] = (Later("engine.attention", "auto", values=("varlen", "flashinfer")),)


def refuse_later(key: str, value: Any) -> None:
    """Raise UsageError where the table says that this value of a key is not available yet."""
    for later in LATER:
        if later.key == key and later.refuses(value):
            instead = "drop it" if later.neutral is None else f"use {later.neutral}"
            raise UsageError(f"{key}: {value!r} is not available in this version; {instead}")

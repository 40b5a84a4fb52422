"""What the columns of a dataset hold, as far as its first rows tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdbench.errors import UsageError
from cdbench.workloads.dataset import Row, Rows

PROBED_ROWS = 50
"""Rows looked through for a column's first value: the first ones may be empty."""


def first_values(rows: Rows) -> Row:
    """Column → its first value that is not empty, over the first rows; where all are, one of them.

    A null gives way to any value, so that a column of empty texts still is one of text.
    """
    seen: Row = dict.fromkeys(rows.columns)
    for index in range(min(PROBED_ROWS, len(rows))):
        row = rows[index]
        for column, value in seen.items():
            if not _holds(value) and row[column] is not None:
                seen[column] = row[column]
        if all(map(_holds, seen.values())):
            break
    return seen


def _holds(value: Any) -> bool:
    """Whether a value holds something. A mapping of empty lists is a conversation without turns."""
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, dict):
        return any(map(_holds, value.values()))
    return bool(value) if isinstance(value, list) else value is not None


def refuse_empty(rows: Rows, seen: Row, named: Mapping[str, str | None]) -> None:
    """Raise UsageError where a column that was named, or every column, holds nothing.

    ``seen`` are the rows' ``first_values``; ``named`` is the column that each key names, if any.
    """
    for key, column in named.items():
        if column is not None and not _holds(seen[column]) and _is_empty(rows, column):
            raise UsageError(
                f"workload.{key}: {column!r} is empty in every row of {rows.where}; name another "
                f"(it has {', '.join(rows.columns)})"
            )
    if not any(map(_holds, seen.values())) and all(_is_empty(rows, c) for c in rows.columns):
        raise UsageError(
            f"workload.source: every row of {rows.where} is empty in every column "
            f"({', '.join(rows.columns)}); name another source"
        )


def _is_empty(rows: Rows, column: str) -> bool:
    return not any(_holds(rows[index][column]) for index in range(len(rows)))

"""Tables as one JSON document: raw numbers at full precision, everything else that is said as text.

Beside each cell's ``value``, ``low``, ``high`` and ``n`` (null where absent or undefined) stand
``unit`` and ``kind``, its footnote, its marks, and the ``text`` that the printed tables show.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cdbench.render.raw_values import column_names, finite, raw_kind, raw_unit, raw_value
from cdbench.render.table import Cell, Column, Table
from cdbench.schema.base import SCHEMA_VERSION


def document(tables: Sequence[Table], style: str | None = None) -> dict[str, Any]:
    """The tables as plain data. ``style``: what made them, where it is known."""
    return {
        "kind": "tables",
        "schema_version": SCHEMA_VERSION,
        "style": style,
        "tables": [_table(table) for table in tables],
    }


def to_json(tables: Sequence[Table], style: str | None = None) -> str:
    """The document as text, ended by a newline."""
    content = json.dumps(document(tables, style), indent=1, ensure_ascii=False, allow_nan=False)
    return content.encode("utf-8", "replace").decode("utf-8") + "\n"


def _table(table: Table) -> dict[str, Any]:
    names = column_names(table.columns)
    return {
        "title": table.title,
        "caption": list(table.caption),
        "columns": [_column(c, name) for c, name in zip(table.columns, names, strict=True)],
        "rows": [
            {
                "group": row.group,
                "cells": {
                    name: _cell(column, cell)
                    for name, column, cell in zip(names, table.columns, row.cells, strict=True)
                },
            }
            for row in table.rows
        ],
        "notes": list(table.notes),
    }


def _column(column: Column, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "title": column.title,
        "group": column.group,
        "direction": None if column.direction == "none" else column.direction,
        "note": column.note,
    }


def _cell(column: Column, cell: Cell) -> dict[str, Any]:
    return {
        "value": raw_value(cell),
        "low": finite(cell.low),
        "high": finite(cell.high),
        "n": cell.n,
        "unit": raw_unit(column, cell) or None,
        "kind": raw_kind(cell),
        "text": cell.formatted().line,
        "note": cell.note,
        "best": cell.best,
        "invalid": cell.invalid,
    }

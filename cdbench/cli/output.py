"""What commands print: exactly one JSON document, or rows that fit a terminal or a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from cdbench.render.formats import for_encoding


def print_json(document: Any) -> None:
    """One JSON document on stdout. NaN and infinity are errors: they are no JSON."""
    plain = (sys.stdout.encoding or "ascii").lower().replace("-", "") != "utf8"
    json.dump(document, sys.stdout, indent=1, ensure_ascii=plain, allow_nan=False)
    sys.stdout.write("\n")


def print_rows(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: wrapped to a terminal's width; in a pipe, one line per row whatever its length."""
    if sys.stdout.isatty():
        _print_wrapped(headers, rows)
    else:
        _print_lines([headers, *rows])


def _print_lines(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        print(for_encoding("  ".join(cells).rstrip(), sys.stdout.encoding))


def _print_wrapped(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from cdbench.render.table import Column, Row, Table, text
    from cdbench.render.terminal import make_console, print_table

    columns = tuple(Column(header, align="left") for header in headers)
    table = Table(columns, tuple(Row(tuple(text(cell) for cell in row)) for row in rows))
    print_table(table, make_console())

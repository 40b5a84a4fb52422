"""A stored run, for a comparison, table or report: believed only where it agrees with itself.

A ``result.json`` is a summary. Where its raw records lie beside it everything is made again from
them; where they do not (a copied file, a baseline) it must still agree with itself, as far as
``consistent`` can tell. What was edited by hand is refused, not shown.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cdbench.bench.places import typed_path
from cdbench.bench.rederive import check
from cdbench.compare.consistent import block_values, contradictions
from cdbench.errors import UsageError
from cdbench.schema import (
    REPEATS_FILE,
    RESULT_FILE,
    Result,
    SampleRecord,
    read_result,
    read_samples,
)

MOST_BYTES = 256 * 1024 * 1024
"""A ``result.json`` has some hundred kilobytes; what is larger than this is something else."""

__all__ = ["MOST_BYTES", "Side", "block_values", "contradictions", "read_side", "refuse_size"]


@dataclass(frozen=True)
class Side:
    """One run of a comparison. ``name`` is what it was called by; ``directory`` has its files.

    ``rechecked``: its summaries were made again from raw records and agreed.
    """

    name: str
    directory: Path
    result: Result
    rechecked: bool

    @cached_property
    def block_values(self) -> dict[str, dict[str, list[float]]]:
        """Mode → metric → one mean a whole block; metrics undefined in some run are left out."""
        return block_values(self.result.blocks)

    @cached_property
    def samples(self) -> dict[str, dict[tuple[str, int], SampleRecord]]:
        """Mode → (task, document) → sample; empty where no sample files lie beside the result.

        Raises:
            UsageError: a file is unreadable, or not a file of samples.
        """
        found: dict[str, dict[tuple[str, int], SampleRecord]] = defaultdict(dict)
        for name in self.result.samples.values():
            path = self.directory / name
            if path.is_file():
                for sample in read_samples(path):
                    found[sample.mode][sample.key] = sample
        return dict(found)


def read_side(typed: str, flag: str = "RUN", *, recheck: bool = True) -> Side:
    """A run by its directory or its ``result.json``.

    Raises:
        UsageError: it is missing, unreadable, too large, of another kind or version, or was edited.
    """
    path = typed_path(typed, flag)
    file = path / RESULT_FILE if path.is_dir() else path
    if file.is_dir():
        raise UsageError(f"{flag} {file}: is a directory; name a run directory or its file")
    refuse_size(file, flag)
    result = read_result(file)
    raw = recheck and (file.parent / REPEATS_FILE).is_file() and file.name == RESULT_FILE
    found = check(file.parent) if raw else list(contradictions(result))
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise UsageError(
            f"{flag} {typed}: {found[0]}{more}; it was edited, damaged or written by another "
            "version: see `cdbench recheck`, or rerun it"
        )
    return Side(typed, file.parent, result, rechecked=raw)


def refuse_size(file: Path, flag: str) -> None:
    """Raise UsageError where a file is too large to be a result or a sweep."""
    try:
        size = os.path.getsize(file)
    except OSError:
        return  # the reader says what is wrong
    if size > MOST_BYTES:
        raise UsageError(
            f"{flag} {file}: has {size:,} bytes, more than any result; name a run directory"
        )

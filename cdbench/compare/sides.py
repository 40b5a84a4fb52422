"""A stored run as one side of a comparison: read, and believed only where it agrees with itself.

A ``result.json`` is a summary. Where its raw records lie beside it everything is made again from
them; where they do not (a copied file, a baseline) its own blocks must still give its speed-ups and
means. What was edited by hand is refused, not compared.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cdbench.bench.places import typed_path
from cdbench.bench.rederive import check, differences
from cdbench.errors import UsageError
from cdbench.schema import (
    REPEATS_FILE,
    RESULT_FILE,
    BlockRecord,
    Comparison,
    Result,
    SampleRecord,
    read_result,
    read_samples,
)
from cdbench.stats.blocks import RUNS_PER_BLOCK, BlockRun, log_ratios

MOST_BYTES = 256 * 1024 * 1024
"""A ``result.json`` has some hundred kilobytes; what is larger than this is something else."""


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
    _refuse_size(file, flag)
    result = read_result(file)
    raw = recheck and (file.parent / REPEATS_FILE).is_file() and file.name == RESULT_FILE
    found = check(file.parent) if raw else list(contradictions(result))
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise UsageError(
            f"{flag} {typed}: {found[0]}{more}; it was edited or damaged: see `cdbench recheck`, "
            "or rerun it"
        )
    return Side(typed, file.parent, result, rechecked=raw)


def contradictions(result: Result) -> Iterator[str]:
    """Where a result's blocks do not give the speed-ups and means that stand beside them."""
    for found in result.comparisons:
        if found.log_ratios != (logs := _logs(result, found)):
            yield from differences(
                found.log_ratios, logs, f"log_ratios of {found.mode} over {found.over}"
            )
        logs_mean = sum(found.log_ratios) / len(found.log_ratios) if found.log_ratios else None
        if logs_mean is not None and found.speedup.estimate is not None:
            name = f"speed-up of {found.mode} over {found.over}"
            yield from differences(found.speedup.estimate, math.exp(logs_mean), name)
    for label, metrics in block_values(result.blocks).items():
        said = result.modes[label].metrics if label in result.modes else {}
        for name, values in metrics.items():
            if said.get(name) is not None:
                mean = sum(values) / len(values)
                yield from differences(said[name], mean, f"modes.{label}.metrics.{name}")


def _logs(result: Result, found: Comparison) -> list[float]:
    """The log ratios of a comparison, from the walls of the blocks."""
    walls = (
        (run, run.wall_s if found.scope == "e2e" else run.decode_wall_s) for run in result.blocks
    )
    runs = [BlockRun(run.index, run.mode, wall) for run, wall in walls if wall is not None]
    return log_ratios(runs, found.mode, found.over)


def block_values(blocks: list[BlockRecord]) -> dict[str, dict[str, list[float]]]:
    """Mode → metric → one mean for each whole block (every mode twice)."""
    places = RUNS_PER_BLOCK * len({run.mode for run in blocks})
    by_block: dict[int, list[BlockRecord]] = defaultdict(list)
    for run in blocks:
        by_block[run.index].append(run)
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    undefined: set[tuple[str, str]] = set()
    for _, runs in sorted(by_block.items()):
        if len(runs) != places:
            continue
        for label in {run.mode: None for run in runs}:
            own = [run.metrics for run in runs if run.mode == label]
            for name in dict.fromkeys(key for metrics in own for key in metrics):
                values = [v for metrics in own if (v := metrics.get(name)) is not None]
                if len(values) < len(own):
                    undefined.add((label, name))
                else:
                    found[label][name].append(sum(values) / len(values))
    return {
        label: {name: v for name, v in metrics.items() if (label, name) not in undefined}
        for label, metrics in found.items()
    }


def _refuse_size(file: Path, flag: str) -> None:
    try:
        size = os.path.getsize(file)
    except OSError:
        return  # the reader says what is wrong
    if size > MOST_BYTES:
        raise UsageError(
            f"{flag} {file}: has {size:,} bytes, more than any result; name a run directory"
        )

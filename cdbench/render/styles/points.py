"""What tables are made of: operating points, read from runs and sweeps.

A point is one run, or one cell of a sweep over all its rounds. Where only the ``sweep.json`` of a
sweep is left, its points have the figures that stand in it, and not what the cells' results know.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cdbench.bench.again import flat
from cdbench.bench.places import typed_path
from cdbench.compare.sides import read_side, refuse_size
from cdbench.config import Tree, parse_config, with_keys
from cdbench.errors import UsageError
from cdbench.render.run_report import comparison
from cdbench.schema import RESULT_FILE, IntervalRecord, Result
from cdbench.schema.files import read_document
from cdbench.schema.sweep import SWEEP_FILE, SweepCell, SweepDocument
from cdbench.sweep.figures import ACCURACY, REALISED, Figure, value


@dataclass(frozen=True)
class Point:
    """One operating point. ``results`` has one a round, all complete; empty: only ``kept`` is left.

    ``verdict`` is INVALID where its numbers must not be quoted, for ``reasons``; ``kept`` are the
    figures that a sweep recorded, by the names of its columns; ``given`` are the configuration keys
    that someone set, None where it is not known.
    """

    name: str
    config: Mapping[str, Any]
    results: tuple[Result, ...] = ()
    verdict: str | None = None
    reasons: tuple[str, ...] = ()
    interrupted: bool = False
    kept: Mapping[str, IntervalRecord] = field(default_factory=dict)
    given: frozenset[str] | None = None

    @property
    def invalid(self) -> bool:
        """Whether its numbers must not be quoted."""
        return self.verdict == "INVALID"

    @property
    def first(self) -> Result | None:
        """The first round's result: what all rounds share is read from it."""
        return self.results[0] if self.results else None

    @property
    def modes(self) -> tuple[str, ...]:
        """Its modes, as they ran or as they were asked for."""
        if self.first is not None:
            return tuple(self.first.modes)
        return tuple(str(mode) for mode in self.config.get("modes") or ())

    def value(self, figure: Figure) -> IntervalRecord | None:
        """A figure over all rounds; None where the point has none."""
        if not self.results:
            return self.kept.get(figure.name)
        if len(self.results) == 1:
            return _recorded(figure, self.results[0]) or value(figure, self.results)
        return value(figure, self.results)


@dataclass(frozen=True)
class Measured:
    """All that was named on the command line."""

    points: tuple[Point, ...]
    sweeps: tuple[SweepDocument, ...] = ()
    left_out: tuple[str, ...] = ()
    """What could not be taken in, in words."""


def read_points(runs: Sequence[str]) -> Measured:
    """Runs and sweeps by directory or file, as typed.

    Raises:
        UsageError: one cannot be read, was edited, has not run, is named twice or is a sweep over
            stage curves.
    """
    paths = [typed_path(text, "RUN") for text in runs]
    for text, path in zip(runs, paths, strict=True):
        if sum(os.path.realpath(path) == os.path.realpath(other) for other in paths) > 1:
            raise UsageError(f"{text}: is named twice; name each run once")
    read = [_read(text, path) for text, path in zip(runs, paths, strict=True)]
    points = [point for each in read for point in each.points]
    if not points:
        raise UsageError(f"{runs[0]}: no cell of it has finished; run the sweep, then ask again")
    return Measured(
        _named_apart(points, [len(each.points) for each in read], runs),
        tuple(document for each in read for document in each.sweeps),
        tuple(line for each in read for line in each.left_out),
    )


def _read(typed: str, path: Path) -> Measured:
    sweep = path / SWEEP_FILE if path.is_dir() else path
    if sweep.name == SWEEP_FILE and sweep.is_file():
        refuse_size(sweep, "RUN")
        return _of_sweep(read_document(SweepDocument, sweep), sweep.parent)
    result = read_side(typed).result
    whole = Path(os.path.abspath(path))
    directory = whole.parent.name if whole.name == RESULT_FILE else whole.stem
    return Measured((_of_run(result, whole.name if path.is_dir() else directory),))


def _of_run(result: Result, name: str) -> Point:
    return Point(
        name,
        result.config,
        (result,),
        result.validity.verdict,
        tuple(result.validity.reasons),
        result.status != "complete",
        given=_given(result.manifest.given),
    )


def _of_sweep(document: SweepDocument, directory: Path) -> Measured:
    if document.verb != "run":
        raise UsageError(
            f"{directory}: a sweep over stage curves has no runs to tabulate; `cdbench sweep` "
            "prints its table"
        )
    done = [cell for cell in document.cells if all(r.state == "finished" for r in cell.rounds)]
    waiting = len(document.cells) - len(done)
    words = f"{waiting} of {len(document.cells)} cells of {document.name} have not finished"
    return Measured(
        tuple(_of_cell(cell, document, directory) for cell in done),
        (document,),
        (words,) if waiting else (),
    )


def _of_cell(cell: SweepCell, document: SweepDocument, directory: Path) -> Point:
    places = [directory / r.directory for r in cell.rounds]
    there = all((place / RESULT_FILE).is_file() for place in places)
    # Making every cell again from its raw records would take minutes: its blocks must do.
    results = tuple(
        read_side(str(place), f"cell {cell.number} of", recheck=False).result
        for place in places
        if there
    )
    spoiled = [each.validity for each in results if each.validity.verdict == "INVALID"]
    reasons = dict.fromkeys((*cell.reasons, *(why for each in spoiled for why in each.reasons)))
    asked = with_keys(document.base, cell.changes, str(directory / SWEEP_FILE))
    config = results[0].config if results else _resolved(asked)
    return Point(
        f"cell {cell.number}",
        config,
        results,
        "INVALID" if spoiled else cell.verdict,
        tuple(reasons),
        kept=cell.figures,
        given=_given(asked),
    )


def _given(tree: Mapping[str, Any] | None) -> frozenset[str] | None:
    return None if tree is None else frozenset(key for key, _ in flat(tree))


def _resolved(asked: Tree) -> dict[str, Any]:
    """A cell's configuration as its run would have resolved it, where it has no result."""
    config = parse_config(asked)
    modes = [str(mode) for mode in config.resolved_modes]
    return {**config.model_dump(mode="json"), "modes": modes}


def _named_apart(
    points: Sequence[Point], counts: Sequence[int], runs: Sequence[str]
) -> tuple[Point, ...]:
    """Points of one name get what was typed for them as well."""
    typed = [text for text, count in zip(runs, counts, strict=True) for _ in range(count)]
    names = [point.name for point in points]
    return tuple(
        point
        if names.count(point.name) == 1
        else replace(point, name=f"{text.rstrip('/')} {point.name}".strip())
        for point, text in zip(points, typed, strict=True)
    )


def _recorded(figure: Figure, result: Result) -> IntervalRecord | None:
    """What a single run recorded: its intervals may have a level of their own (``looks``)."""
    mode = result.modes.get(figure.mode)
    if figure.kind == "speedup":
        found = comparison(result, figure.mode, figure.over, figure.what)
        return found.speedup if found is not None else None
    if figure.kind == REALISED:
        bound = result.bounds.get(figure.mode, {}).get(figure.what)
        return bound.realised if bound is not None else None
    if figure.kind == "metric" and mode is not None:
        single = mode.metrics.get(figure.what)
        blocks = len({block.index for block in result.blocks})
        constant = None if single is None else IntervalRecord(estimate=single, n=blocks)
        return mode.intervals.get(figure.what, constant)
    return None


def metric(mode: str, name: str) -> Figure:
    """The mean of a metric over blocks."""
    return Figure("metric", mode, name)


def percentile(mode: str, name: str, q: str) -> Figure:
    """A percentile of a latency, mean over rounds."""
    return Figure("percentile", mode, name, q)


def speedup(mode: str, over: str, scope: str = "e2e") -> Figure:
    """The speed-up of one mode over another."""
    return Figure("speedup", mode, scope, over)


def realised(mode: str, bound: str) -> Figure:
    """The share of a bound that was realised, in the bound's own scope."""
    return Figure(REALISED, mode, bound)


def accuracy(mode: str) -> Figure:
    """The share of questions answered right in the live pass."""
    return Figure(ACCURACY, mode)

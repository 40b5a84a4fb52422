"""The runs of a report as they are read from disk."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cdbench.bench.places import typed_path
from cdbench.bench.raw import ContradictionError, RawRun, read_raw
from cdbench.compare.sides import Side, read_side
from cdbench.errors import UsageError
from cdbench.render.colours import ModeStyle, mode_styles
from cdbench.schema import Result

Styles = dict[str, ModeStyle]


@dataclass(frozen=True)
class ReportRun:
    """A run, how its modes are drawn, and its raw records where they lie beside its result.

    ``key`` tells the run from the others on the page, ``name`` is for people.
    """

    key: str
    name: str
    result: Result
    raw: RawRun | None
    styles: Styles

    @property
    def without_raw(self) -> str:
        """What to say of a picture that needs raw records."""
        return (
            "This needs the run's raw records (requests.jsonl, launches.npz), which do not lie "
            "beside its result.json."
        )


def read_runs(typed: Sequence[str]) -> list[ReportRun]:
    """Runs as they were typed: run directories or result.json files, each once.

    Raises:
        UsageError: one cannot be read, stands twice, or contradicts itself or its raw records.
    """
    paths = [typed_path(text, "RUN") for text in typed]
    _refuse_twice(typed, paths)
    sides = [read_side(text) for text in typed]
    read = [(side.result, _raw(side)) for side in sides]
    styles = mode_styles([label for result, _ in read for label in result.modes])
    return [
        ReportRun(f"run{number}", name, result, raw, styles)
        for number, (name, (result, raw)) in enumerate(zip(_names(paths), read, strict=True), 1)
    ]


def directory_of(typed: str) -> Path:
    """The run directory, named itself or by its result.json."""
    path = typed_path(typed, "RUN")
    return path.parent if os.path.isfile(path) else path


def _raw(side: Side) -> RawRun | None:
    """The raw records that the result was checked against; None where none lie beside it."""
    if not side.rechecked:
        return None
    directory = side.directory
    try:
        return read_raw(directory)
    except (ContradictionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"{directory}: raw records: {reason}; see `cdbench recheck`, or name a copy of its "
            "result.json alone"
        ) from None


def _refuse_twice(typed: Sequence[str], paths: Sequence[Path]) -> None:
    places = [os.path.realpath(p.parent if os.path.isfile(p) else p) for p in paths]
    for place, text in zip(places, typed, strict=True):
        if places.count(place) > 1:
            raise UsageError(f"{text}: stands twice; name every run once")


def _names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, with the part before it where that tells them apart."""
    places = [Path(os.path.abspath(p.parent if os.path.isfile(p) else p)) for p in paths]
    short = [place.name or "run" for place in places]
    counts = Counter(short)
    longer = [
        name if counts[name] == 1 else f"{place.parent.name}/{name}"
        for name, place in zip(short, places, strict=True)
    ]
    counts = Counter(longer)
    return [
        name if counts[name] == 1 else f"{name} ({number})"
        for number, name in enumerate(longer, start=1)
    ]

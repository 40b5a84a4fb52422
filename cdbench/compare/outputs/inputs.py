"""What a gate reads, and so must not be written over by what it writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cdbench.bench.places import typed_path
from cdbench.compare.baselines import DIRECTORY, exact_path
from cdbench.compare.gate_file import SHIPPED
from cdbench.resources import data_dir


def files_read(gate: str | None, runs: Sequence[str] = ()) -> list[Path]:
    """The gate file, at either place where its name may lead, and runs that are named by a file."""
    named = [typed_path(run, "RUN") for run in runs]
    if gate is not None:
        named += [typed_path(gate, "--gate"), data_dir("configs") / SHIPPED / f"{gate}.yaml"]
    return [path for path in named if path.is_file()]


def baselines_read(name: str, directory: Path | None) -> Iterator[Path]:
    """The baselines of a gate's name: the exact one even where there is none yet."""
    place = Path(DIRECTORY) if directory is None else directory
    yield exact_path(place, name)
    if place.is_dir():
        # Not a glob: a gate may be named by what a pattern would act on.
        yield from (file for file in place.iterdir() if _is_timed(file.name, name))


def _is_timed(file: str, name: str) -> bool:
    return file.startswith(f"{name}.") and file.endswith(".json")

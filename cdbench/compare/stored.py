"""The baselines in a directory: what each is of, and which files there are none."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cdbench.compare.baselines import read_exact
from cdbench.compare.fingerprint import fingerprint
from cdbench.compare.promotion import Kind, kind_of
from cdbench.compare.sides import read_side
from cdbench.errors import UsageError


@dataclass(frozen=True)
class StoredBaseline:
    """One baseline. ``machine`` is None for counts, which are the same on every machine.

    ``counts`` of an exact one, ``blocks`` of a timed one; ``since_utc`` is when it was promoted, or
    when its run started.
    """

    name: str
    kind: Kind
    file: str
    machine: str | None
    modes: list[str]
    counts: int | None
    blocks: int | None
    since_utc: str
    commit: str | None
    workload: str


@dataclass(frozen=True)
class StoredBaselines:
    """Every baseline of a directory, by name, and a line for each file that cannot be used."""

    baselines: list[StoredBaseline] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def stored_baselines(directory: Path) -> StoredBaselines:
    """What lies in a directory; a missing one holds nothing."""
    found = StoredBaselines()
    for path in sorted(directory.glob("*.json")):
        try:
            found.baselines.append(_stored(path))
        except UsageError as error:
            found.problems.append(str(error))
    return found


def _stored(path: Path) -> StoredBaseline:
    kind = kind_of(path)
    if kind is None:
        raise UsageError(f"{path}: is no baseline; promote a run again, or move it away")
    return _exact(path) if kind == "exact" else _timed(path)


def _exact(path: Path) -> StoredBaseline:
    baseline = read_exact(path.parent, path.stem)
    assert baseline is not None, "its file is there"
    if baseline.name != path.stem:
        raise UsageError(f"{path}: calls itself {baseline.name!r}; give it back its name")
    return StoredBaseline(
        name=baseline.name,
        kind="exact",
        file=path.name,
        machine=None,
        modes=list(baseline.modes),
        counts=sum(len(mode.exact) for mode in baseline.modes.values()),
        blocks=None,
        since_utc=baseline.promoted_utc,
        commit=baseline.commit,
        workload=baseline.workload,
    )


def _timed(path: Path) -> StoredBaseline:
    result = read_side(str(path), "baseline", recheck=False).result
    machine = fingerprint(result.manifest)
    name = path.stem.removesuffix(f".{machine}")
    if name == path.stem:
        raise UsageError(f"{path}: is of the machine {machine}, which its name has to end with")
    git = result.manifest.git
    return StoredBaseline(
        name=name,
        kind="timed",
        file=path.name,
        machine=machine,
        modes=list(result.modes),
        counts=None,
        blocks=len({run.index for run in result.blocks}),
        since_utc=result.manifest.started_utc,
        commit=git.commit if git is not None else None,
        workload=result.workload.hash,
    )

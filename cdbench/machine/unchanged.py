"""What must stay as it is while a run is measured: cdbench's own sources and the models' files.

Python loads modules as they are first needed, so a source that changes during a run may be used in
two versions, and the commit in the manifest names neither. A model file that changed is no longer
the one whose sha256 stands in the manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent

_HASH_CHUNK_BYTES = 1 << 20


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def source_sha256(package: Path = PACKAGE, parts: Iterable[str] = ("",)) -> str:
    """Hex sha256 over the names and contents of a package's Python files, in order of name.

    ``parts``: only these folders of it, such as ``("models", "runtime")``.
    """
    digest = hashlib.sha256()
    for name, path in sorted(_sources(package, parts).items()):
        digest.update(f"{name}\0{_content_sha256(path)}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class FileState:
    """A file at one moment: place on disk, size, time of change, and content."""

    inode: int
    size_bytes: int
    changed_ns: int
    sha256: str | None


@dataclass(frozen=True)
class Unchanged:
    """The files of a run as they were when it began.

    ``models`` are sha256 sums by path, as the manifest computed them: large files are read again
    only where size, place or time differ.
    """

    sources: Mapping[str, FileState]
    models: Mapping[Path, FileState]

    @classmethod
    def now(cls, models: Mapping[Path, str] | None = None, package: Path = PACKAGE) -> Unchanged:
        """The state at the start of a run. ``models``: path → sha256 of each model file."""
        return cls(
            {name: _state(path) for name, path in _sources(package, ("",)).items()},
            {path: _state(path, known) for path, known in (models or {}).items()},
        )

    def changed_sources(self, package: Path = PACKAGE) -> list[str]:
        """Sources of cdbench that changed, came or went since, by name within the package."""
        sources = _sources(package, ("",))
        gone_or_new = set(sources) ^ set(self.sources)
        changed = {
            name
            for name, path in sources.items()
            if name in self.sources and _differs(path, self.sources[name])
        }
        return sorted(gone_or_new | changed)

    def changed_models(self) -> list[str]:
        """Model files that changed or went since, by name."""
        return sorted(path.name for path, then in self.models.items() if _differs(path, then))


def _sources(package: Path, parts: Iterable[str]) -> dict[str, Path]:
    found = (path for part in parts for path in (package / part).rglob("*.py"))
    return {path.relative_to(package).as_posix(): path for path in found}


def _state(path: Path, known: str | None = None) -> FileState:
    try:
        status = path.stat()
    except OSError:
        return FileState(0, 0, 0, None)
    return FileState(
        status.st_ino, status.st_size, status.st_mtime_ns, known or _content_sha256(path)
    )


def _differs(path: Path, then: FileState) -> bool:
    """Whether the content differs; a file only touched or written again the same does not."""
    try:
        status = path.stat()
    except OSError:
        return then.sha256 is not None
    if (status.st_ino, status.st_size, status.st_mtime_ns) == (
        then.inode,
        then.size_bytes,
        then.changed_ns,
    ):
        return False
    return _content_sha256(path) != then.sha256


def _content_sha256(path: Path) -> str | None:
    try:
        return sha256_file(path)
    except OSError:
        return None

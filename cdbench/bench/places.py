"""Places that output goes to: proved before anything is measured, and one writer at a time.

A claim is a lock that the operating system holds on a file. It ends with its process, however that
ends, so that a file left behind by a killed one is in nobody's way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from cdbench.errors import UsageError
from cdbench.schema.files import is_stream, partial_of

CLAIM_FILE = ".claim"
"""In a claimed directory; a claimed file has ``.NAME.claim`` beside it."""


class InUseError(UsageError):
    """The place belongs to someone else: another process, or what is already there."""


class Claim:
    """The right to write at one place, until ``release`` or the end of the process.

    ``made``: the directories that were made for it, innermost first.
    """

    def __init__(self, file: Path, descriptor: int, made: tuple[Path, ...]) -> None:
        self._file = file
        self._descriptor: int | None = descriptor
        self._made = made

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Leave the place to others; directories made for it go where nothing came to lie in them.

        A second time does nothing.
        """
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            self._file.unlink()  # while it is still locked, so that it is nobody else's
        os.close(self._descriptor)
        self._descriptor = None
        _remove_empty(self._made)


def typed_path(text: str, flag: str) -> Path:
    """A path as someone typed it. UsageError: its ``~`` is nobody's home."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        home = text.partition("/")[0]
        raise UsageError(f"{flag} {text}: {home} is no home directory; write it out") from None


def claim_directory(path: Path, flag: str) -> Claim:
    """Make a directory, or take the one that is there, for this process alone.

    Raises:
        InUseError: another process writes there.
        UsageError: it cannot be made or written; nothing is left behind.
    """
    return _claim(path, path / CLAIM_FILE, path, flag)


def claim_file(path: Path, flag: str) -> Claim:
    """Make sure that a file can be written, new or in place of another, by this process alone.

    Raises as ``claim_directory`` does.
    """
    claim = _claim(path.parent, path.with_name(f".{path.name}.claim"), path, flag)
    try:
        prove_writable(path, flag)
    except UsageError:
        claim.release()
        raise
    return claim


def prove_writable(path: Path, flag: str) -> None:
    """Raise UsageError where no file can be written at ``path``, in a directory that is there."""
    with _refusing(path, flag):
        if path.is_dir():
            raise UsageError(f"{flag} {path}: is a directory; name a file")
        if is_stream(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        # Files are written beside their place and then moved: the longer name must fit too.
        probe = partial_of(Path(os.path.realpath(path)))
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        os.unlink(probe)


def _claim(directory: Path, file: Path, path: Path, flag: str) -> Claim:
    """Lock ``file`` in ``directory``; ``path`` is what was asked for by ``flag``."""
    with _refusing(path, flag):
        made: tuple[Path, ...] = ()
        try:
            made = tuple(p for p in (directory, *directory.parents) if not p.exists())
            directory.mkdir(parents=True, exist_ok=True)
            return Claim(file, _lock(file), made)
        except BlockingIOError:
            raise InUseError(
                f"{flag} {path}: {_holder(file)} writes there; wait for it, or name another place"
            ) from None
        except OSError:
            _remove_empty(made)
            raise


def _lock(file: Path) -> int:
    """Open and lock a file that says whose it is. BlockingIOError: it is locked."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, file):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder removed it meanwhile


def _is_at(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def _holder(file: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return f"process {int(file.read_text())}"
    return "another process"


def _remove_empty(made: tuple[Path, ...]) -> None:
    """Remove directories, innermost first, that hold nothing."""
    for directory in made:
        with contextlib.suppress(OSError):
            directory.rmdir()


@contextlib.contextmanager
def _refusing(path: Path, flag: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: no file can have such a name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"{flag} {path}: cannot be written ({reason}); name another place"
        ) from None

"""Reading and writing the contract's files: whole or not at all.

Files of one record a line are appended to while a run goes on, each time with all that belongs
together, which is on disk before the next begins. Only a crash can tear the last line, and readers
leave it out. A full disk or an interruption in the middle of writing leaves a file as it was.

A file is written beside its place and moved there. A link stays one: what it leads to is replaced.
Into a device or a pipe is written straight, for nothing else can be done with them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from cdbench.errors import OutputError, UsageError
from cdbench.schema.base import SCHEMA_VERSION
from cdbench.schema.repeats import LivePassRecord, RepeatLine, RepeatRecord
from cdbench.schema.requests import RequestRecord
from cdbench.schema.result import Result
from cdbench.schema.samples import SampleRecord
from cdbench.schema.stages import StagePassRecord
from cdbench.schema.workload import WorkloadRecord

RESULT_FILE = "result.json"
REQUESTS_FILE = "requests.jsonl"
REPEATS_FILE = "repeats.jsonl"
WORKLOAD_FILE = "workload.jsonl"
LAUNCHES_FILE = "launches.npz"
STAGE_PASSES_FILE = "stages.jsonl"
TRACE_FILE = "trace.json"


def to_json(document: BaseModel, indent: int | None = 2) -> str:
    """One JSON document; what is not finite becomes null."""
    return document.model_dump_json(indent=indent)


def write_result(directory: Path, result: Result) -> Path:
    """Write ``result.json`` whole or not at all, and answer its path."""
    path = directory / RESULT_FILE
    write_whole(path, to_json(result) + "\n")
    return path


def write_requests(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write a ``requests.jsonl`` whole or not at all."""
    write_whole(path, "".join(to_json(record, indent=None) + "\n" for record in records))


def read_result(path: Path) -> Result:
    """Read a ``result.json``, given itself or its run directory.

    Raises:
        UsageError: it is missing, unreadable, not JSON, or of another version.
    """
    file = path / RESULT_FILE if os.path.isdir(path) else path
    return _parse(Result, _read(file), str(file))


def read_requests(path: Path) -> Iterator[RequestRecord]:
    """Read a ``requests.jsonl`` line by line.

    Raises:
        UsageError: it is missing, unreadable, or a line is not a request record.
    """
    yield from _read_lines(TypeAdapter(RequestRecord), path)


def read_repeats(path: Path) -> Iterator[RepeatRecord | LivePassRecord]:
    """Read a ``repeats.jsonl``, in the order of the run. UsageError as ``read_requests``."""
    yield from _read_lines(TypeAdapter(RepeatLine), path)


def read_workload(path: Path) -> Iterator[WorkloadRecord]:
    """Read a ``workload.jsonl``. UsageError as ``read_requests``."""
    yield from _read_lines(TypeAdapter(WorkloadRecord), path)


def read_stage_passes(path: Path) -> Iterator[StagePassRecord]:
    """Read a ``stages.jsonl``, in the order of the run. UsageError as ``read_requests``."""
    yield from _read_lines(TypeAdapter(StagePassRecord), path)


def samples_file(task: str) -> str:
    """The name of the file with a task's samples; a task may be named by a path."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", task).strip("-")
    # Two names may come to the same plain one.
    own = "" if plain == task else f"-{hashlib.sha256(task.encode()).hexdigest()[:8]}"
    return f"samples_{plain}{own}.jsonl"


def read_samples(path: Path) -> Iterator[SampleRecord]:
    """Read a ``samples_<task>.jsonl``. UsageError as ``read_requests``."""
    yield from _read_lines(TypeAdapter(SampleRecord), path)


def append_lines(path: Path, records: Iterable[BaseModel]) -> None:
    """Add one line a record, all or none; they are on disk when this returns.

    Raises:
        OutputError: they cannot be written.
    """
    lines = "".join(to_json(record, indent=None) + "\n" for record in records).encode()
    # Unbuffered: what a full disk leaves in a buffer would still be written on closing.
    with output_errors(path), path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            left = memoryview(lines)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(size)
            if not size:
                path.unlink()
            raise


def _read_lines(kind: TypeAdapter[Any], path: Path) -> Iterator[Any]:
    # Not splitlines: a line break of Unicode may stand inside a JSON text.
    *whole, torn = _read(path).split("\n")
    for number, line in enumerate(whole, start=1):
        if line.strip():
            yield _validated(kind.validate_json, line, f"{path}:{number}")
    if torn.strip():
        try:
            yield kind.validate_json(torn)
        except ValidationError:
            return


Document = TypeVar("Document", bound=BaseModel)


def write_document(path: Path, document: BaseModel) -> None:
    """Write any JSON document of the contract whole or not at all."""
    write_whole(path, to_json(document) + "\n")


def read_document(kind: type[Document], path: Path) -> Document:
    """Read a JSON document of one kind. UsageError where it is missing or of another form."""
    return _parse(kind, _read(path), str(path))


def _parse(kind: type[Document], text: str, where: str) -> Document:
    document: Document = _validated(kind.model_validate_json, text, where)
    return document


def _validated(validate: Callable[[str], Any], text: str, where: str) -> Any:
    try:
        return validate(text)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "document"
        raise UsageError(
            f"{where}: {key}: {first['msg']}; it must be a cdbench file of schema version "
            f"{SCHEMA_VERSION}"
        ) from None


def _read(path: Path) -> str:
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        kind = "is a directory" if os.path.isdir(path) else "is no regular file"
        raise UsageError(f"{path}: {kind}; name a run directory or its file")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"{path}: {reason}; name a run directory or its file") from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file (a text in UTF-8) whole or not at all. OutputError: it cannot be written."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that becomes ``path`` when the block ends, and is gone where it fails.

    Raises:
        OutputError: it cannot be written.
    """
    with output_errors(path):
        if is_stream(path):
            with path.open("wb") as file:
                yield file
            return
        place = Path(os.path.realpath(path))
        partial = partial_of(place)
        try:
            with partial.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, place)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def partial_of(place: Path) -> Path:
    """Where a file is written before it is moved to its place: a name that is nobody else's."""
    return place.with_name(f"{place.name}.{secrets.token_hex(4)}.partial")


def is_stream(path: Path) -> bool:
    """Whether what is there takes bytes as they come, as a character device or a pipe does.

    Raises:
        OSError: it is neither that nor a file that another may replace.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        return True
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    if _is_descriptor(path):
        # Whoever holds it open would go on writing to the one that was replaced.
        raise OSError(errno.EINVAL, "it is an open file of this process")
    return False


def _is_descriptor(path: Path) -> bool:
    """Whether it leads to its file through the process, as ``/dev/stdout`` does."""
    while not os.path.realpath(path.parent).startswith("/proc/"):
        if not path.is_symlink():
            return False
        path = path.parent / os.readlink(path)
    return True


@contextlib.contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into an OutputError that names ``path``."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written ({error.strerror or error}); make room there, or write to "
            "another place"
        ) from None

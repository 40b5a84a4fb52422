"""Reading and writing the contract's files: whole or not at all.

Files of one record a line are appended to while a run goes on, each time in one write that is on
disk before the next begins; only a last line can be torn, and readers leave it out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from cdbench.errors import UsageError
from cdbench.schema.base import SCHEMA_VERSION
from cdbench.schema.repeats import LivePassRecord, RepeatLine, RepeatRecord
from cdbench.schema.requests import RequestRecord
from cdbench.schema.result import Result
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
    file = path / RESULT_FILE if path.is_dir() else path
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


def append_lines(path: Path, records: Iterable[BaseModel]) -> None:
    """Add one line a record, in one write that is on disk when this returns."""
    lines = "".join(to_json(record, indent=None) + "\n" for record in records)
    with path.open("a", encoding="utf-8") as file:
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())


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
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"{path}: {reason}; name a run directory or its file") from None


def write_whole(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)

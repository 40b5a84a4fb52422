"""Reading and writing the contract's files: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from cdbench.errors import UsageError
from cdbench.schema.base import SCHEMA_VERSION
from cdbench.schema.requests import RequestRecord
from cdbench.schema.result import Result

RESULT_FILE = "result.json"
REQUESTS_FILE = "requests.jsonl"


def to_json(document: BaseModel, indent: int | None = 2) -> str:
    """One JSON document; what is not finite becomes null."""
    return document.model_dump_json(indent=indent)


def write_result(directory: Path, result: Result) -> Path:
    """Write ``result.json`` whole or not at all, and answer its path."""
    path = directory / RESULT_FILE
    _write_whole(path, to_json(result) + "\n")
    return path


def write_requests(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write a ``requests.jsonl`` whole or not at all."""
    _write_whole(path, "".join(to_json(record, indent=None) + "\n" for record in records))


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
    for number, line in enumerate(_read(path).splitlines(), start=1):
        if line.strip():
            yield _parse(RequestRecord, line, f"{path}:{number}")


Document = TypeVar("Document", bound=BaseModel)


def _parse(kind: type[Document], text: str, where: str) -> Document:
    try:
        return kind.model_validate_json(text)
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


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)

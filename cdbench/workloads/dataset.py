"""Rows of text from a file or the hub, through the ``datasets`` library.

A local JSON, JSON Lines, CSV, Parquet or text file is read without a network; ``hf:NAME`` is taken
from the hub, or from its local cache where there is no network. Nothing from a dataset ever runs.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cdbench import resources
from cdbench.errors import UsageError
from cdbench.models.loading import HUB_ANSWER_S, within

HUB_PREFIX = "hf:"
_HUB_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
LOADERS = {
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
}

_NO_ROW = "corresponds to no data"
"""How the library says that a file it could parse has no row."""

Row = dict[str, Any]


class _Table(Protocol):
    """What is used of a ``datasets.Dataset``."""

    @property
    def column_names(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Row: ...


@dataclass(frozen=True)
class Rows:
    """The rows of one split. ``where`` is what an error calls it."""

    where: str
    columns: tuple[str, ...]
    table: _Table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Row:
        return self.table[index]


@contextlib.contextmanager
def opened(source: str, subset: str | None = None, split: str | None = None) -> Iterator[Rows]:
    """The rows of a source, while the context lasts. Raises UsageError where there are none."""
    with _quiet(), tempfile.TemporaryDirectory(prefix="cdbench-") as scratch:
        if source.startswith(HUB_PREFIX):
            loaded = _from_hub(source, subset)
        else:
            loaded = _from_file(source, subset, scratch)
        rows = _split(source, loaded, split)
        if not len(rows):
            raise UsageError(f"workload.source: {rows.where} holds no row; name another")
        yield rows


def _from_file(source: str, subset: str | None, scratch: str) -> Any:
    import datasets

    path = resources.find_file(source)
    if not path.is_file():
        raise UsageError(
            f"workload.source: {source}: no such file; give demo, a file, or hf:NAME for the hub"
        )
    if subset is not None:
        raise UsageError(f"workload.subset: {subset!r} means nothing beside a file; drop it")
    loader = LOADERS.get(path.suffix.lower())
    if loader is None:
        raise UsageError(
            f"workload.source: {source}: files {', '.join(LOADERS)} can be read; rename or convert"
        )
    _check_content(source, path, loader)
    try:
        # The library keeps a copy of what it has parsed; a scratch one, so that none goes stale.
        return datasets.load_dataset(loader, data_files=str(path), cache_dir=scratch)
    except Exception as error:  # its parsers raise their own
        if _NO_ROW in str(error):
            raise UsageError(
                f"workload.source: {source} holds no row; add some, or name another"
            ) from None
        raise UsageError(
            f"workload.source: {source}: {_first_line(error)}; expected {loader} rows that all "
            "have the same columns"
        ) from None


def _check_content(source: str, path: Path, loader: str) -> None:
    """UsageError for a file without a row, and for what the JSON parser does not survive."""
    try:
        with path.open("rb") as file:
            start = next((part for line in file if (part := line.strip())), b"")
            if not start:
                raise UsageError(f"workload.source: {source} is empty; name another file")
            wrong = _wrong_json(start, file) if loader == "json" else None
    except OSError as error:
        raise UsageError(
            f"workload.source: {source}: {error.strerror or error}; name a file that can be read"
        ) from None
    if wrong is not None:
        raise UsageError(
            f"workload.source: {source}: {wrong}; expected rows {{...}}, one a line or in a list"
        )


def _wrong_json(start: bytes, rest: Iterable[bytes]) -> str | None:
    """What stands where a row should, in a file of JSON that starts with this line.

    Its parser reads a null among the rows as one without values, and dies of one at the start of a
    block.
    """
    if start.removeprefix(codecs.BOM_UTF8)[:1] not in (b"{", b"["):
        return f"starts with {_short(start)}"
    if _is_object(start) and any(line.strip() == b"null" for line in rest):
        return "holds null where a row should be"
    return None


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _short(line: bytes) -> str:
    text = repr(line[:21].decode(errors="replace"))
    return text if len(line) <= 21 else f"{text}..."


def _from_hub(source: str, subset: str | None) -> Any:
    import datasets
    import huggingface_hub

    name = source.removeprefix(HUB_PREFIX)
    if not _HUB_NAME.fullmatch(name):
        raise UsageError(
            f"workload.source: {source!r} names no dataset; write hf:NAME or hf:OWNER/NAME"
        )
    if Path(name).exists():
        raise UsageError(
            f"workload.source: {source}: something called {name} lies here and would be read in "
            "its place; run elsewhere, or give a file"
        )
    try:
        # The client's own patience has no end; whether the hub is there shows at once.
        ask = huggingface_hub.HfApi().dataset_info
        within(HUB_ANSWER_S, lambda: ask(name, timeout=HUB_ANSWER_S))
        reached: AbstractContextManager[None] = contextlib.nullcontext()
    except Exception:  # whatever the reason, the local cache may have it
        reached = _offline()
    try:
        with reached:
            return datasets.load_dataset(name, subset)
    except Exception as error:  # the client's versions differ in the errors they raise
        raise UsageError(
            f"workload.source: {source}: not in the local cache and cannot be fetched "
            f"({_first_line(error)}); check workload.subset, or download it where there is a "
            "network and give its file"
        ) from None


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Keep the libraries from asking the hub over and over before they look in their cache."""
    import datasets
    from huggingface_hub import constants

    owners: tuple[Any, ...] = (datasets.config, constants)
    before = [owner.HF_HUB_OFFLINE for owner in owners]
    for owner in owners:
        owner.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for owner, value in zip(owners, before, strict=True):
            owner.HF_HUB_OFFLINE = value


def _split(source: str, loaded: Any, split: str | None) -> Rows:
    """One split of several; UsageError where it is open which, or the named one is not there."""
    names = tuple(str(name) for name in loaded)
    if split is None and len(names) > 1:
        raise UsageError(f"workload.split: {source} has {', '.join(names)}; name one of them")
    chosen = names[0] if split is None else split
    if chosen not in names:
        raise UsageError(
            f"workload.split: {source} has no {split!r}; {resources.nearest_hint(chosen, names)}"
        )
    table = loaded[chosen]
    where = source if len(names) == 1 else f"{source} ({chosen})"
    return Rows(where, tuple(table.column_names), table)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's progress bars and complaints: what is wrong is said in one line."""
    import datasets

    bars, level = datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if not bars:
            datasets.enable_progress_bars()


def _first_line(error: Exception) -> str:
    """What an exception says, down to the one that caused it."""
    cause = error.__cause__ or error
    said = str(cause).strip().splitlines()
    return said[0].rstrip(".") if said else type(cause).__name__

"""Where a task's documents come from: local files, the local cache, the hub, or nowhere.

The library would retry an absent hub for half a minute and then say little. Here the cache is asked
first; only for what it lacks is the hub asked whether it is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import datasets
import huggingface_hub
from huggingface_hub import HfApi

from cdbench.errors import UsageError
from cdbench.models.loading import HUB_ANSWER_S, within

LOCAL_FORMATS = frozenset({"json", "csv", "parquet", "text", "arrow", "pandas", "xml"})
"""Names of dataset builders that read files instead of a repository of the hub."""


@contextlib.contextmanager
def fetching(asked: str) -> Iterator[None]:
    """Within, lm-eval's tasks load their documents as said above.

    ``asked`` is the task as the user named it, for messages. Raises UsageError, naming the dataset
    and how to fetch it, where the documents cannot be had.
    """
    load = datasets.load_dataset

    def load_dataset(path: str | None, name: str | None = None, **kwargs: Any) -> Any:
        if not path:
            raise UsageError(
                f"task {asked!r}: names no documents; set its dataset_path (json, and data_files, "
                "for a file of your own)"
            )
        if path in LOCAL_FORMATS:
            found = _local(load, asked, path, name, kwargs)
        else:
            found = _cached_or_fetched(load, asked, path, name, kwargs)
        return _with_documents(found, asked, path)

    # The tasks reach it as an attribute of its module, wherever in a group they are built.
    with mock.patch.object(datasets, "load_dataset", load_dataset):
        yield


def fetch_command(path: str, name: str | None) -> str:
    """What puts a dataset into the cache, where there is a network."""
    arguments = repr(path) if name is None else f"{path!r}, {name!r}"
    return f'python -c "from datasets import load_dataset; load_dataset({arguments})"'


def _local(load: Any, asked: str, path: str, name: str | None, kwargs: dict[str, Any]) -> Any:
    files = kwargs.get("data_files")
    try:
        return load(path=path, name=name, **kwargs)
    except StopIteration:  # what the library makes of an empty file
        raise UsageError(f"task {asked!r}: no documents in {_named(files)}; add some") from None
    except Exception as error:  # one of many, each with its reason in its cause
        raise UsageError(
            f"task {asked!r}: documents in {_named(files)} cannot be read "
            f"({reason(error.__cause__ or error)}); correct the file"
        ) from None


def _named(files: Any) -> str:
    if isinstance(files, dict):
        return ", ".join(_named(value) for value in files.values())
    if isinstance(files, list | tuple):
        return ", ".join(map(str, files))
    return str(files)


def _cached_or_fetched(
    load: Any, asked: str, path: str, name: str | None, kwargs: dict[str, Any]
) -> Any:
    where = path if name is None else f"{path} ({name})"
    try:
        with _offline():
            return load(path=path, name=name, **kwargs)
    except Exception:  # not in the cache, whatever the library calls that
        pass
    try:
        within(HUB_ANSWER_S, lambda: HfApi().dataset_info(path, timeout=HUB_ANSWER_S))
        return load(path=path, name=name, **kwargs)
    except Exception as error:  # the client's versions differ in the errors they raise
        raise UsageError(
            f"task {asked!r}: dataset {where} is not in the local cache and cannot be fetched "
            f"({type(error).__name__}); where there is a network run {fetch_command(path, name)}"
        ) from None


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    with (
        mock.patch.object(datasets.config, "HF_HUB_OFFLINE", True),
        mock.patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", True),
    ):
        yield


def _with_documents(found: Any, asked: str, path: str) -> Any:
    """The dataset, unless it has a split with nothing in it."""
    splits = found.items() if isinstance(found, dict) else [("", found)]
    for split, documents in splits:
        if getattr(documents, "num_rows", 1) == 0:
            raise UsageError(
                f"task {asked!r}: split {split!r} of {path} has no documents; add some"
            )
    return found


def reason(error: BaseException) -> str:
    """What an exception of a library says, in one line of bearable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."

"""Task files on this machine: read whole, with their data files found whatever the directory is."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

import yaml
from lm_eval.tasks._yaml_loader import load_yaml

from cdbench.errors import UsageError
from cdbench.evals.fetching import LOCAL_FORMATS, reason
from cdbench.evals.task_paths import SUFFIXES


def task_files(directory: Path) -> list[Path]:
    """The task files below a directory, sorted."""
    return sorted(path for suffix in SUFFIXES for path in directory.rglob(f"*{suffix}"))


def read_task(path: Path, functions: bool = True) -> dict[str, Any]:
    """A task's or group's configuration: includes merged, data files as absolute paths.

    Without ``functions`` no code beside the file is run. Raises UsageError for what cannot be read.
    """
    try:
        config: dict[str, Any] = load_yaml(path, resolve_func=functions)
    except FileNotFoundError as error:
        missing = error.filename or path
        raise UsageError(
            f"task file {str(missing)!r}: no such file; see `cdbench list tasks`"
        ) from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: {reason(error)}; expected an lm-eval task in YAML") from None
    except Exception as error:  # also what the code it names raises on import
        raise UsageError(f"{path}: {reason(error)}; expected an lm-eval task in YAML") from None
    return with_absolute_data(config, path)


def with_absolute_data(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """``data_files`` of local formats and local ``dataset_path``s, resolved beside the task file.

    lm-eval leaves them to the working directory. Looked for in that order: as written from the
    task file's directory, by name beside it, as written from the working directory.
    """
    here, source = path.resolve().parent, config.get("dataset_path")
    if isinstance(source, str) and (here / source).is_dir() and source not in LOCAL_FORMATS:
        return {**config, "dataset_path": str(here / source)}
    settings = config.get("dataset_kwargs")
    if source not in LOCAL_FORMATS or not isinstance(settings, dict):
        return config
    files = settings.get("data_files")
    if files is None:
        return config
    return {**config, "dataset_kwargs": {**settings, "data_files": _absolute(files, here, path)}}


def _absolute(files: Any, here: Path, path: Path) -> Any:
    if isinstance(files, dict):
        return {split: _absolute(value, here, path) for split, value in files.items()}
    if isinstance(files, list | tuple):
        return [_absolute(value, here, path) for value in files]
    name = str(files)
    if "://" in name:
        return name
    for base, relative in ((here, name), (here, Path(name).name), (Path.cwd(), name)):
        candidate = str(base / relative)
        if Path(candidate).is_file() or glob.glob(candidate):
            return candidate
    raise UsageError(f"{path}: data file {name!r} is not there; put it beside the task file")

"""Names of tasks that are files or directories on this machine."""

from __future__ import annotations

import os
from pathlib import Path

SUFFIXES = (".yaml", ".yml")


def is_path(name: str) -> bool:
    """Whether a name means a file or a directory rather than a registered task."""
    path = expanded(name)
    return path.suffix in SUFFIXES or path.is_dir() or "/" in name


def expanded(name: str) -> Path:
    """The path that a name is, with its ``~`` written out; one that is nobody's home stays."""
    return Path(os.path.expanduser(name))


def lasting(name: str) -> str:
    """The name of the same task from any directory: a path that is there becomes absolute."""
    if not is_path(name) or not (path := expanded(name)).exists():
        return name
    return os.path.abspath(path)

"""Packages that a bare machine lacks, from wheels that were carried along.

The standard library alone: this runs before anything else can be imported.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

INSTALLED = ("torch", "numpy", "scipy", "yaml", "rich", "typer", "tokenizers", "safetensors")
"""Looked for but not imported: torch alone takes seconds."""
CARRIED = ("pydantic", "psutil")
"""Small enough to be imported, which shows that they suit this Python."""


class MissingPackagesError(Exception):
    """What is missing, why it matters and what to do, in one line."""


def provide(
    wheels: Path, installed: Sequence[str] = INSTALLED, carried: Sequence[str] = CARRIED
) -> None:
    """Make sure that every package is there, for this process and those that it starts.

    Where one is missing, all wheels of the folder are unpacked into a temporary one, which goes
    before what is installed. Raises MissingPackagesError.
    """
    if not _missing(installed, carried):
        return
    found = sorted(wheels.glob("*.whl"))
    if found:
        _put_first(_unpacked(found))
    missing = _missing(installed, carried)
    if missing:
        where = f"{len(found)} wheels of {wheels.name}/ do not bring" if found else "there is no"
        raise MissingPackagesError(
            f"{', '.join(missing)}: {where} package of that name for Python "
            f"{sys.version_info.major}.{sys.version_info.minor}; install it, or put its wheels "
            f"into {wheels.name}/"
        )


def _missing(installed: Sequence[str], carried: Sequence[str]) -> list[str]:
    absent = [name for name in installed if importlib.util.find_spec(name) is None]
    for name in carried:
        try:
            importlib.import_module(name)
        except ImportError:
            absent.append(name)
    return absent


def _unpacked(wheels: Sequence[Path]) -> Path:
    site = Path(tempfile.mkdtemp(prefix="gpu-check-site-"))
    atexit.register(shutil.rmtree, site, ignore_errors=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    return site


def _put_first(site: Path) -> None:
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(site), *([others] if others else [])])

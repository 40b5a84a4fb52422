"""Files that ship with cdbench: tasks, configurations and the demo models.

In a checkout ``tasks/`` and ``configs/`` lie at the repository's root; in an installed wheel they
are ``cdbench/data/tasks`` and ``cdbench/data/configs``. A demo model is ``cdbench/assets/<name>``
in both.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from cdbench.errors import UsageError

PACKAGE = Path(__file__).resolve().parent
ASSETS = PACKAGE / "assets"

DEFAULT_MODEL = "demo-ouro"
MODEL_ALIASES = {"demo": DEFAULT_MODEL}


def data_dir(kind: str) -> Path:
    """Where the shipped ``tasks`` or ``configs`` lie. UsageError where neither place has them."""
    for directory in (PACKAGE / "data" / kind, PACKAGE.parent / kind):
        if directory.is_dir():
            return directory
    raise UsageError(f"{kind}: not part of this installation; install cdbench again")


def task_names() -> tuple[str, ...]:
    """Names of the shipped tasks, sorted: the stems of ``tasks/*.jsonl``."""
    return tuple(sorted(path.stem for path in data_dir("tasks").glob("*.jsonl")))


def config_names() -> tuple[str, ...]:
    """Names of the shipped configurations, sorted: ``NAME`` of ``configs/``, ``suites/NAME``."""
    folder = data_dir("configs")
    found = [*folder.glob("*.yaml"), *folder.glob("suites/*.yaml")]
    return tuple(sorted(str(path.relative_to(folder).with_suffix("")) for path in found))


def task_path(name: str) -> Path:
    """The JSONL file of a shipped task; UsageError names the nearest known one."""
    if name not in task_names():
        raise UsageError(f"task {name!r}: no such task; {nearest_hint(name, task_names())}")
    return data_dir("tasks") / f"{name}.jsonl"


def config_path(name: str) -> Path:
    """The YAML file of a shipped configuration; UsageError names the nearest known one."""
    if name not in config_names():
        raise UsageError(f"config {name!r}: no such config; {nearest_hint(name, config_names())}")
    return data_dir("configs") / f"{name}.yaml"


def find_file(name: str) -> Path:
    """A file as typed, or else the shipped configuration's file of that name."""
    path = Path(name)
    shipped = data_dir("configs") / name
    return shipped if not path.exists() and shipped.is_file() else path


def demo_names() -> tuple[str, ...]:
    """Names of the demo models that are there, sorted."""
    if not ASSETS.is_dir():
        return ()
    return tuple(sorted(path.parent.name for path in ASSETS.glob("*/config.json")))


def canonical_model(name: str) -> str:
    """A model name with aliases resolved (``demo`` → ``demo-ouro``); other names unchanged."""
    return MODEL_ALIASES.get(name, name)


def demo_path(name: str) -> Path:
    """The directory of a demo model, by name or alias; UsageError names the nearest known one."""
    name = canonical_model(name)
    if name not in demo_names():
        raise UsageError(f"demo model {name!r}: no such demo; {nearest_hint(name, demo_names())}")
    return ASSETS / name


def nearest_hint(name: str, known: tuple[str, ...]) -> str:
    """``did you mean 'x'?``, or the known names where none is near."""
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(known)}" if known else "none is installed"

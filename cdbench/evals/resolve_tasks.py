"""From what a user names to lm-eval's tasks and groups: registered names, files, directories.

lm-eval's own index of thousands of tasks takes many seconds to read, so it is not read for a name
that this installation's tasks or the named files and directories have, and otherwise only the part
that has to do with the name.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import TaskIndex
from lm_eval.tasks._yaml_loader import load_yaml

from cdbench import resources
from cdbench.errors import UsageError
from cdbench.evals.catalogue import catalogue
from cdbench.evals.fetching import fetching, reason
from cdbench.evals.local_tasks import read_task, task_files
from cdbench.evals.quiet import Notes
from cdbench.evals.task_paths import SUFFIXES, expanded, is_path


@dataclass
class LoadedTasks:
    """lm-eval's task and group objects by name, in the order in which they were named."""

    tasks: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, Any] = field(default_factory=dict)

    def add(self, asked: str, found: Any) -> None:
        """Take what one name stands for. UsageError where a task is there already."""
        twice = next((name for name in found["tasks"] if name in self.tasks), None)
        if twice is not None:
            raise UsageError(f"task {twice!r}: named twice, again as {asked!r}; name it once")
        self.tasks.update(found["tasks"])
        self.groups.update(found.get("groups") or {})


def resolve_tasks(names: Sequence[str], notes: Notes) -> LoadedTasks:
    """Build every task that the names stand for; ``notes`` holds what lm-eval warns of meanwhile.

    Raises UsageError for an unknown name, a file that cannot be read, documents that cannot be had
    and a metric that cannot be loaded.
    """
    if not names:
        raise UsageError("tasks: none is named; see `cdbench list tasks`")
    wanted = [item for name in names for item in _wanted(name)]
    manager = _manager(wanted)
    loaded = LoadedTasks()
    for item in wanted:
        loaded.add(item.asked, _build(manager, item, notes))
    return loaded


class _Wanted(NamedTuple):
    """One thing for lm-eval to build. ``spec`` is a registered name, or a task's configuration.

    ``place`` is a directory whose tasks must be in the index for it.
    """

    asked: str
    spec: str | dict[str, Any]
    place: Path | None = None


def _wanted(name: str) -> list[_Wanted]:
    if not is_path(name):
        return [_Wanted(name, name)]
    path = expanded(name).resolve()
    if path.is_dir():
        return _directory(name, path)
    if path.suffix not in SUFFIXES:
        raise UsageError(f"task {name!r}: no such file or directory; see `cdbench list tasks`")
    config = read_task(path)
    if "group" in config:
        # Its members are found by name.
        return [_Wanted(name, str(config["group"]), path.parent)]
    if not isinstance(config.get("task"), str):
        raise UsageError(f"{path}: has no name under `task`; expected an lm-eval task in YAML")
    return [_Wanted(name, config)]


def _directory(name: str, directory: Path) -> list[_Wanted]:
    """The groups below a directory, and its tasks that none of them has."""
    configs = {path: read_task(path, functions=False) for path in task_files(directory)}
    groups = [config for config in configs.values() if "group" in config]
    # A file without a name is what others include.
    tasks = {
        path: str(config["task"])
        for path, config in configs.items()
        if "group" not in config and isinstance(config.get("task"), str)
    }
    members = {name for group in groups for name in _members(group.get("task"))}
    wanted = [
        _Wanted(name, str(group["group"]), directory)
        for group in groups
        if group["group"] not in members
    ]
    wanted += [
        _Wanted(name, read_task(path)) for path, task in tasks.items() if task not in members
    ]
    if not wanted:
        raise UsageError(f"tasks: no task is in {directory}; expected lm-eval tasks in YAML")
    return wanted


def _as_list(members: Any) -> list[Any]:
    return members if isinstance(members, list) else [members]


def _member(item: Any) -> str:
    return str(item.get("task") or item.get("group")) if isinstance(item, dict) else str(item)


def _manager(wanted: Sequence[_Wanted]) -> TaskManager:
    """An index that knows all the names: of lm-eval's own tasks what they have to do with."""
    registered = [item.spec for item in wanted if isinstance(item.spec, str)]
    places = [resources.data_dir("tasks").resolve()]
    places += {item.place: None for item in wanted if item.place is not None}
    manager = _index(places)
    for place in places:
        _add_yml(manager, place)
    asked: set[str] = set()
    while missing := _missing(manager, registered) - asked:
        asked |= missing
        _add_defaults(manager, catalogue().places(asked))
    for name in registered:
        if name not in manager.task_index:
            raise UsageError(f"task {name!r}: no such task; {_hint(name, manager.task_index)}")
    _localise(manager, places)
    return manager


def _index(places: Sequence[Path]) -> TaskManager:
    return TaskManager(include_path=[str(place) for place in places], include_defaults=False)


def _add_yml(manager: TaskManager, place: Path) -> None:
    """Add files that end in ``.yml``, which lm-eval's index passes over."""
    for path in sorted(place.rglob("*.yml")):
        # As there: what cannot be read, or is included by others, is no task by itself.
        with contextlib.suppress(Exception):
            TaskIndex.process_cfg(load_yaml(path, resolve_func=False), path, manager.task_index)


def _add_defaults(manager: TaskManager, places: Sequence[Path]) -> None:
    """Add what is in folders of lm-eval, where nothing of our own has the name.

    As in its whole index the first folder wins, and a tag gathers the tasks of all.
    """
    found: dict[str, Any] = {}
    for place in places:
        for name, entry in _index([place]).task_index.items():
            first = found.setdefault(name, entry)
            if first.kind.name == entry.kind.name == "TAG":
                first.tags.update(entry.tags)
    for name, entry in found.items():
        manager.task_index.setdefault(name, entry)


def _missing(manager: TaskManager, names: Sequence[str]) -> set[str]:
    """The names that the index lacks, those of the members of groups included."""
    missing: set[str] = set()
    left, seen = list(names), set(names)
    while left:
        entry = manager.task_index.get(left[-1])
        name = left.pop()
        if entry is None:
            missing.add(name)
        elif entry.kind.name == "GROUP":
            new = set(_members((entry.cfg or {}).get("task"))) - seen
            left, seen = [*left, *new], seen | new
    return missing


def _members(listed: Any) -> Iterator[str]:
    """Names under a group's ``task``, those of groups written inside it included."""
    for item in _as_list(listed):
        if isinstance(item, dict):
            yield from _members(item["task"] if isinstance(item.get("task"), list) else None)
        if item is not None:
            yield _member(item)


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, {*known, *catalogue().defined}, n=3)
    if not near:
        return "see `cdbench list tasks`, or name a YAML file"
    return "did you mean " + " or ".join(repr(n) for n in near) + "?"


def _localise(manager: TaskManager, places: Sequence[Path]) -> None:
    """Give the tasks of our own directories absolute data files."""
    for name, entry in manager.task_index.items():
        path = entry.yaml_path and Path(entry.yaml_path)
        if not path or entry.kind.name != "TASK" or "data_files" not in str(entry.cfg):
            continue
        if any(path.is_relative_to(place) for place in places):
            # Where one that nobody asked for lacks its data, that is nobody's error.
            with contextlib.suppress(UsageError):
                manager.task_index[name] = replace(entry, yaml_path=None, cfg=read_task(path))


def _build(manager: TaskManager, item: _Wanted, notes: Notes) -> Any:
    asked = item.asked
    with fetching(asked):
        try:
            found = manager.load([item.spec])
        except UsageError:
            raise
        except Exception as error:  # a task is code: it raises what it likes
            _refuse_unknown_metric(asked, notes)
            raise UsageError(
                f"task {asked!r}: cannot be built ({type(error).__name__}: {reason(error)}); "
                "correct the task"
            ) from None
    _refuse_unknown_metric(asked, notes)
    for name, task in found["tasks"].items():
        _check(name, task)
    return found


UNKNOWN_METRIC = " not found in the evaluate library!"


def _refuse_unknown_metric(asked: str, notes: Notes) -> None:
    """lm-eval only logs that a metric is missing, and fails, or not, later on."""
    for text in notes.texts:
        metric, found, _ = text.partition(UNKNOWN_METRIC)
        if found:
            raise UsageError(
                f"task {asked!r}: metric {metric!r} is not lm-eval's own and not in the local "
                "cache; where there is a network run "
                f"python -c \"import evaluate; evaluate.load('{metric}')\""
            )


def _check(name: str, task: Any) -> None:
    """Raise UsageError for a task that this engine cannot or must not run."""
    if getattr(task, "MULTIMODAL", False):
        raise UsageError(f"task {name!r}: shows pictures or sound; only text is available")
    if getattr(task, "UNSAFE_CODE", False):
        raise UsageError(
            f"task {name!r}: runs code that a model wrote; not available, choose another task"
        )
    if not (task.has_test_docs() or task.has_validation_docs()):
        raise UsageError(f"task {name!r}: has no documents to ask; set its test_split")

"""What several plans have in common, loaded once: models, tasks, traces and the work they time.

A run loads what it needs and nothing twice, so it takes ``anew``. Whoever checks many runs before
the first of them, as a sweep does, takes a ``Kept``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

from cdbench.config import RunConfig
from cdbench.errors import UsageError

T = TypeVar("T")
Key = tuple[Hashable, ...]
"""The kind of a thing, and what decides which one it is."""
WORK = "work"
"""The kind of the requests that are timed."""


class Once(Protocol):
    """Answers with what ``make`` makes; of equal keys possibly with what it made before."""

    def __call__(self, key: Key, make: Callable[[], T]) -> T: ...


def anew(key: Key, make: Callable[[], T]) -> T:
    """Make it whenever it is asked for."""
    return make()


class Kept:
    """Makes a thing once and keeps it; a refusal too, which may have taken long to come."""

    def __init__(self) -> None:
        self._made: dict[Key, Any] = {}
        self._refused: dict[Key, str] = {}

    def __call__(self, key: Key, make: Callable[[], T]) -> T:
        if key in self._refused:
            raise UsageError(self._refused[key])
        if key not in self._made:
            try:
                self._made[key] = make()
            except UsageError as error:
                self._refused[key] = str(error)
                raise
        made: T = self._made[key]
        return made

    def forget(self, kind: str) -> None:
        """Let go of everything of a kind; what was refused stays refused."""
        for key in [key for key in self._made if key[0] == kind]:
            del self._made[key]


def model_key(config: RunConfig) -> tuple[str, ...]:
    """What decides which weights are loaded, in which precision and where."""
    return (config.model, config.weights, str(config.layers), config.dtype, config.device)


def work_key(config: RunConfig) -> str:
    """What decides which requests are timed: two sound plans of one key have the same work.

    Their exit rules may differ: what a rule is refused for, the plan has been refused for before.
    """
    keys = ("model", "weights", "layers", "dtype", "device", "tasks", "limit", "evaluation", "work")
    exits = True if config.exit.rule == "trace" else {"max_loops"}
    chosen = dict.fromkeys((*keys, "workload", "sampling"), True)
    return config.model_dump_json(include={**chosen, "exit": exits})

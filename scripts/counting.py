"""Work counted instead of timed: the same on a busy machine, and exact where nothing is random.

    engine.submit(...)
    with counted() as work:
        for _ in range(200):
            engine.tick()
    print(work.operations / 200)

What is counted: torch operations and the elements they read or write; calls of the package's own
functions, and those it makes of functions written in C; and lines of its code. A loop over requests
shows as lines even where it calls nothing. What C code does within one call (a sort, a search in a
queue, an operation of numpy on a long array) does not show.

Counting makes code many times slower: nothing here is to be timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import cdbench

PACKAGE = str(Path(cdbench.__file__).parent)

READS_SOME_ROWS = frozenset({"index_select", "index", "embedding", "gather", "take", "select"})
"""Operations that read of their first tensor only what they give back."""
WRITES_SOME_ROWS = frozenset({"index_copy_", "index_put_", "_index_put_impl_", "scatter_"})
"""Operations that change of their first tensor only what their other tensors hold."""


@dataclass
class Work:
    """What was done. ``calls`` and ``lines`` are of the package's code, and of nobody else's."""

    operations: int = 0
    elements: int = 0
    calls: int = 0
    lines: int = 0

    def per(self, count: int) -> dict[str, float]:
        """Each count over ``count`` ticks, tokens or whatever else there was."""
        return {name: value / count for name, value in vars(self).items()}


@contextmanager
def counted() -> Iterator[Work]:
    """Count what the block does; the counts stand still when it ends.

    Whatever traced or profiled the code before does so again afterwards, and not meanwhile.
    """
    work = Work()
    traced, profiled = sys.gettrace(), sys.getprofile()
    with _Operations(work):
        sys.setprofile(_calls(work))
        sys.settrace(_lines(work))
        try:
            yield work
        finally:
            sys.settrace(traced)
            sys.setprofile(profiled)


class _Operations(TorchDispatchMode):
    """Counts operations as the dispatcher sees them, below modules and composite functions."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._work.operations += 1
        # A view is another way to see the same elements: none is touched.
        if not getattr(func, "is_view", False):
            self._work.elements += _touched(func, args, kwargs, result)
        return result


def _touched(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
    """Elements of the distinct tensors that an operation reads or writes."""
    name = func.overloadpacket.__name__
    if name in WRITES_SOME_ROWS:
        tensors = {id(t): t for t in _tensors((*args[1:], *kwargs.values()))}
    else:
        reads = args[1:] if name in READS_SOME_ROWS else args
        # With `out=` the result is one of the arguments.
        tensors = {id(t): t for t in _tensors((*reads, *kwargs.values(), result))}
    return sum(t.numel() for t in tensors.values())


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _calls(work: Work) -> Callable[[FrameType, str, Any], None]:
    def profile(frame: FrameType, event: str, _: Any) -> None:
        # Counting operations makes others' code run as well, which is none of the package's.
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(PACKAGE):
            work.calls += 1

    return profile


def _lines(work: Work) -> Callable[[FrameType, str, Any], Any]:
    def trace_line(_: FrameType, event: str, __: Any) -> Any:
        if event == "line":
            work.lines += 1
        return trace_line

    def trace_call(frame: FrameType, _: str, __: Any) -> Any:
        return trace_line if frame.f_code.co_filename.startswith(PACKAGE) else None

    return trace_call

"""Progress on stderr: a bar with an estimate in a terminal, one line a phase elsewhere.

It redraws only when it is told something, never from a thread of its own: a timed region must not
share the processor with its own progress bar.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from cdbench.bench.measurements import Progress
from cdbench.render.terminal import is_dumb, make_console

REDRAW_S = 0.2


class Silent:
    """Says nothing."""

    def phase(self, name: str, units: int) -> None: ...

    def advance(self, units: int) -> None: ...


class Lines:
    """One line a phase, for logs and pipes."""

    def __init__(self, stream: IO[str], unit: str) -> None:
        self._stream, self._unit = stream, unit

    def phase(self, name: str, units: int) -> None:
        with suppress(BrokenPipeError):  # nobody reads it: no reason to stop measuring
            print(f"cdbench: {name} ({units:,} {self._unit})", file=self._stream, flush=True)

    def advance(self, units: int) -> None: ...


class Bar:
    """A bar for the current phase, with the time it will still take."""

    def __init__(self, bar: RichProgress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None)
        self._drawn_s = 0.0

    def phase(self, name: str, units: int) -> None:
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=units)
        self._bar.refresh()

    def advance(self, units: int) -> None:
        self._bar.advance(self._task, units)
        now = time.monotonic()
        if now - self._drawn_s > REDRAW_S:
            self._drawn_s = now
            self._bar.refresh()


@contextmanager
def progress_on_stderr(stream: IO[str], quiet: bool, unit: str = "requests") -> Iterator[Progress]:
    """The kind of progress that suits the stream; ``unit``: what is counted."""
    if quiet:
        yield Silent()
    elif not stream.isatty() or is_dumb():
        yield Lines(stream, unit)
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with RichProgress(
            *columns, console=make_console(stream), auto_refresh=False, transient=True
        ) as bar:
            yield Bar(bar)

"""The standard streams, whatever the shell did to them.

A stream that was closed (``2>&-``) takes nothing and costs nothing. One whose reader went away is
noticed by the command that writes a result to it; progress that nobody reads is no reason to stop.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from typing import Any

from cdbench.errors import OutputError

NAMES = ("stdin", "stdout", "stderr")


def open_closed_streams() -> None:
    """Point the streams that were closed at the null device.

    Otherwise the next file to be opened would take their number, and with it whatever a library
    prints there.
    """
    for number, name in enumerate(NAMES):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):
                os.fstat(number)
                number = -1  # taken by a file meanwhile
            descriptor = os.open(os.devnull, os.O_RDWR)
            if number >= 0 and descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
                descriptor = number
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", errors="replace"))


class ResultError(OSError):
    """Standard output took no more. What was to be written may be gone from its buffer too."""


class _Result(io.FileIO):
    """Standard output, whose errors are told from those of any other file."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise ResultError(error.errno, error.strerror) from None


def watch_result() -> None:
    """Have standard output raise ResultError where it can no longer be written.

    A text longer than the stream's buffer is dropped where its writing fails, so that a later flush
    finds nothing wrong.
    """
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        return
    raw = _Result(stream.fileno(), "wb", closefd=False)
    unbuffered = isinstance(stream.buffer, io.RawIOBase)
    sys.stdout = io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def tell(line: str) -> None:
    """One line on stderr, for a person: ``cdbench: LINE``. Nobody reading it is no error."""
    with contextlib.suppress(BrokenPipeError):
        print(f"cdbench: {line}", file=sys.stderr, flush=True)


def flush_result() -> None:
    """See the result off. OutputError: it cannot be written; BrokenPipeError: nobody reads it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritten(error) from None


def unwritten(error: OSError) -> OutputError:
    """What a result that standard output did not take ends a command with."""
    return OutputError(f"standard output: cannot be written ({error.strerror}); make room there")


def drop_unread() -> None:
    """Send what can no longer be written nowhere, so that the interpreter's last flush succeeds."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):  # no real file: nothing is left to flush
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def ignore_interrupts() -> None:
    """From here on the process only ends: a further Ctrl-C would end it in the middle of that."""
    with contextlib.suppress(ValueError):  # not the main thread: no signal arrives in it
        signal.signal(signal.SIGINT, signal.SIG_IGN)

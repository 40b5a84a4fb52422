"""Signals that ask a command to end, for one that has processes of its own to end first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ASKING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupted_once() -> Iterator[None]:
    """Make the first SIGINT or SIGTERM in the block a KeyboardInterrupt, and ignore the later ones.

    CI systems send the one and then the other: a second must not end the process while it ends
    what it started. A signal that was ignored before stays so.
    """
    if threading.current_thread() is not threading.main_thread():  # no signal arrives in it
        yield
        return
    before = {each: signal.getsignal(each) for each in ASKING}
    heeded = [each for each in ASKING if before[each] is not signal.SIG_IGN]

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in heeded:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    try:
        for each in heeded:
            signal.signal(each, interrupt)
        yield
    finally:
        for each in heeded:
            signal.signal(each, before[each])

"""Runs the parts in a process of their own, and in a new one where that is brought down.

An error on a GPU spoils the process that met it, a fault in a kernel may never return, and a crash
takes what was not written. So the parts run in a worker, which says which part it is at; one that
does not end in time is killed with all that it started. The part that it was at has failed, or was
cut; what waits behind it goes on in the next worker.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from scripts.gpu_parts.command import ROOT, Options, worker_arguments
from scripts.gpu_parts.record import Record
from scripts.gpu_parts.summary import print_summary

START_S = 150.0
"""For a worker to import what it needs and find its device, with nothing in the disk's cache."""
GRACE_S = 20.0
"""After a part should have ended by itself, before its worker is killed: a run that was cut still
sums up what it has."""
SAID = ("ready", "begin", "end")
"""First words of what a worker says."""
FAILED = 1
WORKER_ERROR = 4
INTERRUPTED = 130


@dataclass
class Ended:
    """How a worker ended. ``ready``: the document is its own; ``at``: the part that it was at, if
    any; ``late``: it was killed."""

    code: int
    ready: bool
    at: str | None
    late: bool = False


def supervise(options: Options) -> int:
    """Run all parts, print the summary, and answer with the exit code of the check."""
    start = time.monotonic()
    run = _Run(options, start + options.budget_s)
    code = 0
    try:
        code = run.all_parts()
    except KeyboardInterrupt:
        code = INTERRUPTED
    if not run.ready:
        return code
    record = Record(options.out, resumed=True)
    for name in options.parts:
        if name not in record.parts:
            record.keep(name, "skipped", why="the check was interrupted")
    record.finish(time.monotonic() - start)
    print_summary(record.document)
    return code or (FAILED if record.bad else 0)


class _Run:
    """Workers, one after another. ``ready``: the document has been begun."""

    def __init__(self, options: Options, deadline: float) -> None:
        self.options, self.deadline = options, deadline
        self.ready = False

    def all_parts(self) -> int:
        """Until no part waits: 0, or the exit code of a first worker that would not start."""
        waiting = list(self.options.parts)
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            while waiting:
                ended = self._worker(waiting, Path(folder))
                if not self.ready:
                    return ended.code if ended.code > 0 else WORKER_ERROR
                record = Record(self.options.out, resumed=True)
                if ended.at is not None and ended.at not in record.parts:
                    _keep_lost(record, ended.at, ended)
                left = [name for name in waiting if name not in record.parts]
                for name in left if left == waiting else ():  # it would come to nothing again
                    _keep_lost(record, name, ended)
                waiting = [] if left == waiting else left
        return 0

    def _worker(self, waiting: list[str], folder: Path) -> Ended:
        """Run a worker to its end. A KeyboardInterrupt ends it too, and goes through."""
        left_s = max(0.0, self.deadline - time.monotonic())
        words = worker_arguments(self.options, waiting, left_s, folder, self.ready)
        command = [sys.executable, str(ROOT / "scripts" / "gpu_check.py"), *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as child:
            try:
                return self._follow(child)
            finally:
                _kill_all(child)

    def _follow(self, child: subprocess.Popen[bytes]) -> Ended:
        assert child.stdout is not None
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_pump, args=(child.stdout, lines), daemon=True).start()
        at, until, ready = None, time.monotonic() + START_S, False
        while True:
            try:
                line = lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                _kill_all(child)
                return Ended(child.wait(), ready, at, late=True)
            if line is None:
                return Ended(child.wait(), ready, at)
            word, *rest = line.split() or [""]
            if word not in SAID:  # a library's or a compiler's
                continue
            at = rest[0] if word == "begin" else None
            until = time.monotonic() + GRACE_S + (float(rest[1]) if at is not None else 0.0)
            ready = self.ready = True


def _keep_lost(record: Record, name: str, ended: Ended) -> None:
    """The entry of a part whose process is gone: what it had found went with it."""
    if ended.late:
        record.keep(name, "cut", why="it did not end in time, and its process was killed")
    else:
        record.keep(name, "failed", why=f"its process ended with {_exit_words(ended.code)}")


def _exit_words(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _pump(stream: IO[bytes], lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line.decode())
    lines.put(None)


def _kill_all(child: subprocess.Popen[bytes]) -> None:
    """The worker and what it started: it leads a session of its own."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return

"""One side of a paired gate: ``PYTHON -P -m cdbench.compare.pair.worker``.

Reads one JSON command a line from stdin and answers each with one line on what was stdout when it
began. Whatever a library prints goes to stderr. A command is ``{"id": 3, "command": "time",
"mode": "cdb"}``, an answer ``{"id": 3, "ok": {…}}`` or ``{"id": 3, "error": {"exit_code": 2,
"message": "…"}}``. Between commands it sleeps. It ends with its pipe, whatever it computes: a gate
that was killed leaves nobody behind.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cdbench.errors import CdbenchError
from cdbench.machine.unchanged import PACKAGE, source_sha256
from cdbench.manifest import git_state
from cdbench.schema.base import Record
from cdbench.schema.pairing import PROTOCOL, Hello

if TYPE_CHECKING:
    from cdbench.bench.paired import PairedWork

INTERNAL = 4
REST_STEP_S = 0.02
REST_BUSY_S = 0.002
REST_STEPS = 25
"""At most half a second."""


def main() -> int:
    """Serve commands until ``quit`` or the end of stdin."""
    answers = _take_stdout()
    served = Served()
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_hand_over, args=(lines,), daemon=True).start()
    while line := lines.get():
        command = json.loads(line)
        answer = served.answer(command)
        _rest()
        try:
            answers.write(json.dumps({"id": command["id"], **answer}) + "\n")
            answers.flush()
        except BrokenPipeError:  # the gate is gone, and so is the use of this process
            return INTERNAL
        if command["command"] == "quit":
            break
    return 0


def _take_stdout() -> IO[str]:
    """Standard output for the answers alone; what is printed from now on goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _hand_over(lines: queue.SimpleQueue[bytes]) -> None:
    """Pass commands on as they come; at the end of the pipe end the process, unless it has parted.

    The pipe has a reader of its own: a lock that this thread held on ``sys.stdin`` would stop the
    interpreter from ending in good order.
    """
    line = b""
    with os.fdopen(os.dup(0), "rb") as commands:
        for line in commands:
            lines.put(line)
    if not _parts(line):
        _vanish()
    lines.put(b"")


def _parts(line: bytes) -> bool:
    try:
        return bool(json.loads(line)["command"] == "quit")
    except (ValueError, KeyError, TypeError):  # none, or torn: the gate did not part
        return False


def _vanish() -> None:
    """End at once, with whatever this process started where it leads a group of its own."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(INTERNAL)


def _rest() -> None:
    """Wait until this process computes no more.

    Threads of a library go on spinning for a while after their work; the other side, which is timed
    next, would lose a core to them.
    """
    for _ in range(REST_STEPS):
        before_s = time.process_time()
        time.sleep(REST_STEP_S)
        if time.process_time() - before_s < REST_BUSY_S:
            return


class Served:
    """What the commands do. The engine is loaded when the first of them needs it."""

    def __init__(self) -> None:
        self._work: PairedWork | None = None
        self._commands: dict[str, Callable[[Mapping[str, Any]], Record | None]] = {
            "hello": lambda _: hello(),
            "record": lambda c: self._paired().record(c["config"], Path(c["path"])),
            "prepare": lambda c: self._paired().prepare(c["config"], Path(c["path"])),
            "time": lambda c: self._paired().time(c["mode"]),
            "quit": lambda _: None if self._work is None else self._work.leave(),
        }

    def answer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of one command; an error of it is an answer too."""
        try:
            done = self._commands[command["command"]](command)
        except CdbenchError as error:
            return {"error": {"exit_code": error.exit_code, "message": str(error)}}
        except Exception as error:
            traceback.print_exc()
            message = f"{type(error).__name__}: {error}"
            return {"error": {"exit_code": INTERNAL, "message": message}}
        return {"ok": {} if done is None else done.model_dump(mode="json")}

    def _paired(self) -> PairedWork:
        if self._work is None:
            from cdbench.bench.paired import PairedWork

            self._work = PairedWork()
        return self._work


def hello() -> Hello:
    """Who this worker is; imports nothing heavy."""
    return Hello(
        protocol=PROTOCOL,
        cdbench_version=_version("cdbench"),
        source_sha256=source_sha256(),
        git=git_state(PACKAGE),
        python=platform.python_version(),
        torch=_version("torch"),
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())

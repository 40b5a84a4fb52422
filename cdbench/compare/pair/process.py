"""A worker's process, as the gate sees it: commands in, answers out, and every way it can fail.

A worker has a process group of its own: Ctrl-C reaches the gate alone, which then ends the groups
of both, with whatever they started.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

from pydantic import ValidationError

from cdbench.errors import CdbenchError, InvalidRunError, UsageError, WorkerError
from cdbench.schema.base import Record

MOST_BYTES = 64 * 1024 * 1024
"""Of one answer. What is longer is none."""
END_LIMIT_S = 10.0
WAIT_STEP_S = 0.5
TAIL_CHARACTERS = 300

Answer = TypeVar("Answer", bound=Record)


class Worker:
    """One side's process. ``name`` is how errors call it; ``log`` keeps its stderr, whole."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name, self.log = name, log
        self._asked = 0
        self._doing = "starting"
        self._answers: queue.Queue[bytes] = queue.Queue(maxsize=2)
        with log.open("ab") as stderr:
            try:
                self._process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    start_new_session=True,
                )
            except OSError as error:
                raise UsageError(
                    f"{name}: cannot be started ({error.strerror}); name another Python"
                ) from None
        assert self._process.stdout is not None
        threading.Thread(
            target=_pass_on, args=(self._process.stdout, self._answers), daemon=True
        ).start()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.end()

    @property
    def group(self) -> int:
        """Its process group."""
        return self._process.pid

    def ask(
        self, answer: type[Answer], command: str, doing: str, limit_s: float, **fields: Any
    ) -> Answer:
        """The answer to one command. ``doing`` says in words what it is asked for.

        Raises:
            WorkerError: it died, was silent for ``limit_s``, or answered nonsense.
            UsageError, InvalidRunError: it refused, as it would alone.
        """
        self._asked += 1
        self._doing = doing
        line = json.dumps({"id": self._asked, "command": command, **fields}) + "\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except OSError:
            raise self._died() from None
        told = self._wait(limit_s)
        if not told:
            raise self._died()
        return self._understood(answer, told)

    def _wait(self, limit_s: float) -> bytes:
        """The next line of the worker, waited for in short steps.

        A signal that comes just before the thread falls asleep on a lock does not wake it; it is
        heeded after the step.
        """
        ends_s = time.monotonic() + limit_s
        while (left_s := ends_s - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                return self._answers.get(timeout=min(left_s, WAIT_STEP_S))
        raise self._failed(f"gave no answer in {limit_s:,.0f} s")

    def end(self) -> None:
        """End it and everything it started, at once. A second time does nothing."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=END_LIMIT_S)

    def _understood(self, kind: type[Answer], told: bytes) -> Answer:
        try:
            message = json.loads(told)
            number, error = message["id"], message.get("error")
            if number != self._asked:
                raise self._failed(f"answered command {number!r} in place of {self._asked}")
            if error is not None:
                raise self._refused(int(error["exit_code"]), str(error["message"]))
            return kind.model_validate(message["ok"])
        except ValidationError as unsound:
            key = ".".join(str(part) for part in unsound.errors()[0]["loc"])
            raise self._failed(f"answered without a sound {key or 'record'}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._failed(f"answered nonsense ({_shown(told)})") from None

    def _refused(self, code: int, message: str) -> CdbenchError:
        kinds: dict[int, type[CdbenchError]] = {2: UsageError, 3: InvalidRunError}
        if code in kinds:
            return kinds[code](f"{self.name}: {message}")
        return self._failed(f"failed ({message})")

    def _died(self) -> WorkerError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=END_LIMIT_S)
        code = self._process.poll()
        if code is None:
            return self._failed("closed its pipe")
        if code < 0:
            return self._failed(f"died (signal {signal.Signals(-code).name})")
        return self._failed(f"died (exit code {code})")

    def _failed(self, what: str) -> WorkerError:
        return WorkerError(f"{self.name}: {what} while {self._doing}; {self._tail()}")

    def _tail(self) -> str:
        """The last words of its stderr, and where all of it is."""
        text = self.log.read_text(encoding="utf-8", errors="replace").strip()
        if not text:
            return "it said nothing on stderr"
        last = text.split("\n")[-1].strip()[-TAIL_CHARACTERS:]
        return f"its last words: {last}; all of them in {self.log}"


def _pass_on(stream: IO[bytes], answers: queue.Queue[bytes]) -> None:
    """Hand over what a worker writes, line by line; nothing is its end."""
    with contextlib.suppress(OSError, ValueError), stream:
        while line := stream.readline(MOST_BYTES):
            answers.put(line)
    answers.put(b"")


def _shown(told: bytes) -> str:
    text = told.decode(errors="replace").strip()
    return repr(text if len(text) <= 80 else text[:77] + "...")

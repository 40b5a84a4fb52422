"""The process that runs parts, one after another, within their times.

Standard output tells the supervisor which part begins, with its limit, and that it has ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from cdbench import manifest
from cdbench.errors import UsageError
from cdbench.models.loading import resolve_device
from cdbench.sweep.runners import let_go
from scripts.gpu_parts.catalogue import PARTS, Part
from scripts.gpu_parts.check import Check, NotAvailable, TimeUp
from scripts.gpu_parts.command import USAGE, Options
from scripts.gpu_parts.record import Record

BROKEN = 75
"""Exit code of a worker that leaves the parts it has left to a new one."""
LAST_LINES = 12
"""Of a traceback."""
WHY_CHARACTERS = 300


def work(options: Options, folder: Path, resume: bool) -> int:
    """Run the parts of ``options`` in order, each into the document as it ends.

    ``folder`` is where parts leave files for later ones, whichever process runs those.
    """
    deadline = time.monotonic() + options.budget_s
    try:
        resolve_device(options.device)
    except UsageError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return USAGE
    sys.argv[1:] = options.typed  # for manifests: what a person typed, not what a worker is given
    record = Record(options.out, resume)
    if not resume:
        record.begin(_facts(options))
    print("ready", flush=True)
    os.chdir(folder)  # so that no path of this machine enters a document
    check = Check(options.device, options.tiny, folder, record)
    for name in options.parts:
        part = PARTS[name]
        left_s = deadline - time.monotonic()
        if left_s < (0.0 if options.tiny else part.estimate_s):
            why = f"it takes about {part.estimate_s:.0f} s, and {max(0.0, left_s):.0f} s are left"
            record.keep(name, "skipped", why=why)
            continue
        limit_s = max(1.0, min(part.limit_s, left_s))
        print("begin", name, f"{limit_s:.1f}", flush=True)
        run_part(part, check, limit_s)
        print("end", flush=True)
        if record.parts[name]["status"] == "failed" and _may_be_broken(options.device):
            return BROKEN
    return 0


def run_part(part: Part, check: Check, limit_s: float) -> None:
    """Run a part for so many seconds at most, and keep what it found, however it ended."""
    found: dict[str, Any] = {}
    start = time.monotonic()
    ending: dict[str, Any] = {"status": "done"}
    check.ends_s = start + limit_s
    try:
        with _alarm(limit_s):
            part.load()(check, found)
    except NotAvailable as error:
        ending = {"status": "not available", "why": str(error)}
    except TimeUp:
        ending = {"status": "cut", "why": f"it took more than its {limit_s:.0f} s"}
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:WHY_CHARACTERS]
        lines = traceback.format_exc().splitlines()[-LAST_LINES:]
        ending = {"status": "failed", "why": why, "traceback": lines}
    seconds = time.monotonic() - start
    check.record.keep(part.name, seconds=seconds, found=found, **ending)
    let_go()


def _facts(options: Options) -> dict[str, Any]:
    return {
        "manifest": manifest.collect(device=options.device).model_dump(mode="json"),
        "device": options.device,
        "tiny": options.tiny,
        "budget_s": options.budget_s,
    }


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raises ``TimeUp`` in the block once the time has passed."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _may_be_broken(device: str) -> bool:
    """Whether a failed part may have spoiled this process for those behind it.

    After some errors a process never reaches its GPU again, and a capture that broke off leaves a
    stream and an allocator that are not what they were: a new process costs seconds.
    """
    return torch.device(device).type == "cuda"

"""Whether an interpreter can be one side of a paired gate: found out before anything starts."""

from __future__ import annotations

import json
import shutil
import subprocess

from cdbench.errors import UsageError

WORKER = "cdbench.compare.pair.worker"
MARK = "cdbench-paired-gate"
PROBE_LIMIT_S = 120

# -P: what lies in the working directory, perhaps a checkout, must not stand in for what the
# interpreter has installed.
START = ("-P", "-m", WORKER)

_PROBE = f"""
import importlib.util, json
def has(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
print(json.dumps(["{MARK}", has("cdbench"), has("{WORKER}")]))
"""


def check_python(flag: str, python: str) -> str:
    """The program to start for an interpreter as typed after ``flag``.

    Raises:
        UsageError: there is no such program, it is no Python from 3.11 on, or it has no cdbench, or
            one without the paired gate's worker.
    """
    program = shutil.which(python)
    if program is None:
        raise UsageError(
            f"{flag} {python}: no such program; name the Python of an environment with cdbench"
        )
    found = _probe(flag, python, program)
    if not found[0]:
        raise UsageError(f"{flag} {python}: has no cdbench; install it there")
    if not found[1]:
        raise UsageError(
            f"{flag} {python}: its cdbench has no {WORKER}: it is older than the paired gate; "
            "install a later one there, or compare stored runs"
        )
    return program


def _probe(flag: str, python: str, program: str) -> tuple[bool, bool]:
    """Whether it has cdbench, and the worker in it."""
    no_python = f"{flag} {python}: is no Python from 3.11 on"
    try:
        done = subprocess.run(
            [program, "-P", "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"silent for {PROBE_LIMIT_S} s"
        raise UsageError(f"{no_python} ({why}); name another") from None
    lines = done.stdout.decode(errors="replace").split("\n")
    for line in reversed(lines):
        try:
            mark, has_cdbench, has_worker = json.loads(line)
        except (ValueError, TypeError):
            continue
        if mark == MARK:
            return bool(has_cdbench), bool(has_worker)
    told = done.stderr.decode(errors="replace").strip().split("\n")[-1]
    raise UsageError(f"{no_python}, or its cdbench cannot be imported ({told[:200]}); name another")

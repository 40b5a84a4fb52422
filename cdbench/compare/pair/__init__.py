"""The paired gate: two checkouts, one warm worker each, timed in turns on the same work.

A stored baseline was measured on another day. Here both sides are measured now, A B B A, so that
whatever the machine does it does to both, and measuring goes on along looks fixed in advance until
the verdict is clear. ``run.py`` has the course of a gate, ``worker.py`` the other end of the pipe.
"""

from __future__ import annotations

from cdbench.compare.pair.files import UnkeptOutcome
from cdbench.compare.pair.run import run_pair

__all__ = ["UnkeptOutcome", "run_pair"]

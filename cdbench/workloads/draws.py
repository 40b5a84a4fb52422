"""Seeded random streams whose draws stay the same, so that a workload's hash does."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(purpose: str, seed: int) -> np.random.RandomState:
    """The random stream of one purpose (lengths, gaps, …), independent of the others.

    The legacy generator, because numpy promises its streams never change; ``default_rng`` may.
    """
    digest = hashlib.sha256(f"{purpose}/{seed}".encode()).digest()
    return np.random.RandomState(np.frombuffer(digest, np.uint32))

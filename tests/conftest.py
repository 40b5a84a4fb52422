"""Shared set-up: one torch thread (small tensors, parallel workers) and the models tests run on."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

from cdbench.models.base import StagedModel
from tests import tiny

torch.set_num_threads(1)
settings.register_profile("default", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("default")


@pytest.fixture(scope="session")
def tiny_ouro() -> StagedModel:
    """A random float64 Ouro whose gate exits at every depth."""
    return tiny.ouro()

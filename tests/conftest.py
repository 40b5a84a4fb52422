"""Shared set-up: one torch thread (small tensors, parallel workers) and the models tests run on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from cdbench.bench import timed_part
from cdbench.machine.monitor import Monitor
from cdbench.machine.processor import CpuReading
from cdbench.models.base import StagedModel
from tests import tiny

# Before anything imports triton: its kernels then run in the interpreter, here on the CPU.
os.environ["TRITON_INTERPRET"] = "1"
torch.set_num_threads(1)
settings.register_profile("default", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("default")


class UnseenProcessor:
    """A processor of which nothing can be told but the time."""

    usable_cores = None

    def read(self) -> CpuReading:
        return CpuReading(at_s=time.perf_counter(), own_cpu_s=time.process_time())


class UnseenMachine:
    """Makes monitors that see nothing of the machine."""

    @staticmethod
    def of(device: str) -> Monitor:
        return Monitor(UnseenProcessor())


@pytest.fixture(scope="session", autouse=True)
def unseen_machine() -> Iterator[None]:
    """No run of a test is judged by what happens to run beside the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timed_part, "Monitor", UnseenMachine)
        yield


@pytest.fixture(scope="session")
def tiny_ouro() -> StagedModel:
    """A random float64 Ouro whose gate exits at every depth."""
    return tiny.ouro()

"""Two processes that share a suite give the scores of one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cdbench.errors import UsageError
from cdbench.evals.evaluate import evaluate_suite
from cdbench.evals.lm import EngineLM
from cdbench.evals.ranks import ALONE, Ranks, join_ranks
from cdbench.evals.scores import SuiteScores
from cdbench.evals.suite import load_suite
from cdbench.runtime.core import ExitPolicy
from cdbench.runtime.engine_config import EngineConfig
from tests.evaluating import CHOICE, READ, WRITE, worded, write_task

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = "import sys; from tests.test_evals_ranks import report; report(sys.argv[1:])"


def report(paths: list[str]) -> None:
    """One rank's run; the first prints what a caller would have of it."""
    torch.set_num_threads(1)
    ranks = join_ranks(torch.device("cpu"))
    lm = EngineLM(worded(), EngineConfig(max_residents=4), ExitPolicy("cdf", 0.7), ranks=ranks)
    gathered = lm.all_gather(torch.tensor(lm.rank + 1)).reshape(-1).tolist()
    scores = evaluate_suite(load_suite(paths), lm)
    lm.barrier()
    if scores is not None:
        print(json.dumps([gathered, comparable(scores)]))


def comparable(scores: SuiteScores) -> dict[str, Any]:
    """All that must not depend on how many there were, with floats to nine places.

    A logprob is computed in other batches, so that its last bits may differ.
    """
    found = {
        "hash": scores.hash,
        "metrics": {
            name: [[m.metric, m.values, m.aggregate, m.stderr] for m in task.metrics]
            for name, task in scores.tasks.items()
        },
        "depths": [[list(p.executed_depths) for p in a.pieces] for a in scores.answers],
    }
    as_read: dict[str, Any] = json.loads(
        json.dumps(found), parse_float=lambda number: f"{float(number):.9e}"
    )
    return as_read


def start(arguments: list[str], rank: int, size: int, port: int) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.slow
def test_two_ranks_equal_one_process(tmp_path: Path) -> None:
    paths = [
        str(write_task(tmp_path, name, settings))
        for name, settings in (("choose", CHOICE), ("write", WRITE), ("read", READ))
    ]
    port = free_port()
    runs = [start(paths, rank, 2, port) for rank in range(2)]
    lm = EngineLM(worded(), EngineConfig(max_residents=4), ExitPolicy("cdf", 0.7))
    alone = evaluate_suite(load_suite(paths), lm)
    assert alone is not None
    outputs = [run.communicate(timeout=240)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert outputs[1] == "", "only the first rank has the scores"
    gathered, shared = json.loads(outputs[0])
    assert gathered == [1, 2]
    assert shared == comparable(alone)


def test_ranks_are_those_of_the_environment() -> None:
    cpu = torch.device("cpu")
    assert join_ranks(cpu, {}) is ALONE
    assert join_ranks(cpu, {"RANK": "0", "WORLD_SIZE": "1"}) is ALONE
    for wrong in ({"RANK": "x"}, {"RANK": "2", "WORLD_SIZE": "2"}, {"WORLD_SIZE": "0"}):
        with pytest.raises(UsageError, match="start with torchrun"):
            join_ranks(cpu, wrong)


def test_alone_everything_is_ones_own() -> None:
    tensor = torch.tensor([1, 2])
    assert ALONE.all_gather(tensor) is tensor
    assert ALONE.gather_object("mine") == ["mine"]
    ALONE.barrier()
    dealt = [[place for place in range(7) if Ranks(r, 3).owns(place)] for r in range(3)]
    assert dealt == [[0, 3, 6], [1, 4], [2, 5]]

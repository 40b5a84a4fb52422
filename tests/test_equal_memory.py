"""`equal: memory`: every mode gets the residents that its own requests leave room for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdbench.bench.equal_memory import request_bytes, residents_that_fit
from cdbench.bench.plan import Subject, make_plan
from cdbench.cli.main import main
from cdbench.config import load_config
from cdbench.errors import UsageError
from cdbench.grammar import parse_mode
from cdbench.metrics.trace import KvShape
from cdbench.runtime.core import Request
from cdbench.schema import read_result

# 10 bytes for each row of K and V: 2 · kv_heads 1 · head_dim 5 · 1 byte.
SHAPE = KvShape(
    prelude_layers=1,
    core_layers=2,
    coda_layers=1,
    kv_heads=1,
    head_dim=5,
    element_bytes=1,
    slots=4,
)
FULL = 10 * (1 + 4 * 2 + 1)


@pytest.fixture(scope="module")
def subjects() -> dict[str, Subject]:
    plan = make_plan(load_config(flags={"work": "equal", "dense": "", "model": "demo-ouro"}))
    return {name: plan.subject(parse_mode(name)) for name in ("static", "static@2", "cdb")}


def request(name: str, prompt: int, depths: list[int]) -> Request:
    return Request(name, prompt=[1] * prompt, force=[2] * len(depths), replay_depths=depths)


def test_an_adaptive_request_keeps_the_slots_of_the_loops_it_executed(
    subjects: dict[str, Subject],
) -> None:
    one = request("a", prompt=3, depths=[4, 1, 2])
    # 3 prompt tokens in all 4 slots, the first token (fed back) at depth 1, the second at depth 2.
    own = 3 * FULL + 10 * (2 + 1 * 2) + 10 * (2 + 2 * 2)
    assert request_bytes(subjects["cdb"], SHAPE, one) == own
    assert request_bytes(subjects["static"], SHAPE, one) == 5 * FULL


def test_a_fixed_depth_keeps_no_more_slots_than_its_loops(subjects: dict[str, Subject]) -> None:
    shape = KvShape(1, 2, 1, 1, 5, 1, slots=2)
    one = request("a", prompt=3, depths=[4, 1, 2])
    assert request_bytes(subjects["static@2"], shape, one) == 5 * 10 * (1 + 2 * 2 + 1)


def test_the_largest_requests_decide_how_many_fit(subjects: dict[str, Subject]) -> None:
    requests = [request(str(n), prompt=n, depths=[4]) for n in (1, 3, 2)]
    static = subjects["static"]
    assert residents_that_fit(static, SHAPE, requests, 3 * FULL) == 1
    assert residents_that_fit(static, SHAPE, requests, 5 * FULL - 1) == 1
    assert residents_that_fit(static, SHAPE, requests, 5 * FULL) == 2
    assert residents_that_fit(static, SHAPE, requests, 100 * FULL) == 3
    with pytest.raises(UsageError, match=r"do not hold the longest request of mode static"):
        residents_that_fit(static, SHAPE, requests, 3 * FULL - 1)


def test_a_run_gives_the_adaptive_mode_more_residents_of_the_same_memory(tmp_path: Path) -> None:
    out = tmp_path / "run"
    code = main(
        [
            "run",
            *("--limit", "2", "--requests", "12", "--blocks", "1", "--work", "equal"),
            *("--modes", "static,cdb", "--set", "equal=memory", "--set", "kv.budget_bytes=4000000"),
            *("--set", "stages=none", "--out", str(out)),
        ]
    )
    assert code == 3  # one block has no interval
    modes = read_result(out).modes
    static, cdb = modes["static"], modes["cdb"]
    assert static.max_residents is not None
    assert cdb.max_residents is not None
    assert 1 <= static.max_residents < cdb.max_residents
    for mode in (static, cdb):
        assert mode.metrics["preemptions"] == 0
        assert (mode.metrics["peak_kv_bytes"] or 0) <= 4_000_000


def test_memory_cannot_be_equal_without_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--set", "equal=memory"]) == 2
    assert "equal: memory needs a KV budget to share" in capsys.readouterr().err

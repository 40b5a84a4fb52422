"""`equal: memory`: every mode gets the residents that its own requests leave room for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdbench.bench.equal_memory import request_rows, residents_that_fit
from cdbench.bench.memory_held import equal_memory_of
from cdbench.bench.plan import Subject, make_plan
from cdbench.bench.rederive import check
from cdbench.cli.main import main
from cdbench.config import load_config
from cdbench.errors import UsageError
from cdbench.grammar import parse_mode
from cdbench.render.memory import memory_table
from cdbench.runtime.cache_shape import CacheShape
from cdbench.runtime.core import Request, Stage
from cdbench.schema import read_result, read_workload
from tests.recorded import scripted_run
from tests.test_verdict import make_result

# Rows of unlike size a stage; a token at full depth keeps 4 core rows and one of each other stage.
SHAPE = CacheShape(4, {Stage.PRELUDE: 10, Stage.CORE: 20, Stage.CODA: 10})
CORE_ONLY = CacheShape(4, {Stage.CORE: 20})


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
    boundary = {Stage.PRELUDE: 5, Stage.CODA: 5}
    assert request_rows(subjects["cdb"], SHAPE, one) == boundary | {Stage.CORE: 3 * 4 + 1 + 2}
    assert request_rows(subjects["static"], SHAPE, one) == boundary | {Stage.CORE: 5 * 4}


def test_a_fixed_depth_keeps_no_more_slots_than_its_loops(subjects: dict[str, Subject]) -> None:
    shape = CacheShape(2, {Stage.CORE: 20})
    one = request("a", prompt=3, depths=[4, 1, 2])
    assert request_rows(subjects["static@2"], shape, one) == {Stage.CORE: 5 * 2}


def test_the_largest_requests_decide_how_many_fit(subjects: dict[str, Subject]) -> None:
    requests = [request(str(n), prompt=n, depths=[4]) for n in (1, 3, 2)]
    static = subjects["static"]
    # 12, 8 and 4 core rows, and one to spare for each where there are several.
    for rows, fit in ((12, 1), (13, 1), (21, 1), (22, 2), (26, 2), (27, 3), (100, 3)):
        assert residents_that_fit(static, CORE_ONLY, requests, rows * 20) == fit
    with pytest.raises(UsageError, match=r"longest request of mode static, which needs 240;"):
        residents_that_fit(static, CORE_ONLY, requests, 12 * 20 - 1)


def test_every_stages_pool_must_hold_them(subjects: dict[str, Subject]) -> None:
    """Pools are made for tokens at half their slots: full depth runs out of core rows first."""
    requests = [request(str(n), prompt=1, depths=[4]) for n in range(50)]
    budget = 60 * (10 + 2 * 20 + 10)
    assert SHAPE.pool_rows(budget) == {Stage.PRELUDE: 60, Stage.CORE: 120, Stage.CODA: 60}
    assert residents_that_fit(subjects["static"], SHAPE, requests, budget) == 120 // 5
    # Without layers beside the core, all of the budget is the core's.
    assert residents_that_fit(subjects["static"], CORE_ONLY, requests, budget) == 180 // 5


@pytest.mark.parametrize("model", ["demo-ouro", "demo-huginn"])
def test_a_run_gives_the_adaptive_mode_more_residents_of_the_same_memory(
    model: str, tmp_path: Path
) -> None:
    """Also where prelude and coda have layers, and so pools of their own."""
    out, budget = tmp_path / "run", 3_000_000
    code = main(
        [
            *("run", "--model", model, "--dense", "", "--modes", "static,cdb", "--stages", "none"),
            *("--limit", "2", "--requests", "12", "--blocks", "1", "--work", "equal"),
            *("--equal", "memory", "--set", f"kv.budget_bytes={budget}", "--out", str(out)),
            *("--set", "workload.max_new_tokens=24"),
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
        assert (mode.metrics["peak_kv_bytes"] or 0) <= budget


def test_budget_residents_and_what_a_request_keeps_are_said_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, budget = tmp_path / "run", 900_000
    code = main(
        [
            *("run", "--model", "demo-ouro", "--dense", "unrolled", "--stages", "none"),
            *("--modes", "dense:unrolled,static,cdb", "--exit", "cdf@0.3", "--work", "equal"),
            *("--limit", "1", "--requests", "5", "--blocks", "1", "--equal", "memory"),
            *("--set", f"kv.budget_bytes={budget}", "--set", "engine.width=2"),
            *("--set", "workload.max_new_tokens=6", "--out", str(out)),
        ]
    )
    assert code == 3  # one block has no interval
    said = " ".join(capsys.readouterr().out.split())
    assert "KV budget of each mode: 900,000 bytes" in said
    assert "the budget decides what timed modes hold, not engine.width" in said
    assert "equal memory: 900 kB of KV for each mode" in said
    assert "their speed-ups are those of width as well as of depth" in said
    result = read_result(out)
    section = result.equal_memory
    assert section is not None
    assert section.budget_bytes == budget
    assert list(section.modes) == ["dense:unrolled", "static", "cdb"]
    for label, found in section.modes.items():
        assert found.residents == result.modes[label].max_residents == result.modes[label].width
    # A prompt token keeps 4 slots of 3,072 bytes, a later one as many as it ran loops; the unrolled
    # model's layers are the slots.
    works = list(read_workload(out / result.files["workload"]))
    full = sum(4 * (len(r.prompt) + len(r.tokens) - 1) for r in works)
    kept = sum(4 * len(r.prompt) + sum(r.executed_depths[1:]) for r in works)
    for label, slots in (("dense:unrolled", full), ("static", full), ("cdb", kept)):
        assert section.modes[label].kv_bytes_per_request == pytest.approx(slots * 3072 / 5)
    assert section.modes["static"].residents < section.modes["cdb"].residents
    assert check(out) == []


def test_where_the_cap_is_equal_nothing_is_said_of_memory() -> None:
    assert equal_memory_of([scripted_run("cdb", 0, 0)], None) is None
    assert not memory_table(make_result({})).rows
    assert equal_memory_of([], 1000) is None


def test_memory_cannot_be_equal_without_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--set", "equal=memory"]) == 2
    assert "equal: memory needs a KV budget to share" in capsys.readouterr().err

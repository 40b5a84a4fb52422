"""The script that watches memory: growth on samples with known answers, and a lost row seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.row_pool import RowPool
from scripts import long_run_memory as memory
from scripts.work_per_tick import small_model

Capture = pytest.CaptureFixture[str]


def samples(*held: tuple[int, int]) -> tuple[memory.Sample, ...]:
    """At every hundredth request: pool rows and bytes of the process."""
    return tuple(
        memory.Sample(100 * n, rows, 0, 64, 10, rss) for n, (rows, rss) in enumerate(held, start=1)
    )


def run_of(*held: tuple[int, int], rows_left: int = 0) -> memory.LongRun:
    return memory.LongRun("x", samples(*held), 0, 0, None, rows_left)


def test_growth_is_per_thousand_requests() -> None:
    leaking = samples(*((5, 1000 + 300 * n) for n in range(17)))
    found = memory.growth(leaking, "rss_bytes")
    assert found is not None
    assert found.estimate == pytest.approx(3000)
    assert found.n == 8
    assert [found.low, found.high] == pytest.approx([3000, 3000])
    steady = memory.growth(samples(*((5, 1000 + n % 2) for n in range(17))), "rss_bytes")
    assert steady is not None
    assert 0 in steady
    assert memory.growth(leaking[:8], "rss_bytes") is None


def test_pools_may_grow_at_first_and_not_later() -> None:
    early = [(4, 9), *[(8, 9)] * 7]
    assert run_of(*early).tables_are_flat
    assert not run_of(*early[:-1], (16, 9)).tables_are_flat
    assert not run_of(*early, rows_left=1).tables_are_flat


def test_a_long_run_loses_no_row_and_its_record_says_what_was_held(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # no name is folded
    out = tmp_path / "memory.json"
    assert memory.main(["--tiny", "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["tables_are_flat"] is True
    for run in document["runs"]:
        assert run["rows_left"] == 0
        assert run["samples"][-1]["finished"] == memory.TINY_REQUESTS
        assert run["first"]["finished"] >= memory.TINY_REQUESTS / 4
        assert run["rss_growth_bytes_per_1000"]["n"] == memory.PARTS
    free, short = document["runs"][1], document["runs"][2]
    assert free["preemptions"] == 0 < short["preemptions"]
    assert free["prefix_hit_rate"] is None
    assert short["prefix_hit_rate"] > 0.1
    assert "short of memory" in capsys.readouterr().out


def test_a_lost_row_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right, lost = RowPool.give_back, list[bool]()

    def loses_one(self: RowPool, rows: object) -> None:
        right(self, rows if lost else rows[1:])  # type: ignore[index, arg-type]
        lost.append(True)

    monkeypatch.setattr(RowPool, "give_back", loses_one)
    engine = Engine(small_model(), EngineConfig(mode="cdb", max_residents=8))
    run = memory.long_run("cdb", engine, count=40, every=10)
    assert run.rows_left == 1
    assert not run.tables_are_flat

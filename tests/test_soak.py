"""The long run's script: what it writes, and that it sees a fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdbench.runtime.stage_cache import SavedRows, StageCache
from scripts import soak

Capture = pytest.CaptureFixture[str]


def test_a_short_run_is_exact_and_written_down(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "soak" / "result.json"
    assert soak.main(["--examples", "12", "--seed", "3", "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["verdict"] == "every example exact"
    assert document["examples_run"] == document["examples_planned"] == 12
    assert document["failures"] == []
    assert document["largest_logprob_difference"] < 1e-6
    assert document["manifest"]["packages"]["torch"]
    total, by_model = document["total"], document["by_model"]
    assert total == json.loads(capsys.readouterr().out)
    assert set(by_model) == {"ouro", "staged", "huginn", "universal"}
    for what in ("examples", "requests", "launches"):
        assert total[what] == sum(counts[what] for counts in by_model.values()) > 0
    assert total["preemptions"] > 0


def test_a_fault_is_counted_and_named(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = StageCache.restore

    def wrong(self: StageCache, resident: int, saved: SavedRows) -> None:
        right(self, resident, SavedRows(saved.line, saved.contents * 0))

    monkeypatch.setattr(StageCache, "restore", wrong)
    out = tmp_path / "result.json"
    assert soak.main(["--examples", "12", "--seed", "3", "--out", str(out)]) == 1
    document = json.loads(out.read_text())
    assert document["verdict"] == f"{document['examples_failed']} examples failed"
    first = document["failures"][0]
    assert first["where"].startswith("pressure.py")
    assert soak.main(["--only", str(first["example"]), "--seed", "3"]) == 1

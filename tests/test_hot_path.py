"""The script that times the engine alone: it measures decode, and its figures are what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts import hot_path
from scripts.hot_path_cells import CELLS, measure

STAGES = ("core", "coda", "prelude")


def block(core_us: float, tick_us: float) -> dict[str, Any]:
    """What one process says, with one width."""
    stages = {stage: {"inside_us": core_us, "gap_us": 1.0} for stage in STAGES}
    cells = [
        {
            "mode": mode,
            "depths": depths,
            "width": 8,
            "stages": stages,
            "cycle_us": 3 * core_us + 3,
            "us_per_tick": tick_us * (2 if mode == "cdb" else 1),
            "us_per_token": tick_us / 8,
        }
        for mode, depths in CELLS
    ]
    return {"cells": cells, "profile": []}


def test_one_process_measures_every_cell_and_stage() -> None:
    found = measure([1, 3], ticks=12, profiles=True)
    keys = [hot_path.cell_key(cell) for cell in found["cells"]]
    assert keys == [(mode, depths, width) for width in (1, 3) for mode, depths in CELLS]
    for cell in found["cells"]:
        assert set(cell["stages"]) == set(STAGES)
        assert all(part["inside_us"] > 0 < part["gap_us"] for part in cell["stages"].values())
        assert cell["core_rows"] == cell["width"], "launches are full: only decode is measured"
    assert any("runner.py" in line["function"] for line in found["profile"])
    json.dumps(found)


def test_figures_are_medians_over_blocks() -> None:
    blocks = [block(10.0, 1.0), block(30.0, 2.0), block(20.0, 9.0)]
    for cell in hot_path.medians(blocks):
        assert cell["stages"]["core"]["inside_us"] == 20.0
        assert cell["cycle_us"] == 63.0
    assert hot_path.over_static(blocks) == {8: 2.0}


def test_ratios_are_taken_within_blocks() -> None:
    before = [block(10.0, tick) for tick in (10.0, 40.0, 20.0, 5.0, 8.0, 9.0)]
    after = [block(10.0, cell["cells"][0]["us_per_tick"] / 2) for cell in before]
    for ratio in hot_path.ratios(before, after, "us_per_tick"):
        assert ratio["estimate"] == pytest.approx(0.5)
        assert (ratio["low"], ratio["high"]) == pytest.approx((0.5, 0.5))


def test_checkouts_take_turns_and_the_document_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, bool]] = []

    def run_block(code: hot_path.Code, plan: hot_path.Plan, profiles: bool) -> dict[str, Any]:
        asked.append((code.name, profiles))
        return block(10.0, 1.0 if code.name == "old" else 0.5)

    monkeypatch.setattr(hot_path, "run_block", run_block)
    root, out = str(hot_path.ROOT), tmp_path / "new" / "hot-path.json"
    codes = ["--code", f"old={root}", "--code", f"new={root}"]
    assert hot_path.main([*codes, "--blocks", "2", "--out", str(out)]) == 0
    assert asked == [("old", False), ("new", False), ("new", True), ("old", True)]
    document = json.loads(out.read_text())
    assert document["ratios"]["of"] == "new"
    assert document["ratios"]["us_per_tick"][0]["estimate"] == pytest.approx(0.5)
    assert document["manifest"]["command"][0] == "hot_path.py"
    shown = capsys.readouterr().out
    assert "Host time of the engine: old" in shown
    assert "Host time of the engine: new" in shown


def test_a_process_of_its_own_says_the_same_things() -> None:
    found = hot_path.run_block(
        hot_path.Code("this", hot_path.ROOT), hot_path.Plan((2,), 8), profiles=False
    )
    assert len(found["cells"]) == len(CELLS)


def test_a_folder_without_the_package_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refusal:
        hot_path.main(["--code", f"old={tmp_path}"])
    assert refusal.value.code == 2
    assert "give NAME=FOLDER of a checkout" in capsys.readouterr().err

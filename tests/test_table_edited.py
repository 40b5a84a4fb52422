"""A table takes in no run or sweep that was edited, nor a file too large to be one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdbench.compare import sides
from cdbench.errors import UsageError
from cdbench.render.styles.points import read_points
from cdbench.schema import Result
from tests.tabled import INVALID, answered_run, at_threshold, timed_run, written, written_sweep
from tests.test_raw_records import written as recorded


def swept(path: Path, second: Result | None = None) -> str:
    """A sweep of two cells; without another second one its run is INVALID."""
    cell = at_threshold(0.5, 1.6, 1.8, validity=INVALID) if second is None else second
    changes = [{"exit": "cdf@0.9"}, {"exit": "cdf@0.5"}]
    results = [at_threshold(0.9, 3.0, 1.2), cell]
    return written_sweep(path / "sweep", results, changes, varied=["exit"])


def test_an_edited_run_is_no_row(tmp_path: Path) -> None:
    found = answered_run()
    assert found.accuracy is not None
    cdb = found.accuracy.modes["cdb"]
    assert cdb.rate is not None
    better = cdb.model_copy(update={"rate": cdb.rate.model_copy(update={"estimate": 0.99})})
    accuracy = found.accuracy.model_copy(update={"modes": {**found.accuracy.modes, "cdb": better}})
    path = written(tmp_path / "a", found.model_copy(update={"accuracy": accuracy}))
    with pytest.raises(UsageError, match=r"accuracy\.cdb.*edited, damaged"):
        read_points([path])


def test_an_edited_cell_of_a_sweep_is_named(tmp_path: Path) -> None:
    sweep = swept(tmp_path, at_threshold(0.5, 1.6, 1.8, status="interrupted"))
    with pytest.raises(UsageError, match=r"cell 2 of .*interrupted"):
        read_points([sweep])


def test_a_cell_is_invalid_where_its_run_is_whatever_the_sweep_says(tmp_path: Path) -> None:
    sweep = swept(tmp_path)
    path = Path(sweep) / "sweep.json"
    document = json.loads(path.read_text())
    document["cells"][1] |= {"verdict": "VALID", "reasons": []}
    path.write_text(json.dumps(document))
    _, second = read_points([sweep]).points
    assert second.invalid
    assert second.reasons == tuple(INVALID.reasons)


@pytest.mark.parametrize("name", ["result.json", "sweep.json"])
def test_a_file_too_large_to_be_a_run_is_not_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = swept(tmp_path)
    run = written(tmp_path / "run", timed_run())
    path = Path(sweep if name == "sweep.json" else run)
    monkeypatch.setattr(sides, "MOST_BYTES", (path / name).stat().st_size - 1)
    with pytest.raises(UsageError, match="bytes, more than any result"):
        read_points([str(path)])


def test_raw_records_beside_a_run_contradict_an_edit_that_nothing_else_does(
    tmp_path: Path,
) -> None:
    run = recorded(tmp_path / "run")
    file = run / "result.json"
    assert read_points([str(run)]).points
    document = json.loads(file.read_text())
    document["workload"]["requests"] += 1
    file.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"workload\.requests.*edited, damaged"):
        read_points([str(run)])

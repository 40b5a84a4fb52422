"""A sweep whose files were torn or changed: that cell is failed and can run again, others go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdbench.config import RunConfig
from cdbench.errors import UsageError
from cdbench.render.sweep_report import summary_table
from cdbench.schema import write_result
from cdbench.schema.files import read_document, write_document
from cdbench.schema.stages import STAGES_FILE
from cdbench.schema.sweep import SweepDocument
from cdbench.sweep.cells import Sweep, expand
from cdbench.sweep.directory import SweepDirectory
from cdbench.sweep.file import parse_sweep
from cdbench.sweep.session import Options, plan, run
from tests.recorded import scripted_stages
from tests.test_schema import small_result


def sweep_of(**keys: Any) -> Sweep:
    base = {"model": "demo-ouro", "modes": ["static", "cdb"], "work": ["equal"]}
    grid = {"engine.max_residents": [2, 4, 8]}
    return expand(parse_sweep({"name": "s", "base": base, "grid": grid, **keys}, "s"), "s")


class Runs:
    """Writes what a cell leaves; knows how often it did."""

    def __init__(self) -> None:
        self.ran: list[int] = []

    def __call__(self, config: RunConfig, directory: Path) -> bool:
        self.ran.append(config.engine.max_residents)
        directory.mkdir(parents=True)
        write_result(directory, small_result())
        write_document(directory / STAGES_FILE, scripted_stages())
        return True


def go(sweep: Sweep, out: Path, runs: Runs, **options: Any) -> SweepDocument:
    return run(sweep, Options(str(out), **options), lambda line: None, runs)


DAMAGE = {
    "cut off": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "of another version": lambda text: text.replace('"schema_version": 1', '"schema_version": 99'),
    "no object": lambda text: "[]",
    "no text": lambda text: "\udcff",
}


FILES = [("run", "result.json"), ("run", "cell.json"), ("stages", "stages.json")]
DAMAGED = [
    (verb, name, how)
    for verb, name in FILES
    for how in DAMAGE
    if not (name == "cell.json" and how == "of another version")  # it has none
]


@pytest.mark.parametrize(("verb", "name", "how"), DAMAGED)
def test_a_damaged_file_fails_its_cell_alone(
    verb: str, name: str, how: str, tmp_path: Path
) -> None:
    sweep, runs, out = sweep_of(verb=verb), Runs(), tmp_path / "o"
    assert go(sweep, out, runs).status == "complete"
    victim = sweep.cells[1]
    file = out / "round-1" / victim.hash / name
    file.write_text(DAMAGE[how](file.read_text()), errors="surrogateescape")
    document = go(sweep, out, runs)
    assert [c.rounds[0].state for c in document.cells] == ["finished", "failed", "finished"]
    error = document.cells[1].rounds[0].error
    assert error is not None
    assert str(file) in error
    assert "--retry-failed" in error
    assert document.status == "partial"
    assert document.cells[1].verdict is None
    assert summary_table(document).rows[1].cells[-1].value == "failed"
    planned = plan(sweep, str(out), retry_failed=True)
    assert planned.estimate is not None
    assert planned.estimate.cells_left == 1
    assert len(runs.ran) == 3  # only when asked
    again = go(sweep, out, runs, retry_failed=True)
    assert again.status == "complete"
    assert runs.ran[3:] == [4]
    assert len(list((out / "earlier").iterdir())) == 1  # kept


def test_a_file_in_a_cells_place_is_moved_away(tmp_path: Path) -> None:
    sweep, runs, out = sweep_of(), Runs(), tmp_path / "o"
    go(sweep, out, runs, limit=1)
    waiting = next(c for c in sweep.cells if not (out / "round-1" / c.hash).exists())
    (out / "round-1" / waiting.hash).write_text("mine")
    assert go(sweep, out, runs).status == "complete"
    (kept,) = (out / "earlier").iterdir()
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("text", ["", '{"name": "s", "verb"'])
def test_a_torn_document_is_made_anew_from_the_cells(text: str, tmp_path: Path) -> None:
    sweep, runs, out = sweep_of(), Runs(), tmp_path / "o"
    before = go(sweep, out, runs)
    (out / "sweep.json").write_text(text)
    assert go(sweep, out, runs) == before
    assert len(runs.ran) == 3
    assert read_document(SweepDocument, out / "sweep.json") == before


def test_a_whole_document_of_something_else_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "o"
    out.mkdir()
    (out / "sweep.json").write_text('{"mine": 1}')
    with pytest.raises(UsageError, match=r"sweep\.json"):
        go(sweep_of(), out, Runs())
    assert (out / "sweep.json").read_text() == '{"mine": 1}'


def test_results_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    sweep, out = sweep_of(), tmp_path / "o"
    go(sweep, out, Runs())
    (out / "round-1" / sweep.cells[0].hash / "result.json").write_text("{")
    directory = SweepDirectory.of(str(out), "s")
    assert directory.results(sweep.cells[0], 1) == []
    assert len(directory.results(sweep.cells[1], 1)) == 1

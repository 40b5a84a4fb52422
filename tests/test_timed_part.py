"""The timed part: when blocks end, and what is measured between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cdbench.bench import timed_part
from cdbench.bench.equal import TimedRun, TimedSubject
from cdbench.cli.main import main
from cdbench.schema import Result, StagePassRecord, read_result, read_stage_passes
from cdbench.schema.stages import StageCurves
from tests.recorded import scripted_passes, scripted_run, scripted_stages

Walls = Callable[[str, int], float]


def run(out: Path, *arguments: str) -> Result:
    """A run of scripted timed runs; it is INVALID, since those are not of its workload."""
    modes = ["run", "ci", "--modes", "static,cdb", "--out", str(out)]
    assert main([*modes, *arguments]) == 3
    return read_result(out)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Walls], None]:
    """Timed runs whose walls, in seconds, follow from mode and block."""

    def use(walls: Walls) -> None:
        def timed(self: TimedSubject, block: int, order: int) -> TimedRun:
            label = self.subject.label
            made = scripted_run(label, max(block, 0), max(order, 0))
            trace = replace(made.trace, wall_s=walls(label, block))
            return TimedRun(block, order, self.subject, trace, made.results)

        monkeypatch.setattr(TimedSubject, "run", timed)

    return use


def test_a_narrow_interval_ends_the_run_at_the_first_look(
    tmp_path: Path, scripted: Callable[[Walls], None]
) -> None:
    scripted(lambda label, block: 20.0 if label == "static" else 10.0)
    result = run(tmp_path / "a", "--set", "repeats.interval=0.05", "--stages", "none")
    assert result.looks is not None
    assert (result.looks.ended_after, result.looks.narrow) == (6, True)
    assert len(result.blocks) == 6 * 4
    (speedup,) = [c.speedup for c in result.comparisons if (c.mode, c.scope) == ("cdb", "e2e")]
    assert speedup.estimate == pytest.approx(2.0)


def test_a_wide_interval_goes_on_to_the_last_look_and_all_intervals_have_its_level(
    tmp_path: Path, scripted: Callable[[Walls], None]
) -> None:
    scripted(lambda label, block: 20.0 if label == "static" else 10.0 + 3 * (block % 2))
    result = run(tmp_path / "a", "--set", "repeats.interval=0.05", "--stages", "none")
    assert result.looks is not None
    assert (result.looks.ended_after, result.looks.narrow) == (24, False)
    assert result.looks.level < 0.96
    (speedup,) = [c.speedup for c in result.comparisons if (c.mode, c.scope) == ("cdb", "e2e")]
    assert speedup == result.looks.speedup


def test_without_an_interval_the_blocks_asked_for_run(
    tmp_path: Path, scripted: Callable[[Walls], None]
) -> None:
    scripted(lambda label, block: 20.0)
    result = run(tmp_path / "a", "--blocks", "2", "--stages", "none")
    assert result.looks is None
    assert len(result.blocks) == 2 * 4


def test_stage_passes_are_made_before_the_first_block_and_after_each(
    tmp_path: Path, scripted: Callable[[Walls], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(lambda label, block: 20.0)
    told: list[str] = []

    class Meter:
        def __init__(self, *_: object, **__: object) -> None:
            self.passes = 0

        def one_pass(self) -> None:
            self.passes += 1
            told.append("stages")

        @property
        def kept(self) -> tuple[StagePassRecord, ...]:
            return tuple(scripted_passes(self.passes))

        def curves(self) -> StageCurves:
            return scripted_stages().model_copy(update={"passes": self.passes})

    keep = timed_part.TimedPart._keep

    def kept(self: timed_part.TimedPart, made: TimedRun) -> None:
        told.append("run")
        keep(self, made)

    monkeypatch.setattr(timed_part, "StageMeter", Meter)
    monkeypatch.setattr(timed_part.TimedPart, "_keep", kept)
    result = run(tmp_path / "a", "--blocks", "2")
    assert told == ["stages", *["run"] * 4, "stages", *["run"] * 4, "stages"]
    assert StageCurves.model_validate(result.stages).passes == 3
    passes = list(read_stage_passes(tmp_path / "a" / result.files["stages"]))
    assert passes == scripted_passes(3)


def test_saved_stage_curves_of_something_else_are_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "stages.json"
    saved.write_text(scripted_stages().model_dump_json())
    out = tmp_path / "a"
    assert main(["run", "ci", "--stages", str(saved), "--out", str(out)]) == 2
    assert "measured for something else" in capsys.readouterr().err
    assert not out.exists()


def test_saved_stage_curves_that_do_not_reach_far_enough_are_left_out_and_it_is_said(
    tmp_path: Path, scripted: Callable[[Walls], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(lambda label, block: 20.0)
    monkeypatch.setattr(timed_part, "read_curves", lambda *_: scripted_stages())
    result = run(tmp_path / "a", "--blocks", "1", "--stages", "saved.json")
    assert result.stages is None
    (flag,) = [flag for flag in result.validity.flags if "stage curves" in flag]
    assert "no waterfall: they reach" in flag


def test_an_error_in_the_middle_leaves_the_result_of_what_was_measured(
    tmp_path: Path, scripted: Callable[[Walls], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def walls(label: str, block: int) -> float:
        if block == 1:
            raise RuntimeError("the device is gone")
        return 20.0

    scripted(walls)
    out = tmp_path / "a"
    assert main(["run", "ci", "--modes", "static,cdb", "--stages", "none", "--out", str(out)]) == 4
    result = read_result(out)
    assert result.status == "interrupted"
    assert len(result.blocks) == 4
    assert "an error ended it: the device is gone" in result.validity.reasons

"""`coda_min_rows: auto`, `max_itl_s` and `ride` in a run: what is refused, used, said and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdbench.bench.rederive import check
from cdbench.cli.main import main
from cdbench.config import load_config
from cdbench.errors import UsageError
from cdbench.schema import Result, read_result
from cdbench.schema.launches import member_name, read_launches
from cdbench.stages import meter
from tests.recorded import scripted_stages
from tests.tiny import FIXTURE

SMALL = [
    *("run", "--model", str(FIXTURE), "--work", "equal"),
    *("--blocks", "1", "--exit", "cdf@0.5", "--dtype", "float32"),
    *("--set", "engine.max_residents=4", "--set", "engine.prefill_tokens=4"),
]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A workload for the vocabulary of the small checkpoint."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = [{"prompt": [3 + i, 5, 7, 2 * i, 1, i], "max_new_tokens": 4 + i} for i in range(8)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def run(prompts: str, out: Path, *overrides: str) -> Result:
    """A run of one block, so INVALID, but whole. What the machine can do is not measured."""
    keys = (f"workload.source={prompts}", "modes=static,lockstep,cdb", *overrides)
    given = [argument for key in keys for argument in ("--set", key)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meter, "measure_floors", lambda *_: scripted_stages().floors)
        assert main([*SMALL, *given, "--out", str(out)]) == 3
    return read_result(out)


@pytest.fixture(scope="module")
def everything(prompts: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all three."""
    out = tmp_path_factory.mktemp("runs") / "all"
    run(prompts, out, "engine.coda_min_rows=auto", "engine.ride=true", "engine.max_itl_s=0.5")
    return out


def test_the_minimum_chosen_is_said_beside_the_mode_it_was_chosen_in(everything: Path) -> None:
    modes = read_result(everything).modes
    assert (modes["cdb"].note or "").startswith("coda_min_rows auto: mostly ")
    assert "coda_min_rows" not in f"{modes['static'].note} {modes['lockstep'].note}"


def test_what_decides_is_said_of_the_run(everything: Path) -> None:
    model = read_result(everything).model
    assert model is not None
    assert "prompts give way where a gap between tokens would pass 0.5 s" in model.notes
    assert any("prompt chunks share core launches" in note for note in model.notes)


def test_mixed_launches_are_kept_and_split_by_the_stage_curves(everything: Path) -> None:
    result = read_result(everything)
    launches = read_launches(everything, member_name(0, 2, result.blocks[2].mode))
    assert any(x.prefill_rows and x.decode_rows for x in launches)
    assert all(block.decode_wall_s is not None for block in result.blocks)
    assert {c.scope for c in result.comparisons if c.mode == "cdb"} == {"decode", "e2e"}
    assert result.waterfall is not None
    assert result.waterfall["cdb"].rows


def test_a_run_with_mixed_launches_is_rederived_from_its_directory(everything: Path) -> None:
    assert check(everything) == []


def test_without_curves_mixed_launches_leave_no_decode_scope(prompts: str, tmp_path: Path) -> None:
    result = run(prompts, tmp_path / "a", "engine.ride=true", "stages=none", "modes=static,cdb")
    assert {block.decode_wall_s for block in result.blocks if block.mode == "cdb"} == {None}
    assert {c.scope for c in result.comparisons} == {"e2e"}


def test_curves_are_measured_for_auto_alone_and_every_repeat_has_the_same_launches(
    prompts: str, tmp_path: Path
) -> None:
    """Nothing else asks for curves here. What is learned of exits is forgotten between repeats."""
    result = run(prompts, tmp_path / "a", "engine.coda_min_rows=auto", "modes=cdb")
    assert result.stages is not None
    assert "mostly" in (result.modes["cdb"].note or "")
    assert len(result.blocks) == 2
    for name in ("core_launches", "coda_launches", "prelude_launches"):
        assert len({block.metrics[name] for block in result.blocks}) == 1, name


def test_auto_is_refused_where_no_stage_is_measured() -> None:
    with pytest.raises(UsageError, match=r"engine\.coda_min_rows: auto chooses from stage curves"):
        load_config(None, ("engine.coda_min_rows=auto", "stages=none"))


@pytest.mark.parametrize("others", ["modes=[static, lockstep]", "work=[live]"])
def test_auto_is_not_refused_where_nothing_would_be_timed_by_it(others: str) -> None:
    config = load_config(None, ("engine.coda_min_rows=auto", "stages=none", others))
    assert config.engine.coda_min_rows == "auto"


def test_curves_that_do_not_reach_are_said_and_the_minimum_is_one(
    prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def narrow(self: Any, curves: Any, prompt_loops: int) -> None:
        raise ValueError("measured up to 2")

    monkeypatch.setattr("cdbench.runtime.engine.Engine.use_curves", narrow)
    result = run(prompts, tmp_path / "a", "engine.coda_min_rows=auto", "modes=cdb")
    assert "since there were no stage curves" in (result.modes["cdb"].note or "")
    assert any(
        flag == "mode cdb decides without the stage curves: measured up to 2"
        for flag in result.validity.flags
    )


@pytest.mark.parametrize("override", ["engine.ride=2", "engine.max_itl_s=0", "engine.max_itl_s=-1"])
def test_bad_values_are_refused(override: str) -> None:
    with pytest.raises(UsageError, match=override.partition("=")[0].replace(".", r"\.")):
        load_config(None, (override,))

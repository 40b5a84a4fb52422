"""What a sweep refuses, all of it before the first cell runs: sizes, keys, sources, models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cdbench.bench.workload import prepare
from cdbench.cli.main import main
from cdbench.config import RunConfig
from cdbench.errors import UsageError
from cdbench.evals.suite import load_suite
from cdbench.models.loading import load_model
from cdbench.sweep import preflight, runners
from cdbench.sweep.cells import Sweep, expand
from cdbench.sweep.changes import MOST_RUNS
from cdbench.sweep.file import parse_sweep, read_sweep
from cdbench.sweep.refusals import Refusal, refuse

BASE = {"model": "demo-ouro", "modes": ["static", "cdb"], "work": ["equal"], "stages": "none"}
SMALL = {**BASE, "tasks": ["demo_add"], "limit": 2, "workload": {"requests": 2}}


def sweep_of(base: dict[str, Any] | None = None, **keys: Any) -> Sweep:
    return expand(parse_sweep({"name": "s", "base": {**BASE, **(base or {})}, **keys}, "s"), "s")


# What the file by itself shows.


def test_too_many_cells_are_counted_and_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: object) -> None:
        raise AssertionError("a cell was built")

    monkeypatch.setattr("cdbench.sweep.cells.all_changes", build)
    numbers = list(range(1, 1001))
    grid = {"engine.max_residents": numbers, "workload.requests": numbers}
    wanted = r"s: 1,000,000 cells \(1000 x 1000 values\) are 1,000,000 runs"
    with pytest.raises(UsageError, match=wanted):
        sweep_of(grid=grid)
    with pytest.raises(UsageError, match=rf"1,000 cells in 11 rounds are 11,000 .* {MOST_RUNS:,}"):
        sweep_of(grid={"workload.requests": numbers}, rounds=11)


def test_as_many_cells_as_are_allowed_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdbench.sweep.changes.MOST_RUNS", 12)
    grid = {"engine.max_residents": [1, 2, 3], "workload.requests": [1, 2]}
    assert len(sweep_of(grid=grid, rounds=2).cells) == 6
    with pytest.raises(UsageError, match=r"7 cells .*in 2 rounds are 14 runs"):
        sweep_of(grid=grid, rounds=2, include=[{"dtype": "float64"}])


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"grid": {"out": ["a", "b"]}}, "s: out: every cell has a directory of its own"),
        ({"link": [{"out": "a"}]}, "out: every cell has"),
        ({"include": [{"out": "a"}]}, "out: every cell has"),
        ({"base": {"out": "a"}}, "base: out: every cell has"),
        ({"exclude": [{}]}, "an empty pattern matches every cell"),
        ({"exclude": [{"engine.widht": None}]}, "exclude: unknown key `engine.widht`"),
        ({"exclude": [{"exitt": None}]}, "did you mean `exit`"),
        ({"include": [{"engine.widht": 3}]}, "did you mean `engine.width`"),
        ({"link": [{"engine.widht": 3}]}, "did you mean `engine.width`"),
        ({"grid": {"exit": "none"}}, r"grid\.exit: 'none' is refused; write a list for each key"),
        ({"grid": [1]}, r"grid: \[1\] is refused"),
        ({"exclude": {"exit": "none"}}, "exclude: .* write a list of mappings"),
        ({"show": "cdb"}, "write a list of columns"),
        ({"rounds": "many"}, "rounds: 'many' is refused; write a whole number"),
        ({"verb": "stages", "grid": {"repeats.blocks": [1, 2]}}, "no stage curve depends on it"),
        ({"verb": "stages", "grid": {"modes": [["cdb"]]}}, "no stage curve depends on it"),
    ],
)
def test_what_a_cell_would_not_heed_is_refused(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        sweep_of(**keys) if "base" not in keys else sweep_of(keys["base"])
    assert "\n" not in str(caught.value)


def test_a_base_with_a_directory_runs_once_it_is_dropped() -> None:
    file = parse_sweep({"name": "s", "base": {**BASE, "out": "a"}}, "s")
    assert len(expand(file, "s", {"out": None}).cells) == 1


@pytest.mark.parametrize("text", ["", "# nothing\n", "null\n", "{}\n"])
def test_an_empty_file_is_no_sweep(text: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(UsageError, match="empty"):
        read_sweep(str(tmp_path / "s.yaml"))


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("grid:\n  exit: [none]\n  exit: [cdf@0.5]\n")
    with pytest.raises(UsageError, match=r"line 3.*'exit' is given twice"):
        read_sweep(str(tmp_path / "s.yaml"))


def test_patterns_may_overlap() -> None:
    sweep = sweep_of(
        grid={"exit.max_loops": [1, 2, 3], "engine.width": [4, 8]},
        exclude=[{"exit.max_loops": [1, 2]}, {"exit.max_loops": 1, "engine.width": 4}],
    )
    assert [cell.number for cell in sweep.cells] == [1, 2]


def test_many_twins_are_counted_and_few_named() -> None:
    sweep = sweep_of(grid={"engine.width": [4] * 9})
    assert len(sweep.cells) == 1
    assert len(sweep.notes) == 6
    assert sweep.notes[-1] == "3 more cells are like an earlier one: each runs once"


# How the refused ones are told.


def test_refused_cells_are_told_by_reason_in_one_line() -> None:
    many = [Refusal(n, f"x={n}", "too large") for n in (9, 2, 3, 4, 5, 6, 7, 8, 12)]
    with pytest.raises(UsageError) as caught:
        refuse([*many, Refusal(1, "x=1", "too small")], 20, "s")
    assert str(caught.value) == (
        "s: 10 of 20 cells refused: cell 1 (x=1): too small | cell 2 (x=2), cell 3 (x=3), "
        "cell 4 (x=4), cell 5 (x=5), cell 6 (x=6) and 7-9, 12: too large"
    )
    refuse([], 20, "s")


def test_a_thousand_reasons_stay_readable() -> None:
    with pytest.raises(UsageError) as caught:
        refuse([Refusal(n, f"x={n}", f"why {n}") for n in range(1, 1001)], 1000, "s")
    assert str(caught.value).endswith("| and 988 more for other reasons")
    assert len(str(caught.value)) < 1000


# What only the model and the files show.


def preflighted(base: dict[str, Any] | None = None, **keys: Any) -> dict[int, str]:
    """The cells that a run would refuse, by number."""
    sweep = sweep_of({**SMALL, **(base or {})}, **keys)
    check = preflight.preflight(sweep.verb, lambda cell: True, lambda line: None)
    return dict(check(sweep.cells))


def test_what_a_run_would_refuse_is_found_by_cell(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "one two"}\n')
    (tmp_path / "arrivals.txt").write_text("0.5\n")
    refused = preflighted(
        include=[
            {},
            {"exit.max_loops": 9},
            {"model": "nowhere"},
            {"workload.source": str(tmp_path / "no.jsonl")},
            {"workload.source": str(tmp_path / "rows.jsonl"), "workload.column": "nothing"},
            {"workload.arrivals": f"trace:{tmp_path / 'arrivals.txt'}"},
            {"exit": f"trace:{tmp_path / 'no-recording'}"},
            {"exit": "cdf@2"},
            {"exit": "latent-dif@0.1"},
            {"tasks": ["no_task"]},
            {"stages": str(tmp_path / "no-stages.json")},
            {"modes": ["static@7", "cdb"]},
            {"state_init": "random"},
            {"dense": ["demo-ouro"], "modes": ["dense:demo-ouro", "cdb"]},
            {"kv.budget_bytes": 1},
            {"workload.max_new_tokens": 4000},
        ]
    )
    assert 1 not in refused
    assert sorted(refused) == list(range(2, 17))
    for number, named in {
        2: "exit.max_loops: 9 is above",
        3: "no such demo",
        6: "holds 1 arrivals for 2 requests",
        7: "no-recording",
        9: "latent-dif",
        11: "no-stages.json",
    }.items():
        assert named in refused[number]


def test_each_model_source_and_task_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: dict[str, list[Any]] = {"model": [], "task": [], "work": []}

    def counting(what: str, real: Any) -> Any:
        def call(first: Any, *rest: Any, **named: Any) -> Any:
            loaded[what].append(first)
            return real(first, *rest, **named)

        return call

    for what, name, real in (
        ("model", "plan.load_model", load_model),
        ("work", "benchmark.prepare", prepare),
    ):
        monkeypatch.setattr(f"cdbench.bench.{name}", counting(what, real))
    monkeypatch.setattr("cdbench.evals.suite.load_suite", counting("task", load_suite))
    refused = preflighted(
        grid={
            "model": ["demo-ouro", "nowhere"],
            "exit": ["cdf@0.5", "cdf@0.9"],
            "workload.requests": [1, 2],
            "engine.max_residents": [2, 4, 8],
        }
    )
    assert len(refused) == 12
    assert sorted(loaded["model"]) == ["demo-ouro", "nowhere"]
    assert loaded["task"] == [("demo_add",)]
    assert len(loaded["work"]) == 2


def test_stage_cells_are_checked_as_their_own_verb_would() -> None:
    refused = preflighted(verb="stages", grid={"workload.output": [1, 4], "exit.max_loops": [4, 9]})
    assert sorted(refused) == [1, 2, 4]  # one token: no later one to measure a launch of
    assert "no request has a later token" in refused[1]
    assert "above what demo-ouro runs" in refused[4]


def test_a_failure_that_is_no_wrong_input_is_left_to_its_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(config: RunConfig, once: object) -> None:
        raise MemoryError

    monkeypatch.setattr(preflight, "sound", broken)
    assert preflighted() == {}


# The command.


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """Configurations that were run; a fake that measures nothing."""
    configs: list[RunConfig] = []

    def fake(config: RunConfig, directory: Path) -> bool:
        configs.append(config)
        return False

    monkeypatch.setattr(runners, "_run", fake)
    return configs


def command(tmp_path: Path, sweep: dict[str, Any], *flags: str) -> int:
    (tmp_path / "s.yaml").write_text(json.dumps(sweep))
    return main(["sweep", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "o"), *flags])


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_bad_cells_end_the_command_before_anything_runs_or_is_written(
    flags: Sequence[str],
    ran: list[RunConfig],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sweep = {"base": SMALL, "grid": {"exit.max_loops": [4, 9, 11]}}
    assert command(tmp_path, sweep, *flags) == 2
    printed = capsys.readouterr()
    assert "2 of 3 cells refused: cell 2 (exit.max_loops=9)" in printed.err
    assert "cell 3 (exit.max_loops=11)" in printed.err
    assert printed.out == ""
    assert not ran
    assert not (tmp_path / "o").exists()


def test_wrong_values_and_wrong_sources_are_told_together(
    ran: list[RunConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, {"base": SMALL, "grid": {"exit.max_loops": [0, 4, 9]}}) == 2
    assert "2 of 3 cells refused: cell 1 (" in capsys.readouterr().err


def test_a_dry_run_shows_its_plan_and_then_refuses(
    ran: list[RunConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = {"base": SMALL, "grid": {"exit.max_loops": [4, 9]}}
    assert command(tmp_path, sweep, "--dry-run", "--json") == 2
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert len(document["cells"]) == 2
    assert document["estimate"]["seconds"] is None
    assert "cell 2 (exit.max_loops=9): exit.max_loops: 9 is above" in printed.err
    assert command(tmp_path, {"base": SMALL}, "--dry-run") == 0
    assert not (tmp_path / "o").exists()


def test_cells_that_have_run_are_not_checked_again(
    ran: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cdbench.schema import write_result
    from cdbench.sweep.directory import SweepDirectory
    from tests.test_schema import small_result
    from tests.test_sweep import attempt_of

    checked: list[int] = []
    monkeypatch.setattr(
        preflight, "sound", lambda config, once: checked.append(config.engine.max_residents)
    )
    document = {"base": SMALL, "grid": {"engine.max_residents": [2, 4]}}
    (tmp_path / "s.yaml").write_text(json.dumps(document))
    first, _ = expand(read_sweep(str(tmp_path / "s.yaml")), "s").cells
    directory = SweepDirectory.of(str(tmp_path / "o"), "s")
    target = directory.cell(first, 1)
    directory.note(target, attempt_of(first))
    write_result(target, small_result())
    assert command(tmp_path, document, "--dry-run") == 0
    assert checked == [4]

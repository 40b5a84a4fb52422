"""`cdbench sweep`: which cells there are, what runs again and what does not, what is compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdbench.cli.main import main
from cdbench.config import RunConfig, parse_config
from cdbench.errors import UsageError
from cdbench.render.sweep_report import estimate_words, plan_table, short_names, summary_table
from cdbench.schema import (
    Validity,
    read_result,
    write_result,
)
from cdbench.schema.files import read_document, write_document
from cdbench.schema.sweep import CellAttempt, CellRound, SweepDocument
from cdbench.sweep import runners
from cdbench.sweep.cells import Cell, Sweep, cell_hash, expand
from cdbench.sweep.directory import SweepDirectory
from cdbench.sweep.execute import Job, estimate, jobs
from cdbench.sweep.file import (
    find_sweep,
    parse_sweep,
    read_sweep,
    set_values,
)
from cdbench.sweep.session import Options, plan, run
from tests.recorded import scripted_stages
from tests.test_schema import small_result
from tests.test_sweep_figures import timed_result

BASE = {"model": "demo-ouro", "modes": ["static", "cdb"], "work": ["equal"]}


def sweep_of(base: dict[str, Any] | None = None, **keys: Any) -> Sweep:
    return expand(parse_sweep({"name": "s", "base": {**BASE, **(base or {})}, **keys}, "s"), "s")


def changes(sweep: Sweep) -> list[dict[str, Any]]:
    return [cell.changes for cell in sweep.cells]


# Which cells there are.


def test_a_grid_is_the_product_of_its_lists_in_order() -> None:
    sweep = sweep_of(grid={"exit": ["none", "cdf@0.5"], "engine.max_residents": [8, 16]})
    assert changes(sweep) == [
        {"exit": exit_rule, "engine.max_residents": size}
        for exit_rule in ("none", "cdf@0.5")
        for size in (8, 16)
    ]
    last = sweep.cells[-1].config
    assert (last.exit.rule, last.exit.threshold, last.engine.width) == ("cdf", 0.5, 16)
    assert [cell.number for cell in sweep.cells] == [1, 2, 3, 4]


def test_linked_keys_vary_together_and_groups_multiply() -> None:
    pair = [{"exit.max_loops": 3, "dtype": "float32"}, {"exit.max_loops": 4, "dtype": "float64"}]
    one = sweep_of(link=pair)
    assert changes(one) == pair
    two = sweep_of(link=[pair, [{"kv.layout": "shared"}, {"kv.layout": "per-loop"}]])
    assert len(two.cells) == 4
    assert {c.config.exit.max_loops: c.config.dtype for c in two.cells} == {
        3: "float32",
        4: "float64",
    }
    assert len(sweep_of(link=pair, grid={"first_token": ["full", "select"]}).cells) == 4


def test_exclude_drops_matches_and_include_adds_cells() -> None:
    grid = {"exit": ["none", "cdf@0.5"], "engine.max_residents": [8, 16, 32]}
    sweep = sweep_of(
        grid=grid,
        exclude=[{"exit": "none", "engine.max_residents": [16, 32]}],
        include=[{"exit": "none", "engine.max_residents": 32}, {"dtype": "float64"}],
    )
    kept = [(c.get("exit"), c.get("engine.max_residents")) for c in changes(sweep)]
    assert kept == [
        ("none", 8),
        ("cdf@0.5", 8),
        ("cdf@0.5", 16),
        ("cdf@0.5", 32),
        ("none", 32),
        (None, None),
    ]
    assert sweep.varied == ("exit", "engine.max_residents", "dtype")


def test_a_pattern_may_name_what_the_base_has() -> None:
    base = {"workload": {"requests": 4}}
    with pytest.raises(UsageError, match="no cell is left"):
        sweep_of(base, grid={"exit": ["none"]}, exclude=[{"workload.requests": 4}])


def test_without_factors_a_sweep_is_its_base_or_its_included_cells() -> None:
    assert changes(sweep_of()) == [{}]
    assert changes(sweep_of(include=[{"dtype": "float64"}])) == [{"dtype": "float64"}]


@given(
    sizes=st.lists(st.integers(1, 64), min_size=1, max_size=5, unique=True),
    loops=st.lists(st.integers(1, 4), min_size=1, max_size=4, unique=True),
    dropped=st.integers(0, 3),
)
def test_cells_are_distinct_and_their_number_is_the_products(
    sizes: list[int], loops: list[int], dropped: int
) -> None:
    out = sizes[: min(dropped, len(sizes) - 1)]
    sweep = sweep_of(
        grid={"engine.max_residents": sizes, "exit.max_loops": loops},
        exclude=[{"engine.max_residents": out}] if out else [],
    )
    assert len(sweep.cells) == (len(sizes) - len(out)) * len(loops)
    assert len({cell.hash for cell in sweep.cells}) == len(sweep.cells)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"grid": {"engine.widht": [1]}}, "did you mean `engine.width`"),
        ({"base": {"modle": "x"}}, "did you mean `model`"),
        ({"grid": {"exit": []}}, "no values"),
        ({"link": [[]]}, "empty list"),
        ({"link": [{"dtype": "float32"}, {"device": "cpu"}]}, "same keys"),
        ({"grid": {"dtype": ["float32"]}, "link": [{"dtype": "float64"}]}, "varied twice"),
        ({"exclude": [{"exit": "none"}]}, "matches no cell"),
        ({"gird": {}}, "is no key of a sweep"),
        ({"rounds": 0}, "rounds"),
        ({"verb": "bench"}, "verb"),
        ({"name": "../x"}, "name"),
    ],
)
def test_a_wrong_sweep_is_refused_in_one_line(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        sweep_of(**keys) if "base" not in keys else sweep_of(keys["base"])
    assert "\n" not in str(caught.value)


def test_every_wrong_cell_is_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        sweep_of(grid={"exit.max_loops": [4, 0], "engine.max_residents": [8, -1]})
    message = str(caught.value)
    assert message.startswith("s: 3 of 4 cells refused: cell 2 (exit.max_loops=4 ")
    assert all(f"cell {number} (" in message for number in (2, 3, 4))
    assert "exit.max_loops: 0 is refused" in message


def test_an_interval_to_wait_for_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cell 2 \(repeats.interval=0.02\): repeats.interval: "):
        sweep_of(grid={"repeats.interval": [None, 0.02]})
    file = parse_sweep({"name": "s", "base": {**BASE, "repeats": {"interval": 0.02}}}, "s")
    with pytest.raises(UsageError, match=r"add --set repeats\.interval=null"):
        expand(file, "s")
    assert expand(file, "s", set_values(["repeats.interval=null"], file.varied)).cells


def test_a_rule_and_its_threshold_are_checked_before_anything_runs() -> None:
    file = parse_sweep({"name": "s", "base": BASE, "grid": {"exit": ["cdf@0.5", "cdf@2"]}}, "s")
    with pytest.raises(UsageError, match=r"cell 2 \(exit=cdf@2\).*out of range"):
        expand(file, "s", check=runners.checker())


def test_a_cells_name_depends_on_what_runs_and_on_nothing_else() -> None:
    one = parse_config({"exit": "cdf@0.5", "engine": {"width": 4}})
    same = parse_config({"engine": {"width": 4}, "exit": {"threshold": 0.5, "rule": "cdf"}})
    assert cell_hash(one, "run") == cell_hash(same, "run")
    assert cell_hash(one, "run") == cell_hash(one.model_copy(update={"out": "x"}), "run")
    assert cell_hash(one, "run") != cell_hash(one, "stages")
    other = parse_config({"exit": "cdf@0.5", "engine": {"width": 5}})
    assert cell_hash(one, "run") != cell_hash(other, "run")


def test_equal_cells_run_once_and_it_is_said() -> None:
    sweep = sweep_of(grid={"engine.max_residents": [8, 128]}, include=[{}])
    assert len(sweep.cells) == 2  # 128 is the default
    assert sweep.notes == ("cell 3 (the base) is cell 2: it runs once",)


def test_every_round_has_a_random_order_of_its_own_that_stays() -> None:
    sweep = sweep_of(grid={"engine.max_residents": list(range(1, 13))}, rounds=3, seed=5)
    orders = [[job.cell.number for job in jobs(sweep) if job.round == r] for r in (1, 2, 3)]
    assert all(sorted(order) == list(range(1, 13)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert [job.cell.number for job in jobs(sweep)] == [n for order in orders for n in order]
    assert jobs(sweep) == jobs(sweep)
    other = sweep_of(grid={"engine.max_residents": list(range(1, 13))}, rounds=3, seed=6)
    assert [job.cell.number for job in jobs(other)] != [job.cell.number for job in jobs(sweep)]


def test_a_sweep_file_is_found_and_its_base_beside_it(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("model: demo-huginn\nexit: {max_loops: 3}\n")
    file = tmp_path / "mine.yaml"
    file.write_text("base: base.yaml\ngrid: {exit.max_loops: [2, 3]}\n")
    read = read_sweep(str(file))
    assert read.name == "mine"
    assert [c.config.exit.max_loops for c in expand(read, "mine").cells] == [2, 3]
    file.write_text("base: ci\ngrid: {engine.width: [2, 4]}\n")  # a shipped configuration
    assert expand(read_sweep(str(file)), "mine").cells[0].config.exit.trace_file == "ci-trace.json"
    file.write_text("base: nowhere\n")
    with pytest.raises(UsageError, match="no such configuration"):
        read_sweep(str(file))
    with pytest.raises(UsageError, match=r"did you mean 'paper/exit-sweep\.cpu'"):
        find_sweep("paper/exit-swep.cpu")


def test_set_changes_every_cell_but_not_what_the_sweep_varies() -> None:
    file = parse_sweep({"name": "s", "base": BASE, "grid": {"exit.threshold": [0.5]}}, "s")
    values = set_values(["workload.requests=3", "exit.rule=cdf"], file.varied)
    config = expand(file, "s", values).cells[0].config
    assert (config.workload.requests, config.exit.rule, config.exit.threshold) == (3, "cdf", 0.5)
    for text in ("exit.threshold=1", "exit=none"):
        with pytest.raises(UsageError, match=r"varies exit\.threshold"):
            set_values([text], file.varied)
    with pytest.raises(UsageError, match="no key=value"):
        set_values(["workload"], file.varied)


# What runs, and what does not run again.


class FakeRuns:
    """Writes a result for every cell; does what it is told to for some, once each."""

    def __init__(self) -> None:
        self.ran: list[tuple[int, int]] = []
        self.instead: dict[int, Callable[[Path], Any]] = {}
        self.result = small_result()

    def __call__(self, config: RunConfig, directory: Path) -> bool:
        assert config.out == str(directory)
        assert not directory.exists()
        width = config.engine.max_residents
        self.ran.append((width, int(directory.parent.name.removeprefix("round-"))))
        directory.mkdir(parents=True)
        (directory / "requests.jsonl").write_text("")
        instead = self.instead.pop(width, None)
        if instead is not None:
            return bool(instead(directory))
        write_result(directory, self.result)
        return True


def fail(directory: Path) -> bool:
    raise ValueError("out of luck")


def interrupt(directory: Path) -> bool:
    raise KeyboardInterrupt


def stop_early(directory: Path) -> bool:
    write_result(directory, small_result(status="interrupted"))
    return False


SIZES = [2, 4, 8]


@pytest.fixture
def three() -> Sweep:
    return sweep_of(grid={"engine.max_residents": SIZES})


@pytest.fixture
def runs() -> FakeRuns:
    return FakeRuns()


def go(sweep: Sweep, out: Path, runs: FakeRuns, **options: Any) -> SweepDocument:
    return run(sweep, Options(str(out), **options), lambda line: None, runs)


def states(document: SweepDocument) -> dict[Any, str]:
    return {c.changes["engine.max_residents"]: c.rounds[0].state for c in document.cells}


def test_every_cell_runs_once_and_never_again(three: Sweep, tmp_path: Path, runs: FakeRuns) -> None:
    document = go(three, tmp_path / "o", runs)
    assert sorted(width for width, _ in runs.ran) == SIZES
    assert document.status == "complete"
    assert all(cell.verdict == "VALID" for cell in document.cells)
    assert read_document(SweepDocument, tmp_path / "o" / "sweep.json") == document
    for cell in three.cells:
        directory = tmp_path / "o" / "round-1" / cell.hash
        assert read_result(directory).status == "complete"
        attempt = read_document(CellAttempt, directory / "cell.json")
        assert (attempt.hash, attempt.changes, attempt.error) == (cell.hash, cell.changes, None)
        assert attempt.seconds >= 0
    again = go(three, tmp_path / "o", runs)
    assert len(runs.ran) == 3
    assert again == document


def test_a_failure_is_kept_and_only_tried_again_when_asked(
    three: Sweep, tmp_path: Path, runs: FakeRuns
) -> None:
    runs.instead[4] = fail
    document = go(three, tmp_path / "o", runs)
    assert states(document) == {2: "finished", 4: "failed", 8: "finished"}
    assert document.status == "partial"
    (failed,) = (tmp_path / "o").glob("round-1/*/failed.json")
    attempt = read_document(CellAttempt, failed)
    assert attempt.error == "ValueError: out of luck"
    assert "Traceback" in (attempt.traceback or "")
    assert len(go(three, tmp_path / "o", runs).cells) == 3
    assert len(runs.ran) == 3
    retried = go(three, tmp_path / "o", runs, retry_failed=True)
    assert states(retried) == dict.fromkeys(SIZES, "finished")
    assert retried.status == "complete"
    assert len(runs.ran) == 4
    (earlier,) = (tmp_path / "o" / "earlier").iterdir()
    assert (earlier / "failed.json").is_file()


def test_a_wrong_input_found_while_running_is_kept_without_a_traceback(
    three: Sweep, tmp_path: Path, runs: FakeRuns
) -> None:
    def refuse(directory: Path) -> bool:
        directory.joinpath("requests.jsonl").unlink()
        directory.rmdir()  # as a run that measured nothing leaves it
        raise UsageError("model: no such model")

    runs.instead[2] = refuse
    document = go(three, tmp_path / "o", runs)
    (failed,) = (tmp_path / "o").glob("round-1/*/failed.json")
    assert read_document(CellAttempt, failed).traceback is None
    (cell,) = [c for c in document.cells if c.changes["engine.max_residents"] == 2]
    assert cell.rounds[0].error == "model: no such model"


@pytest.mark.parametrize("how", [interrupt, stop_early])
def test_an_interruption_ends_the_sweep_and_the_next_one_goes_on(
    how: Callable[[Path], bool], three: Sweep, tmp_path: Path, runs: FakeRuns
) -> None:
    first, second, third = (job.cell.config.engine.max_residents for job in jobs(three))
    runs.instead[second] = how
    document = go(three, tmp_path / "o", runs)
    assert document.status == "interrupted"
    assert states(document) == {first: "finished", second: "interrupted", third: "pending"}
    assert document.estimate is not None
    assert document.estimate.cells_left == 2
    done = go(three, tmp_path / "o", runs)
    assert done.status == "complete"
    assert [width for width, _ in runs.ran] == [first, second, second, third]
    assert len(list((tmp_path / "o" / "earlier").iterdir())) == 1  # nothing measured is lost


def test_an_invalid_cell_is_complete_and_not_run_again(
    three: Sweep, tmp_path: Path, runs: FakeRuns
) -> None:
    runs.result = small_result(validity=Validity(verdict="INVALID", reasons=["a busy CPU"]))
    document = go(three, tmp_path / "o", runs)
    assert document.status == "complete"
    assert {cell.verdict for cell in document.cells} == {"INVALID"}
    assert document.cells[0].reasons == ["a busy CPU"]
    go(three, tmp_path / "o", runs)
    assert len(runs.ran) == 3


def test_a_limit_leaves_cells_for_the_next_time(
    three: Sweep, tmp_path: Path, runs: FakeRuns
) -> None:
    document = go(three, tmp_path / "o", runs, limit=1)
    assert document.status == "partial"
    assert sorted(states(document).values()) == ["finished", "pending", "pending"]
    go(three, tmp_path / "o", runs, limit=1)
    assert go(three, tmp_path / "o", runs, limit=1).status == "complete"
    assert [width for width, _ in runs.ran] == [
        job.cell.config.engine.max_residents for job in jobs(three)
    ]


def test_rounds_run_one_after_another_and_resume_in_their_order(
    tmp_path: Path, runs: FakeRuns
) -> None:
    sweep = sweep_of(grid={"engine.max_residents": SIZES}, rounds=2)
    go(sweep, tmp_path / "o", runs, limit=4)
    document = go(sweep, tmp_path / "o", runs)
    assert runs.ran == [(job.cell.config.engine.max_residents, job.round) for job in jobs(sweep)]
    assert [r.directory for r in document.cells[0].rounds] == [
        f"round-{number}/{sweep.cells[0].hash}" for number in (1, 2)
    ]


def test_the_document_is_written_after_every_cell(
    three: Sweep, tmp_path: Path, runs: FakeRuns
) -> None:
    seen: list[list[str]] = []

    def look(line: str) -> None:
        if line.startswith("cell"):
            document = read_document(SweepDocument, tmp_path / "o" / "sweep.json")
            seen.append(sorted(states(document).values()))

    run(three, Options(str(tmp_path / "o")), look, runs)
    assert [found.count("finished") for found in seen] == [0, 1, 2]
    assert not list((tmp_path / "o").glob("**/*.partial"))


def test_another_place_is_refused_before_anything_runs(
    three: Sweep, tmp_path: Path, runs: FakeRuns
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("mine")
    with pytest.raises(UsageError, match="is no sweep"):
        go(three, tmp_path / "used", runs)
    go(three, tmp_path / "o", runs)
    ran = len(runs.ran)
    other = expand(parse_sweep({"name": "other", "base": BASE}, "other"), "other")
    with pytest.raises(UsageError, match="holds the sweep 's'"):
        go(other, tmp_path / "o", runs)
    with pytest.raises(UsageError, match="cannot be written"):
        go(three, tmp_path / "used" / "file" / "below", runs)
    assert len(runs.ran) == ran


def test_cells_that_the_file_no_longer_has_are_named_and_kept(
    three: Sweep, tmp_path: Path, runs: FakeRuns
) -> None:
    go(three, tmp_path / "o", runs)
    wider = sweep_of(grid={"engine.max_residents": [4, 8, 16]})
    document = go(wider, tmp_path / "o", runs)
    assert [width for width, _ in runs.ran][3:] == [16]
    assert any("no longer part" in note for note in document.notes)
    assert (tmp_path / "o" / "round-1" / three.cells[0].hash / "result.json").is_file()


def test_a_plan_writes_nothing(three: Sweep, tmp_path: Path) -> None:
    document = plan(three, str(tmp_path / "o"))
    assert document.status == "planned"
    assert document.estimate is not None
    assert document.estimate.seconds is None
    assert "no cell has finished" in estimate_words(document.estimate)
    assert not (tmp_path / "o").exists()
    assert [row.cells[1].value for row in plan_table(document).rows] == [
        cell.hash for cell in three.cells
    ]


def test_what_failed_is_left_only_where_it_is_to_be_tried_again(
    three: Sweep, tmp_path: Path, runs: FakeRuns
) -> None:
    runs.instead[4] = fail
    document = go(three, tmp_path / "o", runs, limit=None)
    assert document.estimate is not None
    assert document.estimate.cells_left == 0
    place = next(c.number for c in document.cells if c.rounds[0].state == "failed") - 1
    for retry_failed, left in ((False, 0), (True, 1)):
        planned = plan(three, str(tmp_path / "o"), retry_failed)
        assert planned.estimate is not None
        assert planned.estimate.cells_left == left
        assert (planned.estimate.seconds == 0) == (left == 0)
        time_left = plan_table(planned).rows[place].cells[-1].value
        assert (time_left == 0) == (left == 0)
    runs.instead[4] = fail
    again = go(three, tmp_path / "o", runs, retry_failed=True)
    assert again.estimate is not None
    assert again.estimate.cells_left == 0  # it was tried, and failed again


def test_an_estimate_takes_a_cells_own_time_or_the_mean_of_the_others(three: Sweep) -> None:
    a, b, c = three.cells

    def took(*seconds: float | None) -> list[CellRound]:
        return [
            CellRound(
                round=n,
                state="pending" if s is None else "finished",
                directory="x",
                seconds=s,
            )
            for n, s in enumerate(seconds, start=1)
        ]

    looked = {
        a.hash: took(10.0, None),
        b.hash: took(20.0, 40.0),
        c.hash: took(None, None),
    }
    found = estimate([Job(a, 2), Job(c, 1), Job(c, 2)], looked)
    # a took 10 s before; the mean over the cells that finished is (10 + 30) / 2 = 20 s for c
    assert found.seconds == pytest.approx(10 + 20 + 20)
    assert found.per_cell == {a.hash: 10.0, c.hash: 20.0}
    assert (found.cells_left, found.finished) == (3, 3)
    assert found.left_per_cell == {a.hash: 1, c.hash: 2}
    assert estimate_words(found) == "3 runs left, about 50.0 s (estimate from 3 finished cells)"
    assert estimate([], looked).seconds == 0


def test_the_table_shows_changed_keys_figures_and_why_not(
    three: Sweep, tmp_path: Path, runs: FakeRuns
) -> None:
    runs.instead[4] = fail
    validity = Validity(verdict="VALID", flags=["a long output"])
    runs.result = timed_result({"static": [3.0] * 6, "cdb": [2.0] * 6}, validity=validity)
    table = summary_table(go(three, tmp_path / "o", runs))
    assert [column.title for column in table.columns][:2] == ["cell", "max_residents"]
    failed = next(row for row in table.rows if row.cells[1].value == "4")
    assert failed.cells[-1].value == "failed"
    assert failed.cells[-1].note == "ValueError: out of luck"
    fine = next(row for row in table.rows if row.cells[1].value == "8")
    assert fine.cells[-1].value == "VALID"
    assert fine.cells[-1].note is None
    assert "Cells 1, 3 have flags to mind: see sweep.json." in table.notes
    assert 1.5 in [cell.value for cell in fine.cells]
    assert short_names(["exit.max_loops", "a.seed", "b.seed"]) == {
        "exit.max_loops": "max_loops",
        "a.seed": "a.seed",
        "b.seed": "b.seed",
    }


# The command.


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch, runs: FakeRuns) -> FakeRuns:
    monkeypatch.setattr(runners, "_run", runs)
    return runs


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps({"base": BASE, "grid": {"engine.max_residents": SIZES}}))
    return str(path)


def test_the_command_says_what_it_does_and_ends_with_its_code(
    faked: FakeRuns, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "o")]
    assert main(["sweep", file, *out, "--dry-run"]) == 0
    assert "no estimate" in capsys.readouterr().out
    assert not faked.ran
    faked.instead = {2: fail}
    assert main(["sweep", file, *out]) == 3
    printed = capsys.readouterr()
    assert "0 runs left" in printed.out
    assert "ValueError: out of luck" in printed.out
    assert printed.err.count("cdbench: cell ") == 3
    for flag, left in ((), "0 runs left"), (("--retry-failed",), "1 run left"):
        assert main(["sweep", file, *out, "--dry-run", *flag]) == 0
        assert left in capsys.readouterr().out
    assert main(["sweep", file, *out, "--retry-failed", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "o" / "sweep.json").read_text())
    assert document["status"] == "complete"
    faked.instead = {2: interrupt}
    assert main(["sweep", file, "--out", str(tmp_path / "p")]) == 130


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere.yaml"], "no such sweep"),
        (["FILE", "--set", "engine.max_residents=3"], "the sweep varies"),
        (["FILE", "--set", "engine.widht=3"], "engine.width"),
        (["FILE", "--limit-cells", "0"], "limit-cells"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_runs(
    arguments: list[str],
    named: str,
    faked: FakeRuns,
    file: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [file if argument == "FILE" else argument for argument in arguments]
    assert main(["sweep", *given, "--out", str(tmp_path / "o")]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert named in printed.err
    assert printed.out == ""
    assert not faked.ran
    assert not (tmp_path / "o").exists()


def test_a_real_cell_is_a_run_directory_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "real.yaml"
    base = {**BASE, "exit": "cdf@0.5", "tasks": ["demo_add"], "limit": 2, "stages": "none"}
    path.write_text(
        json.dumps(
            {
                "base": base,
                "rounds": 2,
                "grid": {"engine.max_residents": [2]},
                "show": ["cdb.core_launches", "cdb/static"],
            }
        )
    )
    arguments = ["sweep", str(path), "--out", str(tmp_path / "o"), "--set", "repeats.blocks=1"]
    assert main(arguments) == 3
    document = read_document(SweepDocument, tmp_path / "o" / "sweep.json")
    (cell,) = document.cells
    # Two blocks over two rounds are too few for an interval, and said to be.
    assert "2 blocks were timed over 2 rounds; an interval needs 6" in cell.reasons
    results = [read_result(tmp_path / "o" / r.directory) for r in cell.rounds]
    assert [r.modes["cdb"].metrics["core_launches"] for r in results] == [
        cell.figures["cdb.core_launches"].estimate
    ] * 2
    assert cell.figures["cdb/static"].n == 2


def test_a_stage_cell_writes_its_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cdbench.stages import measure

    made: list[RunConfig] = []

    def fake(config: RunConfig, *_: Any) -> Any:
        made.append(config)
        return scripted_stages()  # their own test is elsewhere

    monkeypatch.setattr(measure, "measure_stages", fake)
    sweep = sweep_of(verb="stages", grid={"kv.layout": ["shared"]})
    directory = SweepDirectory.of(str(tmp_path / "o"), "s", "stages")
    target = directory.cell(sweep.cells[0], 1)
    assert runners.runner("stages")(sweep.cells[0].config, target)
    assert made == [sweep.cells[0].config]
    assert directory.look(sweep.cells[0], 1).state == "interrupted"  # until its time is noted
    directory.note(target, attempt_of(sweep.cells[0]))
    assert directory.look(sweep.cells[0], 1).state == "finished"


def attempt_of(cell: Cell) -> CellAttempt:
    return CellAttempt(
        hash=cell.hash, round=1, changes=cell.changes, started_utc="2026-01-01", seconds=1.0
    )


def test_documents_are_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "cell.json"
    attempt = attempt_of(sweep_of().cells[0])
    write_document(path, attempt)
    assert read_document(CellAttempt, path) == attempt
    path.write_text("{")
    with pytest.raises(UsageError, match=r"cell\.json"):
        read_document(CellAttempt, path)

"""`cdbench profile`: exit depths compared, targets judged, a setting recommended or none."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cdbench.bench.exits import exit_distributions
from cdbench.cli.main import main
from cdbench.config import RunConfig
from cdbench.errors import UsageError
from cdbench.metrics.trace import Slo
from cdbench.profile.grid import Axes, profile_base, profile_name, profile_sweep
from cdbench.profile.recommend import needed, recommend
from cdbench.profile.served import Served, attained, completed_rate, goodput, judged
from cdbench.profile.tail import full_depth_share, full_depth_task, tail
from cdbench.render.profile_report import closing_lines, tables
from cdbench.render.terminal import make_console, print_table
from cdbench.schema import (
    BlockRecord,
    ExitSettings,
    IntervalRecord,
    ModeResult,
    RequestRecord,
    Validity,
    write_requests,
    write_result,
)
from cdbench.schema.files import read_document
from cdbench.schema.profile import ProfileCell, ProfileDocument, SloRecord
from cdbench.stats.interval import Interval
from cdbench.sweep import preflight, runners
from cdbench.sweep.cells import expand
from tests.test_schema import request_record, small_result

# Records of scripted requests.


def record(
    name: str,
    *,
    task: str | None = "easy",
    start_s: float = 0.0,
    first_s: float = 1.0,
    tpot_s: float = 0.5,
    depths: Sequence[int] = (4, 1, 1),
    **changes: Any,
) -> RequestRecord:
    """A finished request: arrival, first token ``first_s`` later, then a token every ``tpot_s``."""
    times = [start_s + first_s + index * tpot_s for index in range(len(depths))]
    return request_record(
        id=name,
        task=task,
        arrival_s=start_s,
        tokens=[7] * len(depths),
        executed_depths=list(depths),
        requested_depths=list(depths),
        token_s=times,
        finish_s=times[-1],
        **changes,
    )


def served_runs(*runs: Sequence[RequestRecord], wall_s: float = 10.0) -> Served:
    """Runs of whole blocks: the first two are block 0, the next two block 1."""
    places = [(number // 2, number % 2) for number in range(len(runs))]
    return Served(dict(zip(places, map(tuple, runs), strict=True)), dict.fromkeys(places, wall_s))


def test_goodput_and_attainment_count_requests_within_every_target() -> None:
    requests = [
        record("a", first_s=1.0, tpot_s=0.5),
        record("b", first_s=3.0, tpot_s=0.5),  # first token too late
        record("c", first_s=1.0, tpot_s=2.0),  # too slow
        record("d", first_s=1.0, tpot_s=0.5, error="refused", finish_reason="error"),
    ]
    cell = served_runs(requests, requests)
    slo = Slo(ttft_s=2.0, tpot_s=1.0)
    assert goodput(cell, slo) == [1 / 10]
    assert goodput(cell, Slo(ttft_s=2.0)) == [2 / 10]
    assert cell.requests == 4
    share = attained(cell, slo)
    assert share is not None
    assert (share.estimate, share.n) == (0.25, 4)
    assert completed_rate(cell) == 3 / 10
    # Twice the same requests are no more requests.
    assert attained(served_runs(requests, requests, requests, requests), slo) == share


def test_a_share_is_judged_by_its_interval() -> None:
    assert judged(Interval(1.0, 0.995, 1.0, 600), 99) == "meets"
    assert judged(Interval(1.0, 0.95, 1.0, 40), 99) == "cannot tell"
    assert judged(Interval(0.9, 0.85, 0.94, 200), 99) == "misses"
    assert judged(None, 99) is None


def test_as_many_requests_are_needed_as_a_wilson_interval_takes() -> None:
    # lower end with all of n within: n / (n + z²), z = 1.645: 268 for 99 %, 25 for 90 %
    assert needed(99) == 268
    assert needed(90) == 25


def mode_of(loops: int = 4, **percentiles: dict[str, float | None]) -> ModeResult:
    return ModeResult(
        schedule="cdb",
        model="demo-ouro",
        exit=ExitSettings(rule="cdf", threshold=0.5),
        max_loops=loops,
        metrics={"mean_depth": 2.0},
        percentiles=percentiles,
    )


def test_the_tail_is_the_highest_percentile_there_is_and_names_the_deepest_task() -> None:
    easy = [record(f"e{n}", task="easy", tpot_s=0.1, depths=[4, 1, 1]) for n in range(16)]
    hard = [record(f"h{n}", task="hard", tpot_s=0.4, depths=[4, 4, 2]) for n in range(4)]
    cell = served_runs([*easy, *hard])
    mode = mode_of(tpot={"p50": 0.1, "p90": 0.4, "p95": None}, e2e={"p50": 2.0, "p90": 3.0})
    found = tail(cell, mode)
    assert found.percentile == 90
    assert found.tpot_ratio == pytest.approx(4.0)
    assert found.e2e_ratio == pytest.approx(1.5)
    assert found.full_depth_share == pytest.approx(4 / 40)
    assert (found.task, found.task_full_depth_share) == ("hard", 0.5)
    assert found.task_request_share == pytest.approx(4 / 20)
    assert found.task_slow_share == 1.0  # both of the slowest two
    nothing = tail(cell, mode_of(tpot={"p50": 0.1}))
    assert nothing.percentile is nothing.tpot_ratio is None


def test_no_task_is_named_where_none_stands_out() -> None:
    alike = [record("a", task="x"), record("b", task="y")]
    assert full_depth_task(alike, 4) is None
    assert full_depth_task([record("a", task=None, depths=[4, 4])], 4) is None
    assert full_depth_share([record("a", depths=[4])], 4) is None  # no later token


def test_exit_distributions_read_later_tokens_by_task() -> None:
    records = [
        record("a", task="x", depths=[4, 1, 2]),
        record("b", task="y", depths=[4, 3]),
        record("c", task="x", depths=[4]),  # no later token
        record("d", task=None),
    ]
    found = exit_distributions(records, 4, "here")
    assert found is not None
    assert [(t.task, t.requests, t.tokens) for t in found.tasks] == [("x", 1, 2), ("y", 1, 1)]
    assert found.tasks[0].histogram == [1, 1, 0, 0]
    assert found.tasks[0].mean_depth.estimate == 1.5
    assert found.differences[0].difference.estimate == -1.5
    assert exit_distributions([record("d", task=None)], 4, "here") is None


# The recommendation.


def cell_of(number: int, **changes: Any) -> ProfileCell:
    fields: dict[str, Any] = {
        "number": number,
        "hash": f"{number:012d}",
        "changes": {},
        "state": "VALID",
        "rule": "cdf",
        "threshold": 0.5,
        "max_loops": 4,
        "width": 8,
        "arrivals": "open-loop:4",
        "requests": 700,
        "mean_depth": 3.0,
        "goodput": IntervalRecord(estimate=5.0, n=6),
        "attained": IntervalRecord(estimate=1.0, low=0.996, high=1.0, n=700),
        "slo": "meets",
    }
    return ProfileCell(**{**fields, **changes})


SLO = SloRecord(tpot_s=0.1)
FAST, SLOW = [5.0, 5.1, 4.9, 5.0, 5.1, 4.9], [4.0, 4.1, 3.9, 4.0, 4.1, 3.9]


def test_the_highest_goodput_that_meets_the_targets_is_taken() -> None:
    cells = [
        cell_of(1, goodput=IntervalRecord(estimate=4.0, n=6), mean_depth=1.0),
        cell_of(2),
        cell_of(3, goodput=IntervalRecord(estimate=9.0, n=6), slo="misses"),
        cell_of(4, goodput=IntervalRecord(estimate=9.0, n=6), state="INVALID"),
    ]
    found = recommend(cells, {1: SLOW, 2: FAST, 3: FAST, 4: FAST}, SLO)
    assert (found.verdict, found.cell, found.tied) == ("recommended", 2, [])
    assert "Accuracy was not measured" in " ".join(found.sentences)


def test_of_goodputs_that_cannot_be_told_apart_the_shallowest_is_taken() -> None:
    cells = [cell_of(1, goodput=IntervalRecord(estimate=4.99, n=6), mean_depth=1.5), cell_of(2)]
    found = recommend(cells, {1: [x - 0.01 for x in FAST], 2: FAST}, SLO)
    assert (found.cell, found.tied) == (1, [2])
    assert "cannot tell apart" in " ".join(found.sentences)
    few = recommend(
        [cell_of(1, goodput=IntervalRecord(estimate=4.0, n=1), mean_depth=1.5), cell_of(2)],
        {1: [4.0], 2: [5.0]},
        SLO,
    )
    assert few.cell == 1  # one block tells nothing apart
    assert "fewer than 6 blocks" in " ".join(few.sentences)


def test_it_says_when_it_cannot_tell_and_when_none_meets() -> None:
    unsure = cell_of(1, slo="cannot tell", requests=40)
    missing = cell_of(
        2, slo="misses", attained=IntervalRecord(estimate=0.5, low=0.4, high=0.6, n=700)
    )
    found = recommend([unsure, missing], {}, SLO)
    assert found.verdict == "cannot tell"
    assert found.cell is None
    assert "40 requests are too few" in found.sentences[0]
    assert "268" in found.sentences[0]
    none = recommend([missing], {}, SLO)
    assert none.verdict == "none meets"
    assert "Cell 2 comes nearest, with 50.0%" in none.sentences[0]
    assert recommend([], {}, SLO).verdict == "cannot tell"
    assert recommend([cell_of(1)], {}, SloRecord()).verdict == "no target"


def test_a_setting_known_to_answer_worse_is_never_recommended() -> None:
    rate = IntervalRecord(estimate=0.5, n=500)
    worse = cell_of(1, accuracy=rate, accuracy_verdict="worse")
    unsure = cell_of(2, accuracy=rate, accuracy_verdict="cannot tell")
    found = recommend([worse, unsure], {1: FAST, 2: SLOW}, SLO)
    assert found.cell == 2
    assert "cannot tell" in found.sentences[-1]
    assert recommend([worse], {1: FAST}, SLO).verdict == "none meets"


# The grid and the command.


def test_the_grid_is_the_product_of_the_axes_over_equal_work() -> None:
    base = profile_base(None, ["engine.width=4"], {"exit.rule": "cdf", "model": None}, "cdb")
    axes = Axes(thresholds=["none", 0.5], max_loops=[3, 4], widths=[8, 16], rates=[2.0])
    sweep = expand(profile_sweep(base, axes, "profile"), "profile")
    assert len(sweep.cells) == 8
    first, last = sweep.cells[0].config, sweep.cells[-1].config
    assert (first.exit.rule, first.exit.threshold, first.exit.max_loops) == ("none", None, 3)
    assert (last.exit.rule, last.exit.threshold, last.exit.max_loops) == ("cdf", 0.5, 4)
    assert (last.engine.width, last.engine.max_residents) == (16, 16)
    assert last.workload.arrivals == "open-loop:2"
    assert (last.work, last.modes) == (("equal",), ("cdb",))


def test_a_configuration_wins_over_the_profiles_own_choice(tmp_path: Path) -> None:
    file = tmp_path / "base.yaml"
    file.write_text("modes: [static, cdb]\nwork: [live, equal]\n")
    base = profile_base(str(file), ["work=equal"], {}, "cdb")
    assert base["modes"] == ["static", "cdb"]
    assert base["work"] == "equal"


def test_an_interval_to_wait_for_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "base.yaml"
    file.write_text("repeats: {blocks: 7, interval: 0.02}\n")
    for given, overrides in ((str(file), []), (None, ["repeats.interval=0.02"])):
        base = profile_base(given, overrides, {}, "cdb")
        (cell,) = expand(profile_sweep(base, Axes(), "profile"), "profile").cells
        assert cell.config.repeats.interval is None
    assert base["repeats"] == {"interval": None}


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (None, "profile-demo-ouro"),
        ("demo-huginn", "profile-demo-huginn"),
        ("owner/Model-1.4B", "profile-owner-Model-1.4B"),
        ("../a dir/", "profile-a-dir"),
    ],
)
def test_the_default_directory_names_the_model(
    model: str | None,
    name: str,
    serving: FakeServing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert profile_name({} if model is None else {"model": model}) == name
    monkeypatch.chdir(tmp_path)
    assert main(["profile", *(["--model", model] if model else [])]) == 0
    assert (tmp_path / "results" / "runs" / f"sweep-{name}" / "profile.json").is_file()


def test_full_depth_beside_thresholds_needs_the_rules_name() -> None:
    with pytest.raises(UsageError, match="add --exit RULE"):
        profile_sweep({}, Axes(thresholds=["none", 0.5]), "profile")


class FakeServing:
    """A serving system: time per token grows with R, and the hard task runs to full depth."""

    def __init__(self, requests: int = 300) -> None:
        self.requests = requests
        self.ran = 0
        self.unlucky: dict[str, str] = {}
        """Arrivals whose cell comes out INVALID, or fails."""

    def __call__(self, config: RunConfig, directory: Path) -> bool:
        self.ran += 1
        if self.unlucky.get(config.workload.arrivals) == "failed":
            raise UsageError("out of luck")
        bad = config.workload.arrivals in self.unlucky
        validity = Validity(verdict="INVALID" if bad else "VALID", reasons=["busy"] if bad else [])
        loops = config.exit.max_loops or 4
        deep = 0.1 * loops
        easy = self.requests * 9 // 10
        run = [record(f"e{n}", tpot_s=0.1, depths=[loops, 1, 2]) for n in range(easy)]
        run += [
            record(f"h{n}", task="hard", tpot_s=deep, depths=[loops, loops, loops])
            for n in range(self.requests - easy)
        ]
        places = [(block, order) for block in range(6) for order in (0, 1)]
        directory.mkdir(parents=True)
        write_requests(
            directory / "requests.jsonl",
            [
                r.model_copy(update={"block": block, "order": order})
                for block, order in places
                for r in run
            ],
        )
        # A block's pair of walls differs a little from the next one's.
        blocks = [
            BlockRecord(index=b, order=o, mode="cdb", wall_s=60 + (b % 3), metrics={})
            for b, o in places
        ]
        mode = mode_of(
            loops,
            tpot={"p50": 0.1, "p90": deep, "p95": deep, "p99": None},
            e2e={"p50": 1.2, "p90": 1 + 2 * deep, "p95": 1 + 2 * deep, "p99": None},
        )
        done = small_result(modes={"cdb": mode}, blocks=blocks, accuracy=None, validity=validity)
        write_result(directory, done)
        return True


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> FakeServing:
    fake = FakeServing(60)
    monkeypatch.setattr(runners, "_run", fake)
    monkeypatch.setattr(preflight, "sound", lambda config, once: None)  # serves without a model
    return fake


def profile(out: Path, *arguments: str) -> int:
    grid = ["--max-loops", "2,4", "--rates", "4"]
    return main(["profile", *grid, "--out", str(out), *arguments])


def test_a_larger_maximum_pays_in_the_tail_and_is_not_recommended(
    serving: FakeServing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o"
    assert profile(out, "--slo-tpot", "0.25", "--percentile", "90", "--json") == 0
    document = ProfileDocument.model_validate(json.loads(capsys.readouterr().out))
    assert document == read_document(ProfileDocument, out / "profile.json")
    small, large = document.cells
    assert (small.max_loops, large.max_loops) == (2, 4)
    assert small.slo == "meets"
    assert large.slo == "cannot tell"  # 54 of 60 within: 90 % by point estimate
    assert (small.tail, large.tail) != (None, None)
    assert small.tail is not None
    assert large.tail is not None
    assert (small.tail.tpot_ratio, large.tail.tpot_ratio) == pytest.approx((2.0, 4.0))
    assert large.tail.task == "hard"
    assert large.tail.task_request_share == pytest.approx(0.1)
    assert large.tail.task_slow_share == 1.0
    assert document.recommendation.cell == 1
    assert document.recommendation.verdict == "recommended"
    assert document.exits is not None
    assert {task.task for task in document.exits.tasks} == {"easy", "hard"}


def test_other_targets_are_judged_without_running_again(
    serving: FakeServing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile(tmp_path / "o") == 0
    assert "No target was given" in capsys.readouterr().out
    assert profile(tmp_path / "o", "--slo-tpot", "0.05") == 0
    printed = capsys.readouterr().out
    assert "No cell keeps 99 % of requests within the targets" in printed
    for wanted in ("tail/p50", "exit depths by task", "hard", "Accuracy was not measured"):
        assert wanted in printed
    assert serving.ran == 2
    assert profile(tmp_path / "o", "--slo-e2e", "9", "--dry-run") == 0
    assert serving.ran == 2


def test_rates_kept_up_with_are_said(
    serving: FakeServing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 60 requests in 61 s: 0.5 a second is kept up with, 4 is not
    arguments = ["--rates", "0.5,4", "--out", str(tmp_path / "o"), "--json"]
    assert main(["profile", *arguments]) == 0
    document = ProfileDocument.model_validate(json.loads(capsys.readouterr().out))
    assert document.sustained == [
        "cdf@0.5, max_loops 4, width 128: keeps up with 0.5 requests/s, but not 4"
    ]
    assert closing_lines(document)[0] == document.sustained[0]
    assert all(table.rows for table in tables(document))


def test_rates_keep_every_digit() -> None:
    base = profile_base(None, (), {}, "cdb")
    rates = (4.0, 0.123456789, 12345.678)
    sweep = expand(profile_sweep(base, Axes(rates=rates), "p"), "p")
    assert [cell.changes["workload.arrivals"] for cell in sweep.cells] == [
        "open-loop:4",
        "open-loop:0.123456789",
        "open-loop:12345.678",
    ]


def test_a_mode_may_be_spelt_in_another_way(serving: FakeServing, tmp_path: Path) -> None:
    arguments = ["--mode", "static@02", "--out", str(tmp_path / "o"), "--dry-run"]
    assert main(["profile", *arguments]) == 0


def test_a_cell_whose_records_were_cut_off_is_noted_and_the_others_are_judged(
    serving: FakeServing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile(tmp_path / "o", "--slo-tpot", "0.25", "--percentile", "90") == 0
    capsys.readouterr()
    document = read_document(ProfileDocument, tmp_path / "o" / "profile.json")
    damaged = document.cells[1]
    file = tmp_path / "o" / "round-1" / damaged.hash / "requests.jsonl"
    whole = file.read_text()
    for text in (whole[: len(whole) // 2], "", "{}\n"):
        file.write_text(text)
        assert profile(tmp_path / "o", "--slo-tpot", "0.25", "--percentile", "90", "--json") == 3
        found = ProfileDocument.model_validate(json.loads(capsys.readouterr().out))
        assert [cell.state for cell in found.cells] == ["VALID", "unreadable"]
        assert found.recommendation.cell == 1
        (note,) = [note for note in found.notes if note.startswith("cell 2: ")]
        assert str(file) in note
        assert damaged.hash in note
    assert serving.ran == 2


@pytest.mark.parametrize(
    ("unlucky", "said"),
    [
        (0.25, "keeps up with 0.125 requests/s, but not 4, 0.25 was not judged"),
        (
            0.125,
            "0.125 requests/s, the lowest rate, was not judged, and it does not keep up with 4",
        ),
    ],
)
@pytest.mark.parametrize("how", ["INVALID", "failed"])
def test_a_rate_that_was_not_judged_is_not_skipped(
    how: str,
    unlucky: float,
    said: str,
    serving: FakeServing,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    serving.unlucky = {f"open-loop:{unlucky:g}": how}
    arguments = ["--rates", "0.125,0.25,0.5,4", "--out", str(tmp_path / "o"), "--json"]
    assert main(["profile", *arguments]) == 3
    document = ProfileDocument.model_validate(json.loads(capsys.readouterr().out))
    assert document.sustained == [f"cdf@0.5, max_loops 4, width 128: {said}"]


def test_a_ramp_counts_with_its_mean_rate(
    serving: FakeServing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 60 requests in 61 s are enough for 0.2 a second, and not for the 2.1 of the whole ramp
    arguments = ["--set", "workload.arrivals=ramp:0.2-4", "--out", str(tmp_path / "o"), "--json"]
    assert main(["profile", *arguments]) == 0
    document = ProfileDocument.model_validate(json.loads(capsys.readouterr().out))
    assert document.sustained == [
        "cdf@0.5, max_loops 4, width 128: not shown to keep up with even 2.1 requests/s"
    ]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--thresholds", "0.5,x"], "no number"),
        (["--max-loops", "2.5"], "no whole number"),
        (["--max-loops", "3,3"], "listed twice"),
        (["--percentile", "100"], "between 0 and 100"),
        (["--slo-tpot", "0"], "above 0"),
        (["--slo-ttft", "1"], "add --rates"),
        (["--rates", "-1"], "workload.arrivals"),
        (["--set", "work=live"], "add equal"),
        (["--set", "modes=static"], "add it to modes"),
        (["--thresholds", "none,0.5"], "add --exit RULE"),
        (["--exit", "cdf", "--thresholds", "2"], "out of range"),
        (["--thresholds", ""], "--thresholds: lists nothing"),
        (["--max-loops", " "], "--max-loops: lists nothing"),
        (["--widths", ""], "--widths: lists nothing"),
        (["--rates", ""], "--rates: lists nothing"),
        (["--thresholds", "0.5,,0.9"], "--thresholds '': no number"),
        (["--thresholds", "nan"], "--thresholds 'nan': no number"),
        (["--thresholds", "inf"], "no number; list finite ones"),
        (["--thresholds", "0.5,.50"], "listed twice"),
        (["--thresholds", "0.5", "--mode", "static"], "under mode static no token exits early"),
        (["--rates", "1e400"], "--rates '1e400': no number"),
        (["--rates", "0"], "workload.arrivals"),
        (["--rates", "1e300"], "workload.arrivals"),
        (["--widths", "1e3"], "no whole number"),
        (["--widths", "0"], "engine.max_residents: 0 is refused"),
        (["--widths", "1000000000000"], "engine.max_residents"),
        (["--slo-tpot", "inf"], "--slo-tpot inf: must be above 0 and finite"),
        (["--slo-e2e", "nan"], "--slo-e2e"),
        (["--percentile", "nan"], "between 0 and 100"),
        (["--mode", "fast"], "mode 'fast': unknown"),
        (["--set", "out=x"], "every cell has a directory of its own"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_runs(
    arguments: list[str],
    named: str,
    serving: FakeServing,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["profile", *arguments, "--out", str(tmp_path / "o")]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert named in printed.err
    assert printed.out == ""
    assert serving.ran == 0
    assert not (tmp_path / "o").exists()


def test_a_real_run_is_read_as_it_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--rates", "100", "--max-loops", "2", "--requests", "3", "--slo-e2e", "60"]
    limits = ["--set", "tasks=demo_add", "--set", "repeats.blocks=1", "--set", "limit=3"]
    code = main(["profile", *arguments, *limits, "--out", str(tmp_path / "o"), "--json"])
    assert code == 3  # one block is too few
    (cell,) = ProfileDocument.model_validate(json.loads(capsys.readouterr().out)).cells
    assert cell.state == "INVALID"
    assert (cell.requests, cell.max_loops, cell.arrivals) == (3, 2, "open-loop:100")
    assert cell.attained is not None
    assert cell.attained.estimate == 1.0
    assert cell.goodput is not None
    assert (cell.goodput.estimate or 0) > 0
    assert cell.percentiles["tpot"]["p50"] is None  # three requests show none


def document_of(*cells: ProfileCell) -> ProfileDocument:
    return ProfileDocument(
        status="complete",
        mode="cdb",
        slo=SLO,
        varied=["exit.max_loops", "workload.arrivals"],
        cells=list(cells),
        recommendation=recommend(cells, {}, SLO),
    )


@pytest.mark.parametrize("width", [120, 80, 60, 40])
def test_a_verdict_shows_at_every_width(width: int) -> None:
    changes = {"exit.max_loops": 4, "workload.arrivals": "open-loop:4"}
    document = document_of(
        cell_of(1, changes=changes),
        cell_of(2, changes={**changes, "exit.max_loops": 2}, state="INVALID"),
    )
    stream = io.StringIO()
    print_table(next(tables(document)), make_console(stream, width))
    assert "INVALID" in stream.getvalue()
    assert max(map(len, stream.getvalue().splitlines())) <= width


def test_columns_that_no_cell_fills_are_left_out() -> None:
    few = {"tpot": {"p50": 0.1, "p90": None}, "e2e": {"p50": 2.0, "p90": 3.0}}
    cells = (cell_of(1, percentiles=few), cell_of(2))
    first, latencies, *_ = tables(document_of(*cells))
    assert "accuracy" not in [column.title for column in first.columns]
    shown = {column.title: column.priority for column in latencies.columns[2:]}
    assert list(shown) == ["tpot p50", "e2e p50", "e2e p90"]
    assert (shown["tpot p50"], shown["e2e p90"]) == (0, 0)
    answered = cell_of(3, accuracy=IntervalRecord(estimate=0.5, n=6))
    first, *_ = tables(document_of(*cells, answered))
    assert "accuracy" in [column.title for column in first.columns]

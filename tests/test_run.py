"""`cdbench run`, end to end on the demo, shortened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdbench.bench.equal import TimedRun, TimedSubject
from cdbench.cli.main import main
from cdbench.schema import Result, read_requests, read_result

SHORT = [
    "run",
    *("--limit", "1", "--requests", "3", "--blocks", "6"),
    *("--modes", "static,static@auto,lockstep,cdb"),
    *("--set", "engine.max_residents=3"),
]


def run(*arguments: str) -> int:
    return main([*SHORT, *arguments])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of one complete short run."""
    out = tmp_path_factory.mktemp("runs") / "short"
    assert run("--out", str(out)) == 0
    return out


@pytest.fixture(scope="module")
def result(finished: Path) -> Result:
    return read_result(finished)


def test_a_complete_run_is_valid_and_names_its_modes(result: Result) -> None:
    assert result.status == "complete"
    assert result.validity.verdict == "VALID"
    assert set(result.modes) == {"static", "static@auto", "lockstep", "cdb"}
    assert result.workload.replayed == ["tokens", "lengths", "depths"]
    assert result.model is not None
    assert result.model.name == "demo-ouro"


def test_every_mode_did_the_same_work(finished: Path, result: Result) -> None:
    records = [r for r in read_requests(finished / "requests.jsonl") if r.work == "equal"]
    by_run: dict[tuple[Any, ...], dict[str, list[int]]] = {}
    for record in records:
        by_run.setdefault((record.mode, record.block, record.order), {})[record.id] = record.tokens
    timed = {label for label, mode in result.modes.items() if mode.metrics}
    assert len(by_run) == 12 * len(timed)
    assert all(tokens == next(iter(by_run.values())) for tokens in by_run.values())
    assert result.workload.output_tokens == sum(map(len, next(iter(by_run.values())).values()))


def test_adaptive_modes_execute_the_recorded_depths_and_static_all_loops(
    finished: Path, result: Result
) -> None:
    loops = result.modes["static"].max_loops
    live = {
        r.id: r.executed_depths
        for r in read_requests(finished / "requests.jsonl")
        if r.work == "live" and r.mode == "cdb"
    }
    for record in read_requests(finished / "requests.jsonl"):
        if record.work == "equal" and record.mode in ("cdb", "lockstep"):
            assert record.executed_depths == live[record.id]
        elif record.mode == "static":
            assert set(record.executed_depths) == {loops}


def test_counters_follow_from_the_recorded_work(result: Result) -> None:
    cdb, lockstep, static = (result.modes[m].metrics for m in ("cdb", "lockstep", "static"))
    later = (result.workload.output_tokens or 0) - result.workload.requests
    assert static["token_loops"] == later * result.modes["static"].max_loops
    assert cdb["token_loops"] == lockstep["token_loops"]
    assert (cdb["core_launches"] or 0) <= (lockstep["core_launches"] or 0)
    assert lockstep["refills"] == static["refills"] == 0


def test_speedups_are_antisymmetric_and_realised_is_their_share_of_the_bound(
    result: Result,
) -> None:
    found = {(c.mode, c.over, c.scope): c.speedup.estimate or 0.0 for c in result.comparisons}
    for (mode, over, scope), ratio in found.items():
        assert ratio * found[over, mode, scope] == pytest.approx(1.0)
    bound = result.bounds["cdb"]["flop_bound"]
    assert bound.realised is not None
    assert bound.value is not None
    assert bound.realised.estimate == pytest.approx(found["cdb", "static", "decode"] / bound.value)


def test_walls_and_metrics_agree(result: Result) -> None:
    for block in result.blocks:
        assert block.decode_wall_s is not None
        assert block.decode_wall_s < block.wall_s
        rate = block.metrics["output_throughput"] or 0.0
        assert rate * block.wall_s == pytest.approx(result.workload.output_tokens)


def test_accuracy_is_paired_with_static(result: Result) -> None:
    assert result.accuracy is not None
    assert result.accuracy.baseline == "static"
    paired = result.accuracy.modes["cdb"].paired
    assert paired is not None
    rate = result.accuracy.modes["static"].rate
    assert rate is not None
    assert paired.n == rate.n


def test_what_is_printed_is_the_card_the_table_and_plain_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run("--out", str(tmp_path / "a"), "--full", "--blocks", "1") == 3
    printed = capsys.readouterr()
    for wanted in (
        "demo-ouro",
        "cost ratio",
        "replayed",
        "over static",
        "depth 1",
        "rates on equal work, mean over the timed runs",
        "flop_bound",
        "INVALID:",
        "- 1 block was timed; an interval needs 6",
        "waterfall: cdb over static",
        "time_bound",
    ):
        assert wanted in printed.out
    assert "\x1b[" not in printed.out
    assert max(map(len, printed.out.splitlines())) <= 100
    assert "timing 1 block" in printed.err


def test_json_is_exactly_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--out", str(tmp_path / "a"), "--work", "live", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "a" / "result.json").read_text())
    assert document["blocks"] == []


def test_an_interrupted_run_keeps_its_finished_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timed = TimedSubject.run
    calls = []

    def interrupted(self: TimedSubject, block: int, order: int) -> TimedRun:
        if block >= 0:
            calls.append(block)
        if len(calls) > 5:
            raise KeyboardInterrupt
        return timed(self, block, order)

    monkeypatch.setattr(TimedSubject, "run", interrupted)
    assert run("--out", str(tmp_path / "a"), "--stages", "none") == 130
    result = read_result(tmp_path / "a")
    assert result.status == "interrupted"
    assert result.validity.verdict == "INVALID"
    assert len(result.blocks) == 5
    kept = {(r.block, r.order) for r in read_requests(tmp_path / "a" / "requests.jsonl")}
    assert len(kept - {(None, None)}) == 5
    assert "interrupted" in capsys.readouterr().out


def test_a_request_that_never_fits_is_refused_alone_and_the_run_is_invalid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should the check before the run ever overlook one."""
    monkeypatch.setattr("cdbench.bench.benchmark.check_budget", lambda plan, work: None)
    code = run(
        *("--out", str(tmp_path / "a"), "--work", "live", "--modes", "static,cdb"),
        *("--set", "kv.budget_bytes=1150000", "--limit", "3", "--json"),
    )
    document = json.loads(capsys.readouterr().out)
    errors = [r.error for r in read_requests(tmp_path / "a" / "requests.jsonl")]
    assert any(errors)
    assert not all(errors)
    assert code == 3
    assert "refused" in document["validity"]["reasons"][0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--modes", "cbd"], "did you mean 'cdb'"),
        (["--exit", "cfd@0.5"], "did you mean 'cdf'"),
        (["--exit", "cdf@1.5"], "out of range"),
        (["--max-loops", "0"], "exit.max_loops"),
        (["--max-loops", "9"], "above what"),
        (["--modes", "static@9"], "lower the depth"),
        (["--tasks", "demo_cpy"], "did you mean 'demo_copy'"),
        (["--model", "demo-uoro"], "did you mean 'demo-ouro'"),
        (["--set", "engine.widht=3"], "engine.width"),
        (["--dense", "demo-ouro", "--modes", "dense:demo-ouro"], "name a dense model"),
        (["--exit", "trace:missing.json"], "missing.json"),
        (["--set", "workload.source=missing.jsonl"], "missing.jsonl"),
        (["--tasks", "demo_copy"], "raise --limit"),
        (["--set", "repeats.interval=0.1", "--modes", "static"], "cdb over static"),
        (["--set", "repeats.interval=0.1", "--arrivals", "open-loop:5"], "cdb over static"),
        (["--stages", "missing.json"], "missing.json"),
        (["--arrivals", "poisson:5"], "workload.arrivals"),
        (["--depths", "shalow"], "workload.depths"),
        (["--equal", "memory"], "needs a KV budget"),
        (["--from", "missing"], "missing"),
        (["--source", "missing.parquet"], "missing.parquet"),
    ],
)
def test_bad_input_is_one_line_with_exit_code_2_and_leaves_nothing(
    arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a"
    assert run("--out", str(out), *arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("cdbench: ")
    assert named in printed.err
    assert printed.out == ""
    assert not out.exists()


def test_an_output_directory_in_use_or_unwritable_is_refused_before_the_run(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (finished / "result.json").read_bytes()
    assert run("--out", str(finished)) == 2
    assert "not empty" in capsys.readouterr().err
    assert (finished / "result.json").read_bytes() == before
    (tmp_path / "file").write_text("")
    assert run("--out", str(tmp_path / "file" / "below")) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_synthetic_depths_are_what_was_asked_for_and_the_run_says_so(tmp_path: Path) -> None:
    """Whatever the live signal of a replayed token would have asked for."""
    small = ("--blocks", "1", "--stages", "none", "--modes", "static,cdb", "--work", "equal")
    assert run("--out", str(tmp_path / "a"), "--depths", "full", *small) == 3
    result = read_result(tmp_path / "a")
    cdb = result.modes["cdb"].metrics
    assert cdb["mean_depth"] == cdb["requested_depth"] == result.modes["cdb"].max_loops
    assert (cdb["wasted_loops"], cdb["short_loops"]) == (0, 0)
    assert result.bounds["cdb"]["flop_bound"].value == 1.0
    assert result.workload.synthetic is not None
    assert "depths" not in result.workload.replayed
    assert any("synthetic" in flag for flag in result.validity.flags)


def test_the_ci_run_repeats_its_counters_to_the_digit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = ("token_loops", "core_launches", "coda_launches", "prefill_launches", "refills")
    seen = []
    for name in ("a", "b"):
        code = main(
            ["run", "ci", "--out", str(tmp_path / name), "--blocks", "1", "--stages", "none"]
        )
        assert code == 3  # one block has no interval
        result = read_result(tmp_path / name)
        assert len(result.validity.reasons) == 1
        seen.append(
            {
                (label, metric): mode.metrics[metric]
                for label, mode in result.modes.items()
                for metric in (*exact, "peak_kv_bytes")
            }
        )
    assert seen[0] == seen[1]
    assert len(seen[0]) == 4 * 6

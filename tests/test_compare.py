"""`cdbench compare`: known effects, mirrored sides, what is unfair, what was edited."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdbench.cli.main import main
from cdbench.compare.answers import two_sided
from cdbench.compare.document import compare_sides
from cdbench.compare.sides import Side, block_values, contradictions, read_side
from cdbench.compare.timed import change_of, metric_gain
from cdbench.errors import UsageError
from cdbench.schema import Result, Validity
from cdbench.schema.comparing import ComparisonDocument, MetricChange
from tests.comparing import MANIFEST, answered, side, timed_result, walls, written

BASE = timed_result(walls(static=2.0, cdb=1.0))
MIRROR = {"better": "worse", "worse": "better", "~": "~", None: None}


def against(run: Result, base: Result = BASE, margin: float = 0.05) -> ComparisonDocument:
    return compare_sides(side(base, "base"), side(run, "run"), margin)


def change(document: ComparisonDocument, mode: str, metric: str) -> MetricChange:
    (found,) = [c for c in document.metrics if (c.mode, c.metric) == (mode, metric)]
    return found


@pytest.mark.parametrize(
    ("seconds", "verdict"), [(0.8, "better"), (1.25, "worse"), (1.0, "~"), (1.02, "~")]
)
def test_a_known_effect_gets_its_verdict(seconds: float, verdict: str) -> None:
    document = against(timed_result(walls(static=2.0, cdb=seconds)))
    rate, delay = (change(document, "cdb", name) for name in ("output_throughput", "e2e"))
    assert rate.verdict == delay.verdict == verdict
    assert rate.ratio is not None
    assert rate.ratio.estimate == pytest.approx(1 / seconds, rel=1e-3)
    assert delay.ratio is not None
    assert delay.ratio.estimate == pytest.approx(seconds, rel=1e-3)
    assert change(document, "static", "output_throughput").verdict == "~"
    assert document.verdict == "comparable"


def test_a_change_that_is_certain_but_within_the_margin_is_none() -> None:
    """Two per cent are seen by the interval and are no change; with a smaller margin they are."""
    run = timed_result({"static": [2.0] * 6, "cdb": [0.98, 0.9801] * 3})
    base = timed_result({"static": [2.0] * 6, "cdb": [1.0, 1.0001] * 3})
    assert change(against(run, base), "cdb", "output_throughput").verdict == "~"
    assert change(against(run, base, 0.01), "cdb", "output_throughput").verdict == "better"


def test_noise_is_no_change() -> None:
    noisy = [0.5, 1.4, 0.6, 1.3, 0.7, 0.9]
    run = timed_result({"static": [2.0] * 6, "cdb": noisy})
    found = change(against(run), "cdb", "output_throughput")
    assert found.verdict == "~"
    assert found.ratio is not None
    assert found.ratio.low is not None
    assert found.ratio.high is not None
    assert found.ratio.low < 1 < found.ratio.high


def test_too_few_blocks_give_no_verdict() -> None:
    run = timed_result({"static": [2.0, 2.1], "cdb": [0.5, 0.51]})
    found = change(against(run), "cdb", "output_throughput")
    assert found.verdict == "~"
    assert found.ratio is not None
    assert found.ratio.low is None


def test_counts_without_noise_are_compared_to_the_digit() -> None:
    run = timed_result(walls(static=2.0, cdb=1.0), {"token_loops": 2501.0})
    found = change(against(run), "cdb", "token_loops")
    assert found.exact
    assert found.verdict == "worse"
    assert found.ratio is not None
    assert found.ratio.low is None
    assert any("token_loops of cdb" in line for line in against(run).sentences)
    assert change(against(BASE), "cdb", "token_loops").verdict == "~"


def test_a_speed_up_needs_no_margin_and_has_the_ratio_of_both() -> None:
    document = against(timed_result(walls(static=2.0, cdb=1.25)))
    (found,) = [
        c for c in document.speedups if (c.mode, c.over, c.scope) == ("cdb", "static", "e2e")
    ]
    assert found.base.estimate == pytest.approx(2.0)
    assert found.run.estimate == pytest.approx(1.6)
    assert found.ratio is not None
    assert found.ratio.estimate == pytest.approx(0.8)
    assert found.verdict == "worse"


def test_other_work_forms_no_ratio() -> None:
    other = BASE.workload.model_copy(update={"hash": "cd" * 32})
    document = against(timed_result(walls(static=2.0, cdb=0.5), workload=other))
    assert document.verdict == "other work"
    assert all(c.ratio is None and c.verdict is None for c in document.metrics)
    assert all(c.ratio is None and c.verdict is None for c in document.speedups)
    assert document.sentences[0].startswith("OTHER WORK: workload")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("torch_threads", 1),
        ("env", {"OMP_NUM_THREADS": "1"}),
        ("cpu", MANIFEST.cpu.model_copy(update={"model": "Another"})),
    ],
)
def test_another_machine_is_shown_and_not_judged(field: str, value: Any) -> None:
    elsewhere = MANIFEST.model_copy(update={field: value})
    document = against(timed_result(walls(static=2.0, cdb=0.5), manifest=elsewhere))
    assert document.verdict == "unfair"
    found = change(document, "cdb", "output_throughput")
    assert found.verdict is None
    assert found.ratio is not None
    assert document.sentences[0].startswith("UNFAIR")


def test_an_invalid_side_is_not_judged() -> None:
    verdict = Validity(verdict="INVALID", reasons=["other processes"])
    spoiled = timed_result(walls(static=2.0, cdb=0.5), validity=verdict)
    for base, run in ((BASE, spoiled), (spoiled, BASE)):
        document = against(run, base)
        assert document.verdict == "INVALID"
        assert all(change.verdict is None for change in document.metrics)
        assert all(change.verdict is None for change in document.speedups)
        assert "INVALID" in document.sentences[0]


def test_other_work_of_an_invalid_run_forms_no_ratio_either() -> None:
    spoiled = Validity(verdict="INVALID", reasons=["busy"], timing=["busy"])
    other = BASE.workload.model_copy(update={"hash": "cd" * 32})
    run = timed_result(walls(static=2.0, cdb=0.5), validity=spoiled, workload=other)
    document = against(run)
    assert document.verdict == "INVALID"
    assert all(change.ratio is None for change in document.metrics)
    assert all(change.ratio is None for change in document.speedups)
    assert any(line.startswith("OTHER WORK") for line in document.sentences)


def test_a_slowdown_of_cdb_is_told_as_one() -> None:
    """Every other mode gained over it: that is the same news, upside down."""
    five = {"dense:d": 3.0, "static": 2.0, "static@auto": 1.6, "lockstep": 1.4}
    base, run = (timed_result(walls(**five, cdb=seconds)) for seconds in (1.0, 1.3))
    said = [line for line in against(run, base).sentences if "speed-up" in line]
    assert said[0].startswith("The e2e speed-up of cdb over static")
    assert all("of cdb over" in line for line in said if "worse" in line)
    assert not any("static over cdb" in line for line in said)


def test_nothing_timed_is_said() -> None:
    run = timed_result({}).model_copy(update={"modes": BASE.modes})
    assert "Nothing was timed in run." in against(run).sentences


@pytest.mark.parametrize(("lost", "gained"), [(30, 0), (2, 1), (12, 10), (0, 0), (0, 9)])
def test_verdicts_on_answers_mirror(lost: int, gained: int) -> None:
    for n in (50, 400, 3000):
        forth, back = two_sided(lost, gained, n, 0.01), two_sided(gained, lost, n, 0.01)
        assert {forth, back} in ({"better", "worse"}, {"within"}, {"cannot tell"})
    assert two_sided(30, 0, 400, 0.01) == "worse"
    assert two_sided(2, 1, 3000, 0.01) == "within"
    assert two_sided(2, 1, 50, 0.01) == "cannot tell"


def test_answers_of_a_run_that_is_invalid_for_more_than_times_are_not_judged(
    tmp_path: Path,
) -> None:
    right = {"static": [True] * 40, "cdb": [True] * 40}
    base = read_side(str(answered(tmp_path / "base", right)))
    for reasons, timing, judged in ((["a"], ["a"], True), (["a", "b"], ["a"], False)):
        spoiled = Validity(verdict="INVALID", reasons=reasons, timing=timing)
        run = side(base.result.model_copy(update={"validity": spoiled}), "run", base.directory)
        found = [change.verdict is not None for change in compare_sides(base, run).accuracy]
        assert found == [judged] * len(found)


def test_settings_and_code_that_both_differ_are_said_to() -> None:
    newer = MANIFEST.model_copy(update={"source_sha256": "b" * 64})
    wider = {**BASE.config, "engine": {"width": 16}}
    document = against(timed_result(walls(static=2.0, cdb=1.0), manifest=newer, config=wider))
    effects = {difference.what: difference.effect for difference in document.differences}
    assert effects == {"engine.width": "setting", "source_sha256": "code"}
    assert any("both differ" in line for line in document.sentences)


def test_a_mode_with_another_depth_is_another_thing() -> None:
    run = timed_result(walls(static=2.0, cdb=0.5))
    deeper = {**run.modes, "cdb": run.modes["cdb"].model_copy(update={"max_loops": 3})}
    document = against(run.model_copy(update={"modes": deeper}))
    found = change(document, "cdb", "output_throughput")
    assert found.verdict is None
    assert found.note == "R 4 against 3"
    assert change(document, "static", "output_throughput").verdict == "~"


def test_modes_of_one_side_only_are_named() -> None:
    document = against(timed_result(walls(static=2.0, lockstep=1.5)))
    assert document.missing == ["cdb: only in base", "lockstep: only in run"]
    with pytest.raises(UsageError, match="no mode of"):
        against(timed_result(walls(lockstep=1.5)))


WALLS = st.lists(st.floats(0.1, 10.0), min_size=6, max_size=9)


@settings(max_examples=60, deadline=None)
@given(WALLS, WALLS, st.floats(0, 0.2))
def test_swapped_sides_mirror_every_verdict(one: list[float], two: list[float], m: float) -> None:
    here = timed_result({"static": [2.0] * len(one), "cdb": one})
    there = timed_result({"static": [2.0] * len(two), "cdb": two})
    forth, back = against(there, here, m), against(here, there, m)
    for ours, theirs in zip(forth.metrics, back.metrics, strict=True):
        assert ours.verdict == MIRROR[theirs.verdict]
    for own, other in zip(forth.speedups, back.speedups, strict=True):
        assert own.verdict == MIRROR[other.verdict]


def test_a_gain_is_turned_by_the_direction_of_its_metric() -> None:
    up, down = (metric_gain([1.0] * 6, [2.0] * 6, way) for way in ("up", "down"))
    assert up is not None
    assert down is not None
    assert up.log_mean == -down.log_mean == pytest.approx(math.log(2))
    assert (change_of(up), change_of(down)) == ("better", "worse")
    assert metric_gain([0.0] * 6, [1.0] * 6, "up") is None


def test_a_torn_block_is_left_out() -> None:
    blocks = BASE.blocks[:-1]
    assert len(block_values(blocks)["cdb"]["e2e"]) == 5


def test_accuracy_is_paired_by_question(tmp_path: Path) -> None:
    right = [True] * 40
    base = answered(tmp_path / "base", {"static": right, "cdb": right})
    run = answered(
        tmp_path / "run", {"static": right, "cdb": [*[False] * 3, *[True] * 37]}, depth=3
    )
    document = compare_sides(read_side(str(base)), read_side(str(run)))
    found = {c.mode: c for c in document.accuracy if c.task is None}
    cdb = found["cdb"].paired
    assert cdb is not None
    assert (cdb.lost, cdb.gained, cdb.n) == (3, 0, 40)
    assert found["static"].paired is not None
    assert found["static"].paired.lost == 0
    agreement = found["cdb"].agreement
    assert agreement is not None
    assert (agreement.identical, agreement.n) == (37, 40)


def test_accuracy_without_samples_is_never_compared(tmp_path: Path) -> None:
    runs = []
    for name in ("base", "run"):
        path = answered(tmp_path / name, {"static": [True] * 20, "cdb": [True] * 20})
        (path / "samples_sums.jsonl").unlink()
        runs.append(read_side(str(path)))
    document = compare_sides(runs[0], runs[1])
    assert all(c.paired is None and c.note is not None for c in document.accuracy)


def test_histograms_stand_side_by_side_with_their_distance() -> None:
    run = timed_result(walls(static=2.0, cdb=1.0))
    moved = run.modes["cdb"].model_copy(update={"depth_histogram": [10, 5, 5, 0]})
    document = against(run.model_copy(update={"modes": {**run.modes, "cdb": moved}}))
    (found,) = document.histograms
    # (5, 10, 5) of 20 against (10, 5, 5): a quarter of the tokens moved
    assert found.distance == pytest.approx(0.25)
    assert found.by_chance is None


def test_an_edited_result_is_refused() -> None:
    assert list(contradictions(BASE)) == []
    faster = BASE.modes["cdb"].model_copy(
        update={"metrics": {**BASE.modes["cdb"].metrics, "output_throughput": 9999.0}}
    )
    edited = BASE.model_copy(update={"modes": {**BASE.modes, "cdb": faster}})
    assert "output_throughput" in next(iter(contradictions(edited)))
    better = BASE.comparisons[0].speedup.model_copy(update={"estimate": 9.0})
    first = BASE.comparisons[0].model_copy(update={"speedup": better})
    edited = BASE.model_copy(update={"comparisons": [first, *BASE.comparisons[1:]]})
    assert "speed-up" in next(iter(contradictions(edited)))


def doctored(document: dict[str, Any], kind: str) -> str:
    text = json.dumps(document)
    if kind == "truncated":
        return text[: len(text) // 2]
    if kind == "foreign":
        return json.dumps({"results": [1, 2, 3]})
    if kind == "version":
        return json.dumps({**document, "schema_version": 99})
    if kind == "list":
        return "[]"
    document["modes"]["cdb"]["metrics"]["output_throughput"] = 1e6
    return json.dumps(document)


@pytest.mark.parametrize("kind", ["truncated", "foreign", "version", "list", "edited"])
def test_files_that_are_no_result_are_one_line_and_code_2(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = written(tmp_path / "good", BASE)
    bad = written(tmp_path / "bad", BASE)
    file = bad / "result.json"
    file.write_text(doctored(json.loads(file.read_text()), kind))
    for order in ([str(good), str(bad)], [str(bad), str(good)]):
        assert main(["compare", *order]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.count("\n") == 1
        assert "result.json" in shown.err or "bad" in shown.err


def test_a_huge_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cdbench.compare.sides.MOST_BYTES", 1000)
    path = written(tmp_path / "run", BASE)
    assert main(["compare", str(path), str(path)]) == 2
    assert "more than any result" in capsys.readouterr().err


def test_the_command_prints_and_ends_as_documented(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = written(tmp_path / "base", BASE)
    slower = written(tmp_path / "slower", timed_result(walls(static=2.0, cdb=1.25)))
    assert main(["compare", str(base), str(slower)]) == 0
    shown = capsys.readouterr()
    assert "worse" in shown.out
    assert shown.err == ""
    assert shown.out.rstrip().splitlines()[-1].endswith(".")
    assert main(["compare", str(base), str(slower), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert ComparisonDocument.model_validate(document).verdict == "comparable"


def test_an_invalid_run_ends_with_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = written(tmp_path / "base", BASE)
    spoiled = Validity(verdict="INVALID", reasons=["other processes took the cores"])
    run = written(tmp_path / "run", BASE.model_copy(update={"validity": spoiled}))
    assert main(["compare", str(base), str(run)]) == 3
    assert "other processes took the cores" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["one"], "against what"),
        (["one", "two", "--margin", "2"], "--margin"),
        (["one", "two", "--junit", "x.xml"], "--gate"),
        (["one", "two", "--require-baseline"], "--gate"),
        (["none", "none"], "none"),
        ([], "RUN"),
        (["one", "two", "--self-test"], "--pair"),
        (["one", "two", "--out", "x"], "--pair"),
        (["--pair", "python3", "python3", "one", "two"], "one CONFIG"),
        (["--pair", "python3", "python3", "--margin", "0.1"], "timed.margin"),
        (["--pair", "python3", "python3", "--baseline", "x"], "measures its base"),
        (["--pair", "python3", "python3", "--gate", "no.yaml"], "--gate"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arguments]) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.err.count("\n") == 1


def test_several_runs_are_each_held_against_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [
        str(written(tmp_path / str(number), timed_result(walls(static=2.0, cdb=1.0 + number))))
        for number in range(3)
    ]
    assert main(["compare", *paths, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["comparisons"]
    assert [(one["base"]["name"], one["run"]["name"]) for one in found] == [
        (paths[0], paths[1]),
        (paths[0], paths[2]),
    ]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_it_fits_a_terminal(
    tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "a", BASE)
    written(tmp_path / "b", timed_result(walls(static=2.0, cdb=1.25)))
    assert main(["compare", "a", "b", "--full"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    assert "\x1b" not in shown


def test_a_side_reads_its_directory_or_its_file(tmp_path: Path) -> None:
    path = written(tmp_path / "run", BASE)
    sides: list[Side] = [read_side(str(path)), read_side(str(path / "result.json"))]
    assert sides[0].result == sides[1].result == BASE


def test_a_pipe_in_a_results_place_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written(tmp_path / "run", BASE)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "result.json")
    (tmp_path / "folder" / "result.json").mkdir(parents=True)
    for name, says in (("pipe", "no regular file"), ("folder", "is a directory")):
        assert main(["compare", str(run), str(tmp_path / name)]) == 2
        assert says in capsys.readouterr().err

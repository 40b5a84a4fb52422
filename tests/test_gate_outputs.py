"""What a gate's receipt is turned into: JUnit XML, Markdown, annotations, files."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdbench.compare.outputs import baselines_read, files_read, prove_outputs, write_outputs
from cdbench.compare.outputs.annotations import MOST, workflow_commands
from cdbench.compare.outputs.junit import to_junit
from cdbench.compare.outputs.markdown import MOST_BYTES, plain, to_markdown
from cdbench.compare.outputs.write import append_step_summary
from cdbench.errors import OutputError, UsageError
from cdbench.render.formats import visible
from cdbench.schema import IntervalRecord
from cdbench.schema.comparing import DifferenceRecord, SideRecord
from cdbench.schema.gating import GateCheck, GateReceipt, LookRecord

PASSED = GateCheck(
    name="exact: cdb token_loops", kind="exact", verdict="PASS", why="token_loops of cdb is 2,500"
)
FAILED = GateCheck(
    name="timed: cdb output_throughput",
    kind="timed",
    verdict="FAIL",
    why="output_throughput of cdb is 0.90× [0.88, 0.92] as good: worse beyond the noise",
    mode="cdb",
    metric="output_throughput",
    base=100.0,
    run=90.0,
    ratio=IntervalRecord(estimate=0.9, low=0.88, high=0.92, n=12),
    margin=0.05,
)
UNTOLD = GateCheck(
    name="within: cdb/static speedup.e2e",
    kind="within",
    verdict="INCONCLUSIVE",
    why="speedup of cdb over static is 1.10× [0.90, 1.30]: the interval holds the bound",
)
SPOILED = GateCheck(
    name="timed: static e2e",
    kind="timed",
    verdict="INVALID",
    why="e2e of static cannot be judged: other work",
)
Places = tuple[Path | None, Path | None, Path | None]
HOSTILE = 'a <b> & "c" | `d` *e* \x00\x1b[31m\nnext \ud800 line_'


def side(name: str = "results/runs/new", **changes: Any) -> SideRecord:
    fields: dict[str, Any] = {
        "name": name,
        "started_utc": "2026-01-01T00:00:00+00:00",
        "verdict": "VALID",
        "reasons": [],
        "status": "complete",
        "model": "demo-ouro",
        "workload": "ab" * 32,
        "blocks": 6,
        "marks": [],
        "rechecked": True,
    }
    return SideRecord(**{**fields, **changes})


def receipt(
    *checks: GateCheck, verdict: str = "PASS", code: int = 0, **changes: Any
) -> GateReceipt:
    fields: dict[str, Any] = {
        "gate": "demo",
        "gate_sha256": "c" * 64,
        "verdict": verdict,
        "exit_code": code,
        "run": side(),
        "checks": list(checks),
        "sentences": [f"{verdict}: in plain words."],
    }
    return GateReceipt(**{**fields, **changes})


def regressed(**changes: Any) -> GateReceipt:
    """Every verdict there is at once."""
    return receipt(PASSED, FAILED, UNTOLD, SPOILED, verdict="FAIL", code=1, **changes)


# --- JUnit ---


def test_a_case_a_check_with_the_outcome_that_ci_systems_know() -> None:
    suites = ET.fromstring(to_junit(regressed(base=side("old"), baselines={"exact": "b.json"})))
    assert suites.tag == "testsuites"
    (suite,) = suites
    assert suite.tag == "testsuite"
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [
        check.name for check in (PASSED, FAILED, UNTOLD, SPOILED)
    ]
    assert [case.get("classname") for case in cases] == [
        "cdbench.exact",
        "cdbench.timed",
        "cdbench.within",
        "cdbench.timed",
    ]
    outcomes = [[child.tag for child in case if child.tag != "system-out"] for case in cases]
    assert outcomes == [[], ["failure"], ["skipped"], ["error"]]
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "4", "failures": "1", "errors": "1", "skipped": "1"}
    failure = cases[1].find("failure")
    assert failure is not None
    assert failure.get("message") == FAILED.why
    assert failure.get("type") == "fail"
    assert "run: 90.0" in (failure.text or "")
    known = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert known["gate_sha256"] == "c" * 64
    assert (known["run"], known["base"]) == ("results/runs/new", "old")
    assert known["baseline_exact"] == "b.json"
    assert known["workload"] == "ab" * 32


ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"name", "time", "tests", "failures", "errors", "skipped"},
    "properties": set(),
    "property": {"name", "value"},
    "testcase": {"name", "classname", "time"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "skipped": {"message"},
    "system-out": set(),
}
"""What the schemas of the common readers agree on."""
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"properties", "testcase", "system-out"},
    "properties": {"property"},
    "testcase": {"failure", "error", "skipped", "system-out"},
}


def test_only_elements_and_attributes_that_every_reader_knows() -> None:
    marked = side(marks=["RANDOM WEIGHTS"], verdict="INVALID", reasons=["busy"])
    suites = ET.fromstring(to_junit(regressed(run=marked, notes=["no baseline"])))
    for element in suites.iter():
        assert set(element.keys()) == ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set())
    assert [p.get("value") for p in suites.iter("property") if p.get("name") == "mark"] == [
        "run: RANDOM WEIGHTS",
        "run: INVALID: busy",
    ]
    (suite,) = suites
    said = suite.find("system-out")
    assert said is not None
    assert {"run: RANDOM WEIGHTS", "no baseline"} <= set((said.text or "").split("\n"))
    times = {element.get("time") for element in suites.iter() if "time" in element.attrib}
    assert times == {"0"}


def test_what_stops_the_gate_is_a_failure_though_inconclusive() -> None:
    stopped = receipt(UNTOLD, verdict="INCONCLUSIVE", code=5)
    failure = ET.fromstring(to_junit(stopped)).find(".//failure")
    assert failure is not None
    assert failure.get("type") == "inconclusive"
    passed = ET.fromstring(to_junit(receipt(UNTOLD, verdict="INCONCLUSIVE", code=0)))
    assert passed.find(".//failure") is None
    assert passed.find(".//skipped") is not None


@given(st.text())
def test_any_text_makes_a_file_that_can_be_read(words: str) -> None:
    check = FAILED.model_copy(update={"name": words, "why": words})
    made = to_junit(receipt(check, run=side(words), sentences=[words], gate=words))
    case = ET.fromstring(made.encode()).find(".//testcase")
    assert case is not None
    kept = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", words)
    assert case.get("name") == kept


# --- Markdown ---


def test_the_summary_says_the_verdict_first_and_the_plain_words_last() -> None:
    page = to_markdown(
        regressed(
            base=side("old"),
            baselines={"exact": "results/baselines/demo.json"},
            differences=[DifferenceRecord(what="torch", base="2.6", run="2.7", effect="code")],
            notes=["no baseline x"],
        )
    )
    lines = page.splitlines()
    assert lines[0] == "## cdbench gate demo: FAIL"
    assert lines[2] == "Checks: 1 FAIL, 1 INVALID, 1 INCONCLUSIVE, 1 PASS."
    assert lines[-1] == "- FAIL: in plain words."
    for said in (FAILED.why, UNTOLD.why, SPOILED.why, PASSED.why, "torch: 2.6 → 2.7 (code)"):
        assert said in page
    assert "- run: results/runs/new (2026-01-01T00:00, demo-ouro, 6 blocks, VALID)" in lines
    assert "- exact baseline: results/baselines/demo.json" in lines
    assert page.index(FAILED.name) < page.index(SPOILED.name) < page.index(PASSED.name)
    assert "<details>" not in page
    assert page.endswith("\n")


def test_marks_of_a_run_stand_before_its_numbers() -> None:
    marks = ["RANDOM WEIGHTS", "SYNTHETIC depths: shallow", "replayed tokens, depths"]
    spoiled = side(marks=marks, verdict="INVALID", reasons=["another process ran"])
    page = to_markdown(receipt(PASSED, run=spoiled))
    for mark in (*marks, "INVALID: another process ran"):
        assert 0 < page.index(f"**{mark}**") < page.index(PASSED.why)


def test_a_column_that_nothing_fills_is_left_out() -> None:
    page = to_markdown(receipt(FAILED, PASSED, verdict="FAIL", code=1))
    assert page.count("| as good as (a) |") == 1
    assert "0.90× [0.88, 0.92]**" in page
    assert "| check | verdict | why |" in page


def test_many_checks_that_hold_are_folded_away() -> None:
    many = [PASSED.model_copy(update={"name": f"exact: cdb {n}"}) for n in range(40)]
    page = to_markdown(receipt(FAILED, *many, verdict="FAIL", code=1))
    before, details, after = page.partition("<details><summary>40 checks hold</summary>")
    assert details
    assert FAILED.name in before
    assert "exact: cdb" not in before
    assert "exact: cdb 39" in after.partition("</details>")[0]


def test_looks_of_a_paired_gate_have_a_row_each() -> None:
    looks = [
        LookRecord(pairs=6, fail_error=0.001, pass_error=0.002, verdicts={"a": "INCONCLUSIVE"}),
        LookRecord(pairs=12, fail_error=0.01, pass_error=0.02, verdicts={"a": "PASS", "b": "PASS"}),
    ]
    page = to_markdown(receipt(PASSED, looks=looks))
    assert "| 6 | 1 INCONCLUSIVE |" in page
    assert "| 12 | 2 PASS |" in page


@pytest.mark.parametrize("letter", ["x", "*", "é", "\\"])
def test_a_summary_stays_below_what_a_comment_takes(letter: str) -> None:
    words = letter * 5000
    checks = [FAILED.model_copy(update={"name": f"{n}{words}", "why": words}) for n in range(1500)]
    page = to_markdown(
        receipt(
            *checks,
            *[PASSED] * 1500,
            verdict="FAIL",
            code=1,
            run=side(words, reasons=[words] * 99, verdict="INVALID"),
            notes=[words] * 99,
            sentences=[words] * 1500,
            differences=[DifferenceRecord(what=words, base=words, run=words, effect="work")] * 99,
        )
    )
    assert len(page.encode()) <= MOST_BYTES < 65_536
    assert re.search(r"and \d+ more: see the receipt\.", page)


def test_what_is_cut_is_counted() -> None:
    checks = [
        FAILED.model_copy(update={"name": f"timed: {n}", "why": "x" * 290}) for n in range(500)
    ]
    page = to_markdown(receipt(*checks, verdict="FAIL", code=1))
    shown = page.count("| timed: ") + page.count("| **timed: ")
    (left,) = re.findall(r"and (\d+) more: see the receipt", page)
    assert shown + int(left) == 500
    assert shown >= 50


@given(st.text())
def test_a_plain_text_has_nothing_that_markdown_acts_on(words: str) -> None:
    made = plain(words)
    assert "\n" not in made
    assert not set(made) & set("<>`*~\\")
    assert "](" not in made
    assert re.sub(r"&(?:amp|lt|gt|#\d+);", "", made).count("&") == 0


def test_hostile_names_stay_within_their_cell() -> None:
    check = FAILED.model_copy(update={"name": HOSTILE, "why": HOSTILE, "ratio": None})
    page = to_markdown(receipt(check, verdict="FAIL", code=1))
    (row,) = [line for line in page.splitlines() if line.startswith("| **a")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 4
    assert "<b>" not in page
    assert "\x1b" not in page
    page.encode()


# --- annotations ---


def test_annotations_have_the_level_of_their_check() -> None:
    lines = workflow_commands(regressed(notes=["no baseline x"]))
    assert lines == [
        "::error title=cdbench gate demo%2C timed%3A cdb output_throughput::" + FAILED.why,
        "::error title=cdbench gate demo%2C timed%3A static e2e::" + SPOILED.why,
        "::warning title=cdbench gate demo%2C within%3A cdb/static speedup.e2e::" + UNTOLD.why,
        "::warning title=cdbench gate demo::no baseline x",
    ]
    assert workflow_commands(receipt(PASSED)) == [
        "::notice title=cdbench gate demo::PASS: in plain words."
    ]
    stopped = workflow_commands(receipt(UNTOLD, verdict="INCONCLUSIVE", code=5))
    assert [line.split()[0] for line in stopped] == ["::error"]


def test_random_weights_and_synthetic_depths_are_warned_of() -> None:
    marks = ["RANDOM WEIGHTS", "SYNTHETIC depths: shallow", "replayed tokens, depths"]
    lines = workflow_commands(receipt(PASSED, run=side("new", marks=marks)))
    assert [line.rpartition("::")[2] for line in lines if line.startswith("::warning")] == [
        "new: RANDOM WEIGHTS",
        "new: SYNTHETIC depths: shallow",
    ]


def test_replay_and_invalid_stand_in_the_annotations_too() -> None:
    spoiled = side("new", verdict="INVALID", reasons=["it was killed"], marks=["replayed tokens"])
    made = receipt(SPOILED, verdict="INVALID", code=3, run=spoiled, base=side("old", marks=["M"]))
    lines = workflow_commands(made)
    assert "::warning title=cdbench gate demo::new: INVALID: it was killed" in lines
    assert "::warning title=cdbench gate demo::old: M" in lines
    assert "::notice title=cdbench gate demo::new: replayed tokens" in lines


def test_marks_are_not_crowded_out_by_notes() -> None:
    marked = side("new", marks=["RANDOM WEIGHTS"])
    lines = workflow_commands(receipt(PASSED, run=marked, notes=["a note"] * 30))
    assert any("RANDOM WEIGHTS" in line for line in lines)


def test_what_a_runner_would_drop_is_counted() -> None:
    checks = [FAILED.model_copy(update={"name": f"timed: {n}"}) for n in range(25)]
    lines = workflow_commands(receipt(*checks, verdict="FAIL", code=1))
    assert len(lines) == MOST
    assert "and 16 more" in lines[-1]


@given(st.text())
def test_an_annotation_is_one_command_whatever_it_says(words: str) -> None:
    check = FAILED.model_copy(update={"name": words, "why": words})
    (line,) = workflow_commands(receipt(check, verdict="FAIL", code=1))
    assert "\n" not in line
    assert "\r" not in line
    match = re.fullmatch(r"::error title=([^:,]*)::(.*)", line, flags=re.S)
    assert match is not None
    message = match[2].replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")
    assert message == visible(words[:2000])


# --- where they go ---


def all_places(folder: Path) -> tuple[Path, Path, Path]:
    return folder / "junit.xml", folder / "summary.md", folder / "receipt.json"


def test_everything_that_was_asked_for_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junit, summary, written = all_places(tmp_path)
    step = tmp_path / "step.md"
    step.write_text("# before\n")
    environ = {"GITHUB_STEP_SUMMARY": str(step), "GITHUB_ACTIONS": "true"}
    made = regressed()
    prove_outputs(junit, summary, written, environ)
    assert sorted(tmp_path.iterdir()) == [step]
    write_outputs(made, junit, summary, written, environ)
    assert junit.read_text() == to_junit(made)
    assert summary.read_text() == to_markdown(made)
    assert GateReceipt.model_validate_json(written.read_text()) == made
    assert json.loads(written.read_text())["exit_code"] == 1
    assert step.read_text() == "# before\n\n" + to_markdown(made)
    printed = capsys.readouterr()
    assert printed.err.splitlines() == workflow_commands(made)
    assert printed.out == ""
    assert len(list(tmp_path.iterdir())) == 4


def test_nothing_is_written_or_said_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_outputs(regressed(), None, None, None, {})
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_places_are_refused_before_anything_is_judged(tmp_path: Path) -> None:
    junit, summary, _ = all_places(tmp_path)
    read = tmp_path / "result.json"
    read.write_text("{}")
    cases: list[tuple[Places, str]] = [
        ((tmp_path / "no" / "x.xml", None, None), "--junit"),
        ((None, tmp_path, None), "is a directory"),
        ((junit, summary, junit), "--receipt"),
        ((None, None, read), "read here"),
        ((tmp_path / "requests.jsonl", None, None), "is what a run wrote"),
        ((None, tmp_path / "samples_gsm8k.jsonl", None), "is what a run wrote"),
        ((None, None, tmp_path / ("x" * 300)), "--receipt"),
    ]
    for arguments, says in cases:
        with pytest.raises(UsageError, match=re.escape(says)) as refused:
            prove_outputs(*arguments, environ={}, keep=[read])
        assert "\n" not in str(refused.value)
    with pytest.raises(UsageError, match="GITHUB_STEP_SUMMARY"):
        prove_outputs(None, None, None, {"GITHUB_STEP_SUMMARY": str(tmp_path / "no" / "s.md")})
    prove_outputs(None, None, None, {"GITHUB_STEP_SUMMARY": str(tmp_path / "new.md")})
    prove_outputs(None, None, None, {"GITHUB_STEP_SUMMARY": ""})
    assert sorted(tmp_path.iterdir()) == [read]


def test_a_link_to_a_runs_file_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    (tmp_path / "mine.json").symlink_to("result.json")
    with pytest.raises(UsageError, match="is what a run wrote"):
        prove_outputs(None, None, tmp_path / "mine.json", {})


def test_what_a_gate_reads_is_known_before_it_is_read(tmp_path: Path) -> None:
    for name in ("demo.json", "demo.abc.json", "demolition.json", "demo.txt"):
        (tmp_path / name).touch()
    read = set(baselines_read("demo", tmp_path))
    assert read == {tmp_path / "demo.json", tmp_path / "demo.abc.json"}
    # Where there is none yet, what is written in its place would be read the next time.
    assert set(baselines_read("new", tmp_path)) == {tmp_path / "new.json"}
    assert [path.name for path in files_read("ci", [str(tmp_path)])] == ["ci.yaml"]


def test_what_can_be_written_is_written_beside_what_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junit, summary, _ = all_places(tmp_path)
    made = regressed()
    with pytest.raises(OutputError, match=r"no/r\.json"):
        write_outputs(made, junit, summary, tmp_path / "no" / "r.json", {"GITHUB_ACTIONS": "true"})
    assert junit.read_text() == to_junit(made)
    assert summary.read_text() == to_markdown(made)
    assert capsys.readouterr().err.splitlines() == workflow_commands(made)


def test_a_summary_that_cannot_be_written_is_one_line_and_leaves_what_was_there(
    tmp_path: Path,
) -> None:
    step = tmp_path / "step.md"
    with pytest.raises(OutputError, match=r"no/step\.md"):
        append_step_summary("x", {"GITHUB_STEP_SUMMARY": str(tmp_path / "no" / "step.md")})
    if os.path.exists("/dev/full"):
        with pytest.raises(OutputError, match="No space left"):
            append_step_summary("x", {"GITHUB_STEP_SUMMARY": "/dev/full"})
    append_step_summary("# one\n", {"GITHUB_STEP_SUMMARY": str(step)})
    append_step_summary("# two\n", {"GITHUB_STEP_SUMMARY": str(step)})
    assert step.read_text() == "# one\n\n# two\n"

"""Task files are kept so that a run can be repeated from another directory."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cdbench.bench.again import config_from
from cdbench.bench.suites import found_anywhere, suite_notes
from cdbench.cli.main import main
from cdbench.config import load_config
from cdbench.evals.suite import Suite
from cdbench.evals.task_paths import is_path, lasting
from cdbench.schema import read_result
from tests.evaluating import WRITE, write_task


def test_a_name_lasts_and_a_path_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "t.yml").write_text("task: t\n")
    assert lasting("demo_add") == "demo_add"
    assert lasting("set/t.yml") == str(tmp_path / "set" / "t.yml")
    assert lasting("set") == lasting("./set") == lasting("~/set") == str(tmp_path / "set")
    # What is not there is refused later, as it was typed.
    assert lasting("set/none.yaml") == "set/none.yaml"
    assert is_path("~nobody-at-all/t.yaml")


def test_keys_that_were_left_open_stay_open(tmp_path: Path) -> None:
    config = found_anywhere(load_config(None, (), {"limit": 3}))
    assert config.model_fields_set == {"limit"}
    inline = load_config(None, (), {"evaluation.samples": '{"demo_add": [1]}'})
    assert found_anywhere(inline).evaluation.samples == '{"demo_add": [1]}'


def test_a_run_is_repeated_from_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    write_task(here, "write", {**WRITE, "doc_to_text": "m 1 ; :"})
    there.mkdir()
    (here / "chosen.json").write_text(json.dumps({"write": [1, 4]}))
    monkeypatch.chdir(here)
    words = ["--work", "live", "--modes", "static", "--device", "cpu", "--json"]
    asked = ["--tasks", "write.yaml", "--samples", "chosen.json", "--num-fewshot", "2"]
    assert main(["run", *asked, *words, "--out", str(tmp_path / "one")]) == 0
    monkeypatch.chdir(there)
    assert main(["run", "--from", str(tmp_path / "one"), "--out", str(tmp_path / "two")]) == 0
    printed = capsys.readouterr().out
    one, two = read_result(tmp_path / "one"), read_result(tmp_path / "two")
    assert one.config["tasks"] == two.config["tasks"] == [str(here / "write.yaml")]
    assert one.accuracy is not None
    assert two.accuracy is not None
    assert one.accuracy.questions == two.accuracy.questions
    assert two.manifest.repeated is not None
    assert two.manifest.repeated.overridden == []
    assert config_from(tmp_path / "two").tree["tasks"] == [str(here / "write.yaml")]
    # What the tasks warn of stands on the card and in the result.
    assert "note      tasks: write: in 2 of 2 prompts an example is the question" in printed
    assert two.scores is not None
    assert any("an example is the question" in note for note in two.scores.notes)
    assert two.model is not None
    assert any("an example is the question" in note for note in two.model.notes)


def test_the_telling_notes_are_shown_and_the_others_counted() -> None:
    def lines(*notes: str) -> list[str]:
        return list(suite_notes(cast(Suite, SimpleNamespace(notes=notes))))

    filled = (
        "[Task: t] metric acc is defined, but aggregation is not. using default aggregation=mean"
    )
    assert list(suite_notes(None)) == lines() == []
    assert lines("task t: 2 documents have an empty text", filled) == [
        "tasks: t: 2 documents have an empty text",
        "tasks: 1 more note is in result.json (scores.notes)",
    ]
    many = lines(*(f"note {i}" for i in range(6)), filled)
    assert many[:4] == [f"tasks: note {i}" for i in range(4)]
    assert many[4:] == ["tasks: 3 more notes are in result.json (scores.notes)"]

"""Tasks: the shipped files load from anywhere, answers are read as the YAML says."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdbench import resources
from cdbench.errors import UsageError
from cdbench.evals.tasks import Document, load_task

YAML = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: elsewhere/sums.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}} ="
doc_to_target: "{{result}}"
generation_kwargs: {until: ["<eos>"], max_gen_toks: 7}
filter_list:
  - name: last
    filter:
      - {function: regex, regex_pattern: "answer : (\\\\d+)", group_select: -1}
"""


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    (tmp_path / "sums.jsonl").write_text(
        '{"question": "1 + 1", "result": 2}\n{"question": "2 + 2", "result": 4}\n'
    )
    (tmp_path / "sums.yaml").write_text(YAML)
    return tmp_path / "sums.yaml"


def test_every_shipped_task_loads_from_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in resources.task_names():
        task = load_task(name, limit=3)
        assert task.name == name
        assert len(task.documents) == 3
        assert all(d.prompt and d.answer for d in task.documents)
        assert task.pattern is not None


def test_templates_limits_and_stops_are_read(sums: Path) -> None:
    task = load_task(str(sums), limit=1)
    assert task.documents == (Document("sums", 0, "1 + 1 =", "2"),)
    assert task.max_new_tokens == 7
    assert task.stops == ("<eos>",)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("answer : 2", True),
        ("answer : 3 then answer : 2", True),
        ("answer : 2 then answer : 3", False),
        ("2", False),
        ("", False),
    ],
)
def test_the_last_match_is_the_answer(sums: Path, text: str, right: bool) -> None:
    task = load_task(str(sums))
    assert task.is_right(text, task.documents[0]) is right


def test_bad_tasks_are_named(tmp_path: Path, sums: Path) -> None:
    with pytest.raises(UsageError, match="no such task"):
        load_task("no_such_task_at_all")
    with pytest.raises(UsageError, match="no such file"):
        load_task(str(tmp_path / "missing.yaml"))
    sums.write_text(YAML.replace("generate_until", "multiple_choice"))
    with pytest.raises(UsageError, match="output_type"):
        load_task(str(sums))
    sums.write_text(YAML.replace("dataset_path: json", "dataset_path: gsm8k"))
    with pytest.raises(UsageError, match="local JSONL"):
        load_task(str(sums))
    sums.write_text(YAML)
    (tmp_path / "sums.jsonl").write_text('{"question": "1 + 1"}\n')
    with pytest.raises(UsageError, match=r"sums\.jsonl:1"):
        load_task(str(sums))
    (tmp_path / "sums.jsonl").write_text("")
    with pytest.raises(UsageError, match="no documents"):
        load_task(str(sums))

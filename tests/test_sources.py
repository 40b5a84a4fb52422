"""Sources of prompts that hold nothing, or nothing that can be asked: what is said of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from cdbench.bench.plan import Plan, make_plan
from cdbench.bench.workload import prepare
from cdbench.config import load_config
from cdbench.errors import UsageError

DEMO = {"model": "demo-ouro", "dense": "", "limit": 2, "device": "cpu", "modes": "static,cdb"}


@cache
def demo_plan() -> Plan:
    return make_plan(load_config(None, (), DEMO))


def refusal(**workload: object) -> str:
    """The one line that refuses these keys of `workload`, before anything runs."""
    keys = {f"workload.{name}": value for name, value in workload.items()}
    plan = replace(demo_plan(), config=load_config(None, (), {**DEMO, **keys}))
    with pytest.raises(UsageError) as caught:
        prepare(plan)
    message = str(caught.value)
    assert "\n" not in message
    assert "; " in message
    return message


def file_of(tmp_path: Path, name: str, content: str) -> str:
    path = tmp_path / name
    path.write_text(content)
    return str(path)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.csv", "a.txt", "a.parquet"])
@pytest.mark.parametrize("content", ["", " \n\n  \n"])
def test_an_empty_file_is_called_empty(tmp_path: Path, name: str, content: str) -> None:
    source = file_of(tmp_path, name, content)
    assert refusal(source=source) == f"workload.source: {source} is empty; name another file"


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.json", "[]"), ("a.json", "{}"), ("a.jsonl", "{}\n{}\n"), ("a.csv", "prompt,answer\n")],
)
def test_a_file_without_a_row_says_so(tmp_path: Path, name: str, content: str) -> None:
    source = file_of(tmp_path, name, content)
    assert f"{source} holds no row" in refusal(source=source)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("null", "starts with 'null'"),
        ("null\n" + '{"text": "a"}', "starts with 'null'"),
        ('{"text": "a"}\nnull\n', "holds null where a row should be"),
        ('"a text of many words, and more of them"', """starts with '"a text of many words'..."""),
        ("7", "starts with '7'"),
    ],
)
def test_json_that_is_no_rows_is_not_given_to_a_parser_that_dies_of_it(
    tmp_path: Path, content: str, why: str
) -> None:
    said = refusal(source=file_of(tmp_path, "a.jsonl", content))
    assert why in said
    assert "expected rows {...}" in said


def test_one_row_over_several_lines_may_hold_null(tmp_path: Path) -> None:
    source = file_of(tmp_path, "a.json", '{"text":\n"add 1 2 :",\n"more":\nnull\n}\n')
    config = load_config(None, (), {**DEMO, "workload.source": source})
    work = prepare(replace(demo_plan(), config=config))
    assert work is not None
    assert len(work.requests) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "prompt,answer\n,\n,\n"),
        ("a.jsonl", '{"prompt": null, "answer": null}\n'),
        ("a.jsonl", '{"prompt": "", "answer": " "}\n'),
    ],
)
def test_rows_of_nothing_name_their_columns(tmp_path: Path, name: str, content: str) -> None:
    source = file_of(tmp_path, name, content)
    said = refusal(source=source)
    assert f"every row of {source} is empty in every column (prompt, answer)" in said


def test_a_column_of_nothing_is_named_with_the_key_that_named_it(tmp_path: Path) -> None:
    rows = '{"q": "add 1 2 :", "hint": null, "instruction": " ", "output": "3"}\n' * 60
    source = file_of(tmp_path, "a.jsonl", rows)
    for key in ("column", "reference_column"):
        said = refusal(source=source, **{key: "hint"})
        assert said.startswith(f"workload.{key}: 'hint' is empty in every row of {source}")
        assert "it has q, hint, instruction, output" in said
    said = refusal(source=source, template="{hint}")
    assert said.startswith("workload.template: the columns it names are empty in every row")


def test_a_column_that_is_filled_late_is_not_empty(tmp_path: Path) -> None:
    late = '{"q": "a", "hint": null}\n' * 60 + '{"q": "a", "hint": "add 1 2 :"}\n'
    source = file_of(tmp_path, "a.jsonl", late)
    keys = {"workload.source": source, "workload.column": "hint"}
    work = prepare(replace(demo_plan(), config=load_config(None, (), {**DEMO, **keys})))
    assert work is not None
    assert len(work.requests) == 1


@pytest.mark.parametrize("name", ["hf:", "hf: ", "hf:/", "hf:../a", "hf:a/b/c", "hf:a b"])
def test_what_cannot_be_a_dataset_is_not_asked_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", pytest.fail)
    assert "names no dataset; write hf:NAME" in refusal(source=name)


def test_a_directory_is_not_read_in_place_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "someone" / "something").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", pytest.fail)
    assert "lies here and would be read in its place" in refusal(source="hf:someone/something")


def test_outputs_too_long_name_the_key_that_makes_them_so(tmp_path: Path) -> None:
    source = file_of(tmp_path, "a.txt", "add 1 2 :\n")
    assert "lower workload.output" in refusal(source=source, output=300)
    assert "lower workload.max_new_tokens" in refusal(source=source, max_new_tokens=300)


def test_a_text_that_yaml_reads_as_a_mapping_is_to_be_quoted() -> None:
    for override in ("workload.source=hf:", "workload.arrivals=open-loop: 5"):
        with pytest.raises(UsageError, match="put a text with a colon in quotes"):
            load_config(None, (override,))

"""What cannot be run is found before anything runs, named in one line, with what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from cdbench.errors import UsageError
from cdbench.evals import fetching
from cdbench.evals.options import SuiteOptions
from cdbench.evals.suite import load_suite
from tests.evaluating import CHOICE, WRITE, write_task


def refusal(*names: str | Path, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        load_suite([str(name) for name in names], SuiteOptions(**options))
    said = str(caught.value)
    assert "\n" not in said
    return said


def test_unknown_names_are_told_the_nearest(tmp_path: Path) -> None:
    assert "task 'demo_ad': no such task; did you mean 'demo_add'" in refusal("demo_ad")
    assert "did you mean 'hellaswag'" in refusal("helaswag")
    assert "no such task; see" in refusal("qqqqqqqqqqqqqqqq")
    assert "no such file; see" in refusal(tmp_path / "missing.yaml")
    assert "no such file or directory" in refusal(f"{tmp_path}/missing")
    (tmp_path / "empty").mkdir()
    assert "no task is in" in refusal(tmp_path / "empty")
    with pytest.raises(UsageError, match="none is named"):
        load_suite([])


@pytest.mark.parametrize("name", ["gsm8k", "arc_challenge", "ai2_arc", "mmlu", "mmlu_stem"])
def test_names_of_lm_eval_are_found_without_its_whole_index(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found is what is asked for next: documents, which nobody has here."""
    monkeypatch.setattr(fetching, "within", no_hub)
    said = refusal(name)
    assert f"task {name!r}: dataset " in said
    assert "where there is a network run python -c" in said


def no_hub(limit_s: float, ask: Any) -> None:
    raise TimeoutError


def test_a_task_named_twice_is_refused(tmp_path: Path) -> None:
    path = write_task(tmp_path / "a", "write", WRITE)
    again = write_task(tmp_path / "b", "write", WRITE)
    assert "task 'write': named twice" in refusal(path, again)
    assert "task 'demo_add': named twice" in refusal("demo_add", "cdbench_demo")


def test_damaged_task_files_are_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("task: [unclosed\n")
    assert f"{bad}: " in refusal(bad)
    assert "expected an lm-eval task in YAML" in refusal(tmp_path)
    bad.write_text("- a list\n")
    assert "expected an lm-eval task in YAML" in refusal(bad)
    bad.write_text("dataset_path: json\n")
    assert "has no name under `task`" in refusal(bad)
    bad.write_text("task: t\ndoc_to_text: !function nowhere.f\n")
    assert "nowhere" in refusal(bad)
    bad.write_text("task: t\ninclude: missing.yaml\n")
    assert "missing.yaml'" in refusal(bad)


def test_documents_that_are_not_there_are_named(tmp_path: Path) -> None:
    path = write_task(tmp_path, "write", WRITE)
    data = tmp_path / "write.jsonl"
    data.write_text('{"question": "a", "answer": "b"}\n{"question": \n')
    assert f"documents in {data} cannot be read" in refusal(path)
    data.write_text("")
    assert f"no documents in {data}" in refusal(path)
    data.write_text('{"question": "a"}\n')
    assert "task '" in refusal(path)
    data.unlink()
    assert "data file 'somewhere/write.jsonl' is not there" in refusal(path)


def test_an_absent_dataset_is_named_with_what_fetches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub: dict[str, Any] = {
        "dataset_path": "someone/something",
        "dataset_name": "main",
        "dataset_kwargs": None,
    }
    path = write_task(tmp_path, "far", WRITE, **hub)

    monkeypatch.setattr(fetching, "within", no_hub)
    said = refusal(path)
    assert "dataset someone/something (main) is not in the local cache" in said
    assert "load_dataset('someone/something', 'main')" in said


def test_what_needs_more_than_text_is_refused(tmp_path: Path) -> None:
    seen = write_task(tmp_path / "a", "seen", WRITE, doc_to_image=["question"])
    assert "only text is available" in refusal(seen)
    run = write_task(tmp_path / "b", "run", WRITE, unsafe_code=True)
    assert "runs code that a model wrote" in refusal(run)


def test_a_metric_that_lm_eval_does_not_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The library it would be looked for in takes seconds to import; without it nothing is found.
    monkeypatch.setitem(sys.modules, "evaluate", None)
    for extra in ({}, {"aggregation": "mean", "higher_is_better": True}):
        path = write_task(tmp_path, "rare", WRITE, metric_list=[{"metric": "rare_metric", **extra}])
        said = refusal(path)
        assert "metric 'rare_metric' is not lm-eval's own" in said
        assert "evaluate.load('rare_metric')" in said


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"limit": 0}, "limit is 0"),
        ({"limit": 2.5}, "limit is 2.5"),
        ({"limit": 1, "samples": {"write": [0]}}, "drop one"),
        ({"num_fewshot": -1}, "num_fewshot is -1"),
        (
            {"num_fewshot": 50},
            "task 'write': num_fewshot is 50, but there are 7 examples to choose from; lower "
            "evaluation.num_fewshot",
        ),
        ({"samples": {"writ": [0]}}, "'writ' is not among the tasks"),
        ({"samples": {"write": [7]}}, "has no document 7; it has 0 to 6"),
        ({"samples": {"write": []}}, "expected a list of document ids"),
        ({"samples": {"write": ["a"]}}, "expected a list of document ids"),
        ({"samples": "missing.json"}, "missing.json"),
        ({"gen_kwargs": "temperature"}, "'temperature' has no value"),
        ({"gen_kwargs": "temperature=0.5"}, "add do_sample=true"),
        ({"gen_kwargs": "do_sample=true"}, "add temperature=1.0"),
        ({"gen_kwargs": "temperature=x,do_sample=true"}, "temperature='x'; use a number"),
        ({"gen_kwargs": "temperature=true"}, "temperature=True; use a number"),
        ({"gen_kwargs": "temperature=inf"}, "temperature=inf; use a number"),
        ({"gen_kwargs": "top_p=true"}, "top_p=True; use a number"),
        ({"gen_kwargs": "max_gen_toks=5.7"}, "max_gen_toks=5.7; use a whole number"),
        ({"gen_kwargs": "max_gen_toks=true"}, "max_gen_toks=True; use a whole number"),
        ({"gen_kwargs": "max_new_tokens=false"}, "max_new_tokens=False; use a whole number"),
        ({"gen_kwargs": "top_k=1.5"}, "top_k=1.5; use a whole number"),
        ({"gen_kwargs": "do_sample=5"}, "do_sample=5; use true or false"),
        ({"gen_kwargs": "temperature=0.5,temperature=0.7"}, "temperature is given twice"),
        ({"gen_kwargs": "top_k=1, top_k=2"}, "top_k is given twice"),
        ({"gen_kwargs": "max_gen_toks=5,max_new_tokens=9"}, "are one length; give one of them"),
        ({"gen_kwargs": ","}, "a comma with nothing beside it"),
        ({"gen_kwargs": "top_k=1,"}, "a comma with nothing beside it"),
        ({"gen_kwargs": "top_k="}, "'top_k=' has no value"),
        ({"gen_kwargs": "=1"}, "'=1' has no value"),
        ({"gen_kwargs": "max_gen_toks=0"}, "use at least 1"),
        ({"gen_kwargs": "top_p=0"}, "above 0 and at most 1"),
        ({"gen_kwargs": "num_beams=4"}, "num_beams=4 is not available"),
        ({"gen_kwargs": {"repetition_penalty": 1.2}}, "repetition_penalty=1.2 is not available"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    tmp_path: Path, options: dict[str, Any], part: str
) -> None:
    assert part in refusal(write_task(tmp_path, "write", WRITE), **options)


def test_arguments_without_effect_are_not_refused(tmp_path: Path) -> None:
    path = str(write_task(tmp_path, "write", WRITE))
    load_suite([path], SuiteOptions(gen_kwargs="num_beams=1,temperature=0.0"))


def test_whole_numbers_may_be_written_with_a_point(tmp_path: Path) -> None:
    path = str(write_task(tmp_path, "write", WRITE))
    suite = load_suite([path], SuiteOptions(gen_kwargs="max_gen_toks=5.0,top_k=0"))
    assert suite.task("write").generation is not None


def test_a_task_s_own_arguments_are_held_to_the_same(tmp_path: Path) -> None:
    path = write_task(tmp_path, "write", WRITE, generation_kwargs={"max_gen_toks": 5.5})
    assert "task 'write': generation argument max_gen_toks=5.5; use a whole" in refusal(path)


def test_generation_arguments_that_no_task_heeds_are_refused(tmp_path: Path) -> None:
    choose = write_task(tmp_path, "choose", CHOICE)
    assert "none of the tasks generates text" in refusal(choose, gen_kwargs="max_gen_toks=4")
    write = write_task(tmp_path, "write", WRITE)
    load_suite([str(choose), str(write)], SuiteOptions(gen_kwargs="max_gen_toks=4"))


def test_a_task_without_a_dataset_is_told_what_to_set(tmp_path: Path) -> None:
    path = write_task(tmp_path, "nowhere", WRITE, dataset_path=None, dataset_kwargs=None)
    said = refusal(path)
    assert "task " in said
    assert "names no documents; set its dataset_path" in said
    assert "None" not in said


def test_from_the_split_that_is_asked_one_example_is_never_there(tmp_path: Path) -> None:
    path = write_task(tmp_path, "write", WRITE, fewshot_split="test")
    assert "num_fewshot is 7, but there are 6 examples" in refusal(path, num_fewshot=7)
    load_suite([str(path)], SuiteOptions(num_fewshot=6))

"""Suites: tasks are found from any directory, requests built once, what cannot run is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdbench import resources
from cdbench.errors import UsageError
from cdbench.evals.options import SuiteOptions
from cdbench.evals.own_rule import OwnRule, own_rule
from cdbench.evals.suite import Suite, load_suite
from tests.evaluating import CHOICE, QUESTIONS, READ, WRITE, write_task


def contexts(suite: Suite) -> list[str]:
    return [one.args[0] for one in suite.instances]


def test_every_shipped_task_loads_from_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = resources.task_names()
    suite = load_suite(names, SuiteOptions(limit=2))
    assert tuple(task.name for task in suite.tasks) == names
    assert len(suite.instances) == 2 * len(names)
    for task in suite.tasks:
        assert task.primary == ("exact_match", "final-answer")
        assert task.generation is not None
    tagged = load_suite(["cdbench_demo"], SuiteOptions(limit=2))
    assert tagged.hash == suite.hash


def test_names_files_and_directories_give_the_same_requests(tmp_path: Path) -> None:
    file = write_task(tmp_path / "set", "choose", CHOICE)
    write_task(tmp_path / "set", "write", WRITE)
    (tmp_path / "set" / "both.yaml").write_text(
        "group: both\ntask: [choose, write]\n"
        "aggregate_metric_list: [{metric: acc, weight_by_size: true}]\n"
    )
    alone = load_suite([str(file)])
    group = load_suite([str(tmp_path / "set" / "both.yaml")])
    directory = load_suite([str(tmp_path / "set")])
    assert group.groups == directory.groups == {"both": ("choose", "write")}
    assert group.hash == directory.hash != alone.hash
    assert contexts(alone) == contexts(group)[: len(alone.instances)]
    # A choice is a request; metrics, filters and the primary one are the task's.
    info = group.task("choose")
    assert len(alone.instances) == 3 * len(QUESTIONS)
    assert info.metrics == {"acc": True, "acc_norm": True}
    assert (info.primary, info.output_type) == (("acc_norm", "none"), "multiple_choice")
    assert group.task("write").primary == ("exact_match", "first")


def test_questions_have_the_hashes_of_lm_eval(tmp_path: Path) -> None:
    suite = load_suite([str(write_task(tmp_path, "read", READ))])
    assert [q.doc_id for q in suite.questions] == list(range(len(QUESTIONS)))
    assert len({q.doc_hash for q in suite.questions}) == len(QUESTIONS)
    assert suite.task("read").metrics == {"word_perplexity": False}


def fewshot(tmp_path: Path, **changes: Any) -> Path:
    files = {"test": "shots.jsonl", "train": "train.jsonl"}
    path = write_task(
        tmp_path,
        "shots",
        WRITE,
        dataset_kwargs={"data_files": files},
        fewshot_split="train",
        training_split="train",
        **changes,
    )
    examples = [{**q, "question": f"example {i}"} for i, q in enumerate(QUESTIONS)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(e) + "\n" for e in examples))
    return path


def test_examples_come_from_their_split_and_are_drawn_by_the_seed(tmp_path: Path) -> None:
    path = str(fewshot(tmp_path, num_fewshot=1))
    own, two, other = (
        load_suite([path], options)
        for options in (SuiteOptions(), SuiteOptions(num_fewshot=2), SuiteOptions(seed=3))
    )
    assert [c.count("example") for c in contexts(own)] == [1] * len(QUESTIONS)
    assert [c.count("example") for c in contexts(two)] == [2] * len(QUESTIONS)
    assert len({c.split("\n\n")[0] for c in contexts(own)}) > 1
    assert own.hash != other.hash
    # The same request is the same suite, also of fewer documents.
    assert load_suite([path]).hash == own.hash
    assert contexts(load_suite([path], SuiteOptions(limit=3))) == contexts(own)[:3]
    (tmp_path / "none").mkdir()
    fixed = fewshot(tmp_path / "none", num_fewshot=0)
    kept = load_suite([str(fixed)], SuiteOptions(num_fewshot=2))
    assert kept.task("shots").num_fewshot == 0


def test_documents_can_be_limited_and_chosen(tmp_path: Path) -> None:
    path = str(write_task(tmp_path, "write", WRITE))

    def ids(**options: Any) -> tuple[int, ...]:
        return load_suite([path], SuiteOptions(**options)).task("write").doc_ids

    assert ids(limit=2) == (0, 1)
    assert ids(limit=100) == tuple(range(7))
    assert ids(limit=0.5) == (0, 1, 2, 3)
    assert ids(samples={"write": [5, 2, 5]}) == (2, 5)
    chosen = tmp_path / "chosen.json"
    chosen.write_text('{"write": [6, 1]}')
    suite = load_suite([path], SuiteOptions(samples=chosen))
    assert [q.doc_id for q in suite.questions] == [1, 6]
    assert contexts(suite) == [QUESTIONS[1]["question"], QUESTIONS[6]["question"]]


def test_generation_arguments_change_the_tasks(tmp_path: Path) -> None:
    path = str(write_task(tmp_path, "write", WRITE))
    changed = load_suite(
        [path], SuiteOptions(gen_kwargs="temperature=0.7,top_p=0.9,do_sample=true,max_gen_toks=9")
    )
    assert changed.task("write").generation == {
        "until": ["two three"],
        "max_gen_toks": 9,
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.9,
    }
    assert changed.hash != load_suite([path]).hash


def test_a_template_renders_what_is_asked(tmp_path: Path) -> None:
    path = str(fewshot(tmp_path, num_fewshot=1))

    def template(turns: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        said = "".join(f"[{turn['role']}] {turn['content']}" for turn in turns)
        return said + ("[assistant]" if add_generation_prompt else "")

    options = SuiteOptions(apply_chat_template=True, system_instruction="Be brief.")
    turns = contexts(load_suite([path], options, template))[0]
    assert turns.startswith("[system] Be brief.[user] example ")
    assert turns.endswith(f"[user] {QUESTIONS[0]['question']}[assistant]")
    single = SuiteOptions(apply_chat_template=True, fewshot_as_multiturn=False)
    assert contexts(load_suite([path], single, template))[0].count("[user]") == 1
    plain = contexts(load_suite([path], SuiteOptions(), template))
    assert plain == contexts(load_suite([path]))
    with pytest.raises(
        UsageError, match=r"evaluation\.chat_template: the model has no chat template"
    ):
        load_suite([path], SuiteOptions(apply_chat_template=True))


def test_global_random_numbers_and_loggers_are_left_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import logging
    import random

    path = str(write_task(tmp_path, "write", {**WRITE, "generation_kwargs": {"max_gen_toks": 3}}))
    before = random.getstate(), logging.getLogger("lm_eval").level
    suite = load_suite([path])
    assert (random.getstate(), logging.getLogger("lm_eval").level) == before
    assert capfd.readouterr() == ("", "")
    # What lm-eval warns of is kept: here that it made up where an answer ends.
    assert any("No `until` specified" in note for note in suite.notes)


def test_files_that_end_in_yml_are_found_like_others(tmp_path: Path) -> None:
    """Alone, in a directory, as a group, and as a member of one that ends otherwise."""
    write_task(tmp_path / "set", "choose", CHOICE)
    write = write_task(tmp_path / "set", "write", WRITE, tag="tagged")
    write.rename(write.with_suffix(".yml"))
    group = tmp_path / "set" / "both.yml"
    group.write_text("group: both\ntask: [choose, write]\n")
    alone = load_suite([str(write.with_suffix(".yml"))])
    assert [task.name for task in alone.tasks] == ["write"]
    for name in (group, tmp_path / "set"):
        suite = load_suite([str(name)])
        assert suite.groups == {"both": ("choose", "write")}
    (tmp_path / "set" / "both.yaml").write_text(group.read_text())
    group.unlink()
    assert load_suite([str(tmp_path / "set" / "both.yaml")]).groups["both"] == ("choose", "write")


def test_an_example_that_is_the_question_itself_is_counted(tmp_path: Path) -> None:
    """lm-eval leaves it out only where both are named as one split."""
    path = str(write_task(tmp_path, "write", WRITE))
    suite = load_suite([path], SuiteOptions(num_fewshot=3))
    held = sum(c.count(f"{q['question']} {q['answer']}") for c, q in asked_with(suite))
    assert held > 0
    said = f"task write: in {held} of {len(QUESTIONS)} prompts an example is the question"
    assert said in suite.notes
    # The task is as it was: the requests do not depend on having been watched.
    assert "fewshot_context" not in vars(suite.loaded.tasks["write"])
    apart = str(fewshot(tmp_path / "apart", num_fewshot=2))
    assert not any("example is the question" in note for note in load_suite([apart]).notes)
    own = str(write_task(tmp_path / "own", "write", WRITE, fewshot_split="test"))
    named = load_suite([own], SuiteOptions(num_fewshot=3))
    assert not any("example is the question" in note for note in named.notes)


def asked_with(suite: Suite) -> list[tuple[str, dict[str, Any]]]:
    return list(zip(contexts(suite), QUESTIONS, strict=True))


def test_another_document_with_the_same_question_is_the_question(tmp_path: Path) -> None:
    path = fewshot(tmp_path, num_fewshot=7)
    assert load_suite([str(path)]).notes == ()
    twins = [{**q, "answer": "z"} for q in QUESTIONS]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(t) + "\n" for t in twins))
    assert (
        "task shots: in 7 of 7 prompts an example is the question" in load_suite([str(path)]).notes
    )


@pytest.mark.parametrize("kind", [CHOICE, READ, {**READ, "output_type": "loglikelihood"}])
def test_what_likelihoods_are_judged_by_is_known_where_lm_eval_judges(
    kind: dict[str, Any], tmp_path: Path
) -> None:
    path = write_task(tmp_path, "t", kind)
    suite = load_suite([str(path)])
    task, doc = suite.loaded.tasks["t"], suite.instances[0].doc
    choices = kind is CHOICE
    expected = OwnRule((5, 1, 3), (0,)) if choices else OwnRule()
    assert own_rule(task, doc) == expected
    filters = [{"name": "f", "filter": [{"function": "take_first"}]}]
    filtered = load_suite([str(write_task(tmp_path / "f", "t", kind, filter_list=filters))])
    assert own_rule(filtered.loaded.tasks["t"], doc) is None
    written = load_suite([str(write_task(tmp_path / "w", "t", WRITE))])
    assert own_rule(written.loaded.tasks["t"], doc) is None

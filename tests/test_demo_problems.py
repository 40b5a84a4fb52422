"""The demo's problems: deterministic, right, of the promised shape, and never seen in training."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import yaml
from tokenizers import Tokenizer

from cdbench.workloads.demo_problems import (
    SPECIALS,
    TASKS,
    Problem,
    build_tokenizer,
    final_answer,
    held_out_documents,
    problems,
    vocabulary,
)

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = 200


def sample(task: str, held_out: bool = False, seed: int = 3) -> Iterator[Problem]:
    return islice(problems(task, seed, held_out), SAMPLE)


def solve(problem: Problem) -> str:
    """The answer worked out from the prompt alone, by other code than the generator's."""
    words = problem.prompt.split()
    return {
        "copy": lambda: " ".join(words[1:-1]),
        "reverse": lambda: " ".join(reversed(words[1:-1])),
        "lookup": lambda: _lookup(words),
        "path": lambda: _path(words),
        "sum": lambda: str(sum(int(w) for w in words if w.isdigit()) % 10),
        "add": lambda: " ".join(
            str(sum(map(int, problem.prompt[4:-2].replace(" ", "").split("+"))))
        ),
        "story": lambda: _story(words),
    }[problem.task]()


def _table(words: list[str]) -> dict[str, str]:
    return {words[i - 2]: words[i - 1] for i, word in enumerate(words) if word == ";"}


def _lookup(words: list[str]) -> str:
    table = _table(words)
    return " ".join(table[key] for key in words[words.index("get") + 1 : -1])


def _path(words: list[str]) -> str:
    node = words[words.index("from") + 1]
    for _ in range(int(words[words.index("hops") + 1])):
        node = _table(words)[node]
    return node


def _story(words: list[str]) -> str:
    total = int(words[words.index("has") + 1])
    for i, word in enumerate(words):
        if word == "then":
            sign = 1 if words[i + 1] in {"finds", "buys", "gets", "wins"} else -1
            total += sign * int(words[i + 2])
            assert 0 <= total <= 20
    return str(total)


@pytest.mark.parametrize("task", TASKS)
def test_answers_are_right_and_are_what_is_extracted(task: str) -> None:
    for problem in sample(task):
        assert problem.answer == solve(problem), problem.prompt
        assert final_answer(problem.completion) == problem.answer
        assert final_answer(f"{problem.prompt} {problem.completion}") == problem.answer


def test_worked_sums_are_right_in_every_step() -> None:
    for problem in sample("add"):
        for step in problem.completion.split(" answer ")[0].split(" ;"):
            left, _, right = step.partition("=")
            assert sum(map(int, left.split("+"))) == int(right) if step.strip() else True


@pytest.mark.parametrize("task", TASKS)
def test_a_seed_fixes_the_stream(task: str) -> None:
    assert list(sample(task)) == list(sample(task))
    assert list(sample(task)) != list(sample(task, seed=4))


@pytest.mark.parametrize("task", TASKS)
def test_no_held_out_document_is_trained_on(task: str) -> None:
    held_out = {p.prompt for p in held_out_documents(task, SAMPLE, seed=0)}
    assert len(held_out) == SAMPLE
    assert all(p.held_out and p.prompt not in held_out for p in sample(task, held_out=True, seed=9))
    for seed in range(3):
        trained = list(sample(task, seed=seed))
        assert not any(p.held_out for p in trained)
        assert held_out.isdisjoint(p.prompt for p in trained)


def test_prompts_are_short_and_outputs_long() -> None:
    drawn = [problem for task in TASKS for problem in sample(task)]
    prompts = [len(p.prompt.split()) for p in drawn]
    outputs = [len(p.completion.split()) for p in drawn]
    assert statistics.median(prompts) <= 24
    assert statistics.mean(outputs) >= 40
    assert max(p + o for p, o in zip(prompts, outputs, strict=True)) < 96


def test_the_tokenizer_has_every_word_and_gives_the_text_back() -> None:
    tokenizer = build_tokenizer()
    assert tokenizer.get_vocab_size() == len(SPECIALS) + len(vocabulary())
    unknown = tokenizer.token_to_id("<unk>")
    for problem in (p for task in TASKS for p in sample(task)):
        text = f"{problem.prompt} {problem.completion}"
        ids = tokenizer.encode(text).ids
        assert len(ids) == len(text.split())
        assert unknown not in ids
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("1 + 2 = 3 ; answer : 3 .", "3"),
        ("answer : 1 . answer : a b c .", "a b c"),
        ("answer : 3", None),
        ("3 .", None),
        ("answer 3 .", None),
        ("answer : .", ""),
        ("", None),
    ],
)
def test_final_answer(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tasks").glob("demo_*.jsonl")), ids=lambda p: p.stem
)
def test_shipped_documents_are_the_generator_s(path: Path) -> None:
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    task = path.stem.removeprefix("demo_")
    drawn = held_out_documents(task, len(documents), seed=0)
    assert [d["id"] for d in documents] == list(range(len(documents)))
    for document, problem in zip(documents, drawn, strict=True):
        shipped = (document["prompt"], document["completion"], document["answer"])
        assert shipped == (problem.prompt, problem.completion, problem.answer)
    recipe = yaml.safe_load(path.with_suffix(".yaml").read_text())
    assert recipe["task"] == path.stem
    assert recipe["dataset_kwargs"]["data_files"] == {"test": f"tasks/{path.name}"}


@pytest.mark.parametrize("name", ["demo-ouro", "demo-dense", "demo-dense-small"])
def test_shipped_models_carry_this_tokenizer_and_its_stop(name: str) -> None:
    directory = ROOT / "cdbench" / "assets" / name
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()
    eos = tokenizer.token_to_id("<eos>")
    for file in ("config.json", "generation_config.json"):
        assert json.loads((directory / file).read_text())["eos_token_id"] == eos
    card = json.loads((directory / "card.json").read_text())
    assert card["name"] == name
    assert all((ROOT / "tasks" / f"{task}.yaml").is_file() for task in card["tasks"])

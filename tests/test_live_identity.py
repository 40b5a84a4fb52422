"""One run's questions are answered alike in float64, whatever the width, order and schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cdbench.bench import live
from cdbench.bench.once import Kept
from cdbench.bench.plan import Plan, make_plan
from cdbench.config import load_config
from cdbench.grammar import parse_mode
from cdbench.schema import SampleRecord
from tests.test_evaluated_run import CHOOSE, LETTER, READ

DOCUMENTS = 2
RULE = "cdf@0.9"
KEPT = Kept()
Samples = Sequence[SampleRecord]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Texts, choices of several tokens and of one, and whole texts."""
    path = tmp_path_factory.mktemp("tasks")
    lines = [
        f'{{"prompt": "sum m {n} ; i 1 ; :", "answer": "{n}", '
        f'"completion": "m + {n} = {n} ; i + 1 = {n + 1} ; answer : {n + 1} ."}}'
        for n in range(DOCUMENTS)
    ]
    (path / "documents.jsonl").write_text("\n".join(lines) + "\n")
    names = []
    for name, text in (("choose", CHOOSE), ("letter", LETTER), ("read", READ)):
        (path / f"{name}.yaml").write_text(text)
        names.append(str(path / f"{name}.yaml"))
    return ",".join(["demo_add", *names])


def planned(tasks: str, **changes: Any) -> Plan:
    keys = {"model": "demo-ouro", "dense": "", "device": "cpu", "dtype": "float64", "work": "live"}
    sizes = {"tasks": tasks, "limit": DOCUMENTS, "modes": "static,cdb", "exit": RULE}
    config = load_config(None, (), {**keys, **sizes, "engine.max_residents": 8, **changes})
    return make_plan(config, KEPT)


def answered(plan: Plan, mode: str, reverse: bool = False) -> list[dict[str, Any]]:
    """A live pass by question; in reverse the last request of the suite is submitted first."""
    if reverse:
        suite = live.suite_of(plan)
        backwards = tuple(reversed(suite.instances))
        plan = replace(plan, suite=replace(suite, instances=backwards))
    subject = plan.subject(parse_mode(mode), "it")
    passed = live.answer(plan, subject, live.questions(plan), lambda _: None)
    return [rounded(sample) for sample in sorted(passed.samples, key=lambda s: s.key)]


def rounded(sample: SampleRecord) -> dict[str, Any]:
    """What must be equal; of logprobs all but the digits that a launch's shape moves."""
    kept = {"task", "doc_id", "prompt_hash", "value", "metrics"}
    plain = sample.model_dump(mode="json", include=kept)
    plain["metrics"] = {name: _digits(value) for name, value in plain["metrics"].items()}
    plain["answers"] = {
        one.id: (
            one.text,
            _digits(one.logprob),
            one.greedy,
            [(p.tokens, p.executed_depths, p.requested_depths) for p in one.pieces],
            [_digits(p.logprobs) for p in one.pieces],
        )
        for one in sample.answers
    }
    return plain


def _digits(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_digits(each) for each in value]
    return round(value, 8) if isinstance(value, float) else value


@pytest.fixture(scope="module")
def alone(tasks: str) -> list[dict[str, Any]]:
    """One row a launch: nothing can depend on company."""
    return answered(planned(tasks, **{"engine.width": 1, "engine.max_residents": 1}), "cdb")


@pytest.mark.parametrize(("layout", "first_token"), [("per-loop", "full"), ("shared", "select")])
def test_no_width_order_or_schedule_changes_an_answer(
    layout: str, first_token: str, tasks: str, alone: list[dict[str, Any]]
) -> None:
    point = {"kv.layout": layout, "first_token": first_token}
    if layout == "shared":
        narrow = {**point, "engine.width": 1, "engine.max_residents": 1}
        alone = answered(planned(tasks, **narrow), "cdb")
    assert {one["task"] for one in alone} == {"demo_add", "choose", "letter", "read"}
    pieces = [p for one in alone for answer in one["answers"].values() for p in answer[3]]
    depths = {depth for _, executed, _ in pieces for depth in executed[1:]}
    assert len(depths) > 1, "the rule must matter here"
    for width in (3, 8):
        assert answered(planned(tasks, **point, **{"engine.width": width}), "cdb") == alone
    plan = planned(tasks, **point)
    assert answered(plan, "cdb", reverse=True) == alone
    assert answered(plan, "lockstep") == alone


def test_without_exits_the_adaptive_modes_are_static(tasks: str) -> None:
    plan = planned(tasks, exit="none")
    static = answered(plan, "static")
    assert answered(plan, "cdb") == static
    assert answered(plan, "lockstep") == static
    assert answered(planned(tasks), "cdb") != static, "with exits they are not"

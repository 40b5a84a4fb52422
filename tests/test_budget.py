"""A KV budget that some request does not fit is found before anything runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from cdbench.bench import live
from cdbench.bench.benchmark import sound
from cdbench.bench.budget import check_budget
from cdbench.bench.plan import Plan
from cdbench.bench.workload import TimedWork, recorded_workload
from cdbench.cli.main import main
from cdbench.config import load_config
from cdbench.errors import UsageError
from cdbench.evals.text import TextCodec
from cdbench.grammar import parse_mode
from cdbench.runtime.core import Request
from tests.evaluating import CHOICE, QUESTIONS, write_task

MODES = "dense:unrolled,dense:demo-dense,static,static@2,lockstep,cdb"


def planned(**changes: object) -> tuple[Plan, TimedWork | None]:
    """The demo's model and two of its questions a task; small keys come first."""
    keys = {"model": "demo-ouro", "dense": "", "limit": 1, "device": "cpu", "work": "equal"}
    sizes = {"modes": "static,cdb", "workload.requests": 2, "engine.max_residents": 2}
    return sound(load_config(None, (), {**keys, **sizes, **changes}))


def needed(plan: Plan, work: TimedWork | None) -> int:
    """The budget that the refusal names."""
    with pytest.raises(UsageError) as refused:
        check_budget(replace(plan, kv_budget_bytes=1), work)
    found = re.search(r"takes a budget of ([0-9,]+);", str(refused.value))
    assert found is not None
    return int(found.group(1).replace(",", ""))


@pytest.mark.parametrize("work", ["live", "equal", "live,equal"])
@pytest.mark.parametrize("model", ["demo-ouro", "demo-huginn"])
def test_the_budget_that_is_named_is_the_least_that_no_mode_refuses(model: str, work: str) -> None:
    """Also where prelude and coda have pools of their own, and for modes of other shapes."""
    dense = "unrolled,demo-dense" if model == "demo-ouro" else "unrolled"
    plan, timed = planned(model=model, work=work, dense=dense, modes=None)
    least = needed(plan, timed)
    check_budget(replace(plan, kv_budget_bytes=least), timed)
    with pytest.raises(UsageError, match=f"{least - 1:,} bytes a mode do not hold"):
        check_budget(replace(plan, kv_budget_bytes=least - 1), timed)


@pytest.mark.parametrize("label", MODES.split(","))
def test_an_engine_of_a_mode_refuses_just_what_the_check_refuses(label: str) -> None:
    plan, timed = planned(dense="unrolled,demo-dense", modes=label)
    assert timed is not None
    subject = plan.subject(parse_mode(label))
    longest = max(request.positions for request in timed.requests)
    least = plan.cache_shape(subject).budget_for(longest)
    for budget, refused in ((least, False), (least - 1, True)):
        tight = replace(plan, kv_budget_bytes=budget)
        cache = tight.engine(subject, live=False).cache
        assert cache.could_ever_hold(longest) is not refused
    # The recording runs under cdb, so that it is never the lesser need alone that counts.
    own = max(least, plan.cache_shape(plan.subject(parse_mode("cdb"))).budget_for(longest))
    assert needed(plan, timed) == own


def test_recorded_requests_count_as_long_as_they_came_to_be() -> None:
    plan, timed = planned()
    assert timed is not None
    short = [replace(r, max_new_tokens=2) for r in timed.requests]
    live = {r.id: r for r in plan.engine(plan.subject(parse_mode("cdb"))).run(short)}
    recorded = replace(timed, recorded=tuple(recorded_workload(short, live)))
    assert needed(plan, recorded) < needed(plan, timed)


def test_the_refusal_names_the_request_the_mode_and_the_key() -> None:
    plan, timed = planned()
    assert timed is not None
    longest: Request = max(timed.requests, key=lambda request: request.positions)
    words = rf"workload request {longest.id}, .*up to {longest.positions} positions"
    with pytest.raises(UsageError, match=words + r".*raise kv\.budget_bytes"):
        check_budget(replace(plan, kv_budget_bytes=1000), timed)
    share = plan.config.kv.model_copy(update={"budget_fraction": 0.1})
    other = plan.config.model_copy(update={"kv": share})
    with pytest.raises(UsageError, match=r"raise kv\.budget_fraction"):
        check_budget(replace(plan, config=other, kv_budget_bytes=1000), timed)


def test_without_a_budget_there_is_nothing_to_hold() -> None:
    plan, timed = planned()
    assert plan.kv_budget_bytes is None
    check_budget(plan, timed)


@pytest.mark.parametrize(
    ("work", "equal"), [("live", "residents"), ("equal", "residents"), ("equal", "memory")]
)
def test_a_run_is_refused_before_it_measures_or_leaves_a_file(
    work: str, equal: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    keys = ["--set", "kv.budget_bytes=100000", "--work", work, "--equal", equal]
    assert main(["run", "ci", *keys, "--stages", "none", "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("cdbench: kv budget: 100,000 bytes a mode do not hold ")
    assert not out.exists()


def test_a_recording_is_refused_likewise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made"
    keys = ["--set", "kv.budget_bytes=100000"]
    assert main(["record", "--model", "demo-ouro", *keys, "--out", str(out)]) == 2
    assert "kv budget: 100,000 bytes" in capsys.readouterr().err
    assert not out.exists()


def test_likelihoods_count_too_and_questions_are_read_once_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A choice that is longer than every text; all modes of one model ask with the same tokens."""
    long = {**QUESTIONS[0], "question": "sum m 1 ; :", "choices": ["m + 1 " * 70, "m"], "gold": 0}
    path = write_task(tmp_path, "choose", CHOICE, [long])
    plan, timed = planned(work="live", tasks=f"demo_add,{path}", modes="static,static@2,cdb")
    read: list[str] = []
    encode = TextCodec.encode

    def counted(self: TextCodec, text: str, add_special_tokens: bool | None = None) -> list[int]:
        read.append(text)
        return encode(self, text, add_special_tokens)

    monkeypatch.setattr(TextCodec, "encode", counted)
    with pytest.raises(UsageError, match="question choose/0, the longest: mode static keeps"):
        check_budget(replace(plan, kv_budget_bytes=1000), timed)
    assert sum("m + 1 m + 1" in text for text in read) <= 2
    least = needed(plan, timed)
    suite = live.suite_of(plan)
    tight = replace(plan, kv_budget_bytes=least)
    check_budget(tight, timed)
    passed = live.answer(
        tight, tight.subject(parse_mode("static")), suite.questions, lambda _: None
    )
    assert not any(sample.failed for sample in passed.samples)
    low = replace(plan, kv_budget_bytes=least - 1)
    passed = live.answer(low, low.subject(parse_mode("static")), suite.questions, lambda _: None)
    assert [sample.failed for sample in passed.samples] == [False, True]

"""Workloads: what is read from a file, how long it is made, how it ends, and what is said of it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdbench import resources
from cdbench.bench.equal import RecordedRequest
from cdbench.bench.findings import findings
from cdbench.bench.plan import Plan, make_plan
from cdbench.bench.workload import TimedWork, prepare, recorded_workload
from cdbench.config import load_config, parse_exit
from cdbench.errors import UsageError
from cdbench.models.loading import LoadedModel, load_model
from cdbench.runtime.core import FinishReason, Request, RequestResult
from cdbench.workloads import dataset, health
from cdbench.workloads.arrival_times import ArrivalSchedule
from cdbench.workloads.arrivals import parse_arrivals
from cdbench.workloads.candidates import seeded_order
from cdbench.workloads.chat import ChatRenderer, plain
from cdbench.workloads.columns import PROBED_ROWS
from cdbench.workloads.exit_trace import load_exit_trace
from cdbench.workloads.identity import difference, workload_hash
from cdbench.workloads.lengths import LengthSpec, cut_or_repeat, parse_lengths
from cdbench.workloads.shapes import Exchange, Message, ShapeSettings, reader_for

DEMO = {"model": "demo-ouro", "dense": "", "limit": 2, "device": "cpu", "modes": "static,cdb"}


@cache
def demo_plan() -> Plan:
    return make_plan(load_config(None, (), DEMO))


@cache
def model() -> LoadedModel:
    return load_model("demo-ouro", device="cpu")


def planned(**workload: object) -> Plan:
    """The demo's plan with other keys of `workload`; the model is loaded once."""
    keys = {f"workload.{name}": value for name, value in workload.items()}
    return replace(demo_plan(), config=load_config(None, (), {**DEMO, **keys}))


def prepared(**workload: object) -> TimedWork:
    work = prepare(planned(**workload))
    assert work is not None
    return work


def rows_file(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def texts(work: TimedWork) -> list[str]:
    return [model().decode(list(request.prompt)) for request in work.requests]


SUMS = [{"question": f"add {i} 3 + 4 {i} :", "answer": f"answer : 7 {i} ."} for i in range(9)]


# Sources.


def test_the_demo_asks_what_the_live_pass_asks() -> None:
    work = prepared(requests=5)
    assert work.as_asked
    assert len(work.requests) == 5
    assert work.requests == prepared(requests=9).requests[:5]
    assert work.notes == ()


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet", "txt"])
def test_a_local_file_of_every_kind_is_read_offline(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connected(*_: object) -> None:
        raise AssertionError("asked the network")

    demo_plan()  # its tasks have a place of their own
    monkeypatch.setattr("socket.socket.connect", connected)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / f"sums.{kind}"
    if kind == "jsonl":
        rows_file(path, SUMS)
    elif kind == "json":
        path.write_text(json.dumps(SUMS))
    elif kind == "csv":
        lines = [f"{row['question']},{row['answer']}\n" for row in SUMS]
        path.write_text("".join(["question,answer\n", *lines]))
    elif kind == "parquet":
        datasets.Dataset.from_list(SUMS).to_parquet(str(path))
    else:
        path.write_text("".join(f"{row['question']}\n" for row in SUMS))
    work = prepared(source=str(path), requests=9)
    assert sorted(texts(work)) == [row["question"] for row in SUMS]
    assert not work.as_asked
    assert sorted(tmp_path.iterdir()) == [path], "nothing is left behind"


def test_rows_are_picked_by_the_seed_and_more_requests_only_add(tmp_path: Path) -> None:
    source = rows_file(tmp_path / "a.jsonl", SUMS)
    few, more = prepared(source=source, requests=4), prepared(source=source, requests=7)
    assert more.requests[:4] == few.requests
    assert prepared(source=source, requests=4, seed=1).requests != few.requests
    assert [r.doc_id for r in few.requests] == seeded_order(9, 0)[:4]
    # Written down: a change here is a change of everybody's workload.
    assert seeded_order(9, 0) == ORDER
    many = prepared(source=source, requests=20)
    assert f"workload.requests: 20 were asked for, {source} gave 9" in many.notes


ORDER = [5, 4, 3, 8, 2, 0, 7, 1, 6]


def test_a_template_is_filled_from_columns(tmp_path: Path) -> None:
    source = rows_file(tmp_path / "a.jsonl", [{"a": "4", "b": 3, "c": None}])
    work = prepared(source=source, template="add {a} + {b} {c}:")
    assert texts(work) == ["add 4 + 3 :"]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"template": "add {qestion}"}, "did you mean 'question'"),
        ({"template": "add {question.__class__}"}, "is no column"),
        ({"template": "add {question!r}"}, "is no column"),
        ({"template": "add {question"}, "workload.template"),
        ({"template": "add"}, "names no column"),
        ({"template": "{question}", "column": "question"}, "drop one"),
        ({"template": "{question}", "format": "chat"}, "use text"),
        ({"column": "qestion"}, "did you mean 'question'"),
        ({"column": "id"}, "holds no text"),
        ({"reference_column": "anwser"}, "did you mean 'answer'"),
        ({"format": "chat"}, "holds turns"),
        ({"format": "alpaca"}, "needs a column 'instruction'"),
        ({"split": "test"}, "has no 'test'"),
        ({"subset": "main"}, "beside a file"),
        ({"max_new_tokens": 4000}, "fits the model's 256 positions"),
        ({"prompt_tokens": 300}, "the model's 256 positions have room for 256"),
    ],
)
def test_what_does_not_fit_a_file_is_said_before_anything_runs(
    tmp_path: Path, keys: dict[str, object], named: str
) -> None:
    source = rows_file(tmp_path / "a.jsonl", [{"id": 1, **row} for row in SUMS])
    with pytest.raises(UsageError, match=named.replace(".", r"\.")) as caught:
        prepared(source=source, **keys)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.jsonl", '{"a": 1}\nnothing', "expected json rows"),
        ("a.parquet", "x", "expected parquet rows"),
        ("a.xml", "<a/>", "rename or convert"),
        ("a.jsonl", '{"a": "x", "b": "y"}\n', "name it, or write a workload.template"),
        ("a.jsonl", '{"text": ""}\n{"text": null}\n', "is empty in every column"),
    ],
)
def test_unreadable_files_are_one_line(tmp_path: Path, name: str, content: str, named: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=named) as caught:
        prepared(source=str(tmp_path / name))
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="No such file"):
        prepared(source=str(tmp_path / "missing.jsonl"))


def test_a_hub_id_that_cannot_be_fetched_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", unreachable)
    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(UsageError, match="cannot be fetched"):
        prepared(source="hf:someone/something")


def test_a_hub_dataset_asks_for_its_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = datasets.Dataset.from_list(SUMS)
    seen: list[tuple[object, ...]] = []

    def load(*names: object) -> datasets.DatasetDict:
        seen.append(names)
        return datasets.DatasetDict({"train": table, "test": table.select(range(2))})

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: None)
    monkeypatch.setattr("datasets.load_dataset", load)
    with pytest.raises(UsageError, match="has train, test; name one"):
        prepared(source="hf:a/b")
    work = prepared(source="hf:a/b", subset="main", split="test")
    assert len(work.requests) == 2
    assert seen[-1] == ("a/b", "main")


def test_ids_files_keep_their_order_and_say_what_they_are(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [{"prompt": [5, 6, 7], "force": [8, 9]}]
    lines += [{"prompt": [9, 9], "max_new_tokens": 3}]
    source = rows_file(tmp_path / "ids.jsonl", lines)
    work = prepared(source=source)
    assert [list(r.prompt) for r in work.requests] == [[5, 6, 7], [9, 9]]
    assert [r.force for r in work.requests] == [(8, 9), None]
    assert work.requests[1].max_new_tokens == 3
    assert any("not real text" in note for note in work.notes)
    assert len(prepared(source=source, requests=1).requests) == 1
    with pytest.raises(UsageError, match=r"ids\.jsonl:2: has no reference answer"):
        prepared(source=source, output="reference")
    with pytest.raises(UsageError, match="means nothing for a file of token ids"):
        prepared(source=source, column="prompt")
    wrong = rows_file(tmp_path / "wrong.jsonl", [{"prompt": [5, 96]}])
    with pytest.raises(UsageError, match=r"wrong\.jsonl:1: token id 96"):
        prepared(source=wrong)


def test_random_ids_have_a_length_and_are_marked() -> None:
    work = prepared(source="random", prompt_tokens="8-12", requests=30)
    assert work.random_prompts
    lengths = [len(r.prompt) for r in work.requests]
    assert (min(lengths), max(lengths)) == (8, 12)
    assert "the prompts are random token ids: no text" in work.notes
    assert work.requests == prepared(source="random", prompt_tokens="8-12", requests=30).requests
    with pytest.raises(UsageError, match="no lengths of its own"):
        prepared(source="random")


# Shapes of rows.


class Table(list[dict[str, Any]]):
    """Rows without a file."""

    @property
    def column_names(self) -> list[str]:
        return list(self[0])


def read(rows: list[dict[str, Any]], **settings: Any) -> tuple[str, list[Exchange | None]]:
    table = Table(rows)
    name, reader = reader_for(
        dataset.Rows("rows", tuple(rows[0]), table), ShapeSettings(**settings)
    )
    return name, [reader(row) for row in rows]


def turn(speaker: str, text: str) -> dict[str, str]:
    return {"from": speaker, "value": text}


def test_sharegpt_gives_the_first_human_turn_and_the_reply_to_it() -> None:
    name, found = read(
        [
            {"conversations": [turn("human", "hi"), turn("gpt", "yo"), turn("human", "more")]},
            {"conversations": [turn("gpt", "left over"), turn("user", "q"), turn("gpt", "a")]},
            {"conversations": [turn("human", "twice"), turn("human", "asked")]},
            {"conversations": [turn("human", "alone")]},
            {"conversations": [turn("alien", "x"), turn("gpt", "y")]},
            {"conversations": []},
        ]
    )
    assert name == "sharegpt"
    assert found == [
        Exchange(None, (Message("user", "hi"),), "yo"),
        Exchange(None, (Message("user", "q"),), "a"),
        *[None] * 4,
    ]


def test_a_chat_gives_all_up_to_the_first_answer() -> None:
    system, asked = {"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}
    answer = {"role": "assistant", "content": "yo"}
    columns = {"role": ["user", "assistant"], "content": ["hi", "yo"]}
    name, found = read(
        [
            {"messages": [system, asked, answer, asked]},
            {"messages": [asked]},
            {"messages": columns},
            {"messages": [answer, asked]},
            {"messages": [asked, {"role": "user", "content": None}]},
        ]
    )
    assert name == "chat"
    hi = Message("user", "hi")
    assert found == [
        Exchange(None, (Message("system", "be kind"), hi), "yo"),
        Exchange(None, (hi,), None),
        Exchange(None, (hi,), "yo"),
        None,
        None,
    ]


def test_alpaca_joins_instruction_and_input() -> None:
    name, found = read(
        [
            {"instruction": "add", "input": "4 3", "output": "7", "text": "all of it"},
            {"instruction": "sing", "input": "", "output": "la", "text": "all of it"},
            {"instruction": " ", "input": "x", "output": "la", "text": "all of it"},
        ]
    )
    assert name == "alpaca"
    assert found == [
        Exchange(None, (Message("user", "add\n\n4 3"),), "7"),
        Exchange(None, (Message("user", "sing"),), "la"),
        None,
    ]


def test_empty_first_rows_do_not_decide_what_a_row_holds() -> None:
    asked = {"id": "b", "conversations": [turn("human", "hi"), turn("gpt", "yo")]}
    name, found = read([{"id": "a", "conversations": []}, asked])
    assert name == "sharegpt"
    assert found == [None, Exchange(None, (Message("user", "hi"),), "yo")]
    # As the library may hold it, and without any value at all.
    assert read([{"id": "a", "conversations": {"from": [], "value": []}}, asked])[0] == "sharegpt"
    assert read([{"id": "a", "conversations": None}, asked])[0] == "sharegpt"
    nothing = {"prompt": None, "note": "n", "answer": None}
    row = {"prompt": "q", "note": "n", "answer": "a"}
    assert read([nothing, row]) == ("text", [None, Exchange("q", reference="a")])
    assert read([nothing, row], column="prompt")[1][1] == Exchange("q", reference="a")
    late = [nothing] * PROBED_ROWS
    assert read([*late, row])[1][-1] == Exchange("n")  # only so far


def test_a_column_that_holds_no_text_is_refused_though_its_first_row_is_null() -> None:
    with pytest.raises(UsageError, match="holds no text"):
        read([{"x": None}, {"x": 3}], column="x")


def test_the_format_may_be_said() -> None:
    row = {"instruction": "add", "output": "7", "note": "n", "messages": [turn("human", "hi")]}
    assert read([row], format="alpaca")[0] == "alpaca"
    assert read([row], column="note") == ("text", [Exchange("n", reference="7")])
    assert read([row], template="{note}!", reference_column="instruction") == (
        "text",
        [Exchange("n!", reference="add")],
    )


def test_conversations_are_written_plainly_without_a_template() -> None:
    hi = Message("user", "hi")
    assert plain([hi]) == "hi"
    assert plain([Message("system", "s"), hi]) == "System: s\nUser: hi\nAssistant:"
    assert not ChatRenderer(model()).templated


def test_a_chat_template_of_the_model_is_used_and_adds_no_special_token(tmp_path: Path) -> None:
    home = tmp_path / "templated"
    shutil.copytree(resources.demo_path("demo-ouro"), home)
    template = "{% for m in messages %}{{ m.role }} : {{ m.content }} . {% endfor %}answer :"
    (home / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    own = replace(model(), files=(home / "config.json",))
    render = ChatRenderer(own)
    assert render.templated
    assert render([Message("user", "add 4")]) == "user : add 4 . answer :"
    source = rows_file(tmp_path / "a.jsonl", [{"instruction": "add 4", "output": "7"}])
    work = prepare(replace(planned(source=source), model=own))
    assert work is not None
    assert list(work.requests[0].prompt) == model().encode("user : add 4 . answer :")
    assert any("with its chat template" in note for note in work.notes)
    (home / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ nothing.x() }}"}))
    with pytest.raises(UsageError, match="its chat template fails"):
        ChatRenderer(own)([Message("user", "add 4")])


# Lengths and outputs.


@given(
    st.one_of(
        st.builds(lambda n: LengthSpec(n, n), st.integers(1, 999)),
        st.builds(lambda a, b: LengthSpec(a, a + b), st.integers(1, 999), st.integers(0, 99)),
        st.builds(lambda n, s: LengthSpec(n, n, s / 100), st.integers(1, 999), st.integers(0, 300)),
    )
)
def test_lengths_read_back_and_more_requests_only_add(spec: LengthSpec) -> None:
    assert parse_lengths(str(spec)) == spec
    lengths = spec.draw(20, seed=3)
    assert spec.draw(7, seed=3) == lengths[:7]
    assert min(lengths) >= 1
    if spec.sigma is None:
        assert all(spec.low <= length <= spec.high for length in lengths)


@pytest.mark.parametrize("text", ["", "0", "5-2", "x", "1.5", "lognormal:5", "lognormal:0:1", "-3"])
def test_no_lengths(text: str) -> None:
    with pytest.raises(UsageError, match=r"workload\.prompt_tokens"):
        parse_lengths(text)


def test_a_lognormal_has_its_median_and_spread() -> None:
    lengths = sorted(parse_lengths("lognormal:200:0.5").draw(4001, seed=0))
    assert lengths[2000] == pytest.approx(200, rel=0.03)
    assert lengths[int(0.841 * 4001)] == pytest.approx(200 * 2.718281828**0.5, rel=0.04)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
    st.lists(st.integers(10, 12), max_size=3),
    st.integers(1, 40),
)
def test_text_is_cut_or_repeated_behind_its_special_tokens(
    body: list[int], prefix: list[int], tokens: int
) -> None:
    sized = cut_or_repeat(body, tokens, prefix)
    assert len(sized) == tokens
    assert list(sized[: len(prefix)]) == prefix[:tokens]
    rest = sized[len(prefix) :]
    assert all(token == body[i % len(body)] for i, token in enumerate(rest))


def test_prompts_of_one_length(tmp_path: Path) -> None:
    source = rows_file(tmp_path / "a.jsonl", SUMS)
    work = prepared(source=source, prompt_tokens=12)
    assert {len(r.prompt) for r in work.requests} == {12}
    assert any("9 of 9 prompts are their own text repeated" in note for note in work.notes)
    cut = prepared(source=source, prompt_tokens=3)
    assert not any("repeated" in note for note in cut.notes)
    demo = prepared(prompt_tokens=12, requests=3)
    assert not demo.as_asked, "the live pass asked other prompts"
    assert {len(r.prompt) for r in demo.requests} == {12}


def test_a_long_tail_is_cut_to_the_positions_there_are(tmp_path: Path) -> None:
    source = rows_file(tmp_path / "a.jsonl", SUMS)
    work = prepared(source=source, prompt_tokens="lognormal:100:3", output=57)
    assert max(len(r.prompt) for r in work.requests) == 200
    assert max(r.positions for r in work.requests) == 256
    cut = sum(len(r.prompt) == 200 for r in work.requests)
    assert any(note.startswith(f"{cut} of 9 prompts have 200 tokens") for note in work.notes)
    short = prepared(source=source, prompt_tokens="lognormal:10:0.1")
    assert not any("the tail of" in note for note in short.notes)


def test_outputs_are_recorded_or_the_reference_or_of_one_length(tmp_path: Path) -> None:
    source = rows_file(tmp_path / "a.jsonl", SUMS)
    free = prepared(source=source).requests[0]
    assert (free.force, free.max_new_tokens, free.stop_ids) == (None, 128, model().stop_ids)
    assert prepared(source=source, max_new_tokens=9).requests[0].max_new_tokens == 9
    answer = prepared(source=source, output="reference")
    row = SUMS[answer.requests[0].doc_id or 0]
    assert model().decode(list(answer.requests[0].force or ())) == row["answer"]
    assert any("reference answers, forced" in note for note in answer.notes)
    fixed = prepared(source=source, output=7).requests[0]
    assert (fixed.max_new_tokens, fixed.ignore_eos, fixed.stop_ids) == (7, True, frozenset())
    assert fixed.force is None
    demo = prepared(output=7, requests=2)
    assert not demo.as_asked
    assert {(r.max_new_tokens, r.stop_strings) for r in demo.requests} == {(7, ())}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"output": "reference"}, "no reference answers"),
        ({"template": "{x}"}, "means nothing for source demo"),
        ({"split": "test"}, "means nothing for source demo"),
        ({"format": "chat"}, "means nothing for source demo"),
        ({"output": 5, "max_new_tokens": 5}, "drop it"),
        ({"source": "trace"}, "add --exit trace:FILE"),
        ({"arrivals": "trace:missing.txt"}, "No such file"),
    ],
)
def test_contradictions_are_refused(keys: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        prepared(**keys)


def test_a_trace_of_arrivals_must_be_long_enough(tmp_path: Path) -> None:
    file = tmp_path / "t.txt"
    file.write_text("0\n1\n2\n")
    assert prepared(requests=3, arrivals=f"trace:{file}").arrivals.trace_s == (0, 1, 2)
    with pytest.raises(UsageError, match="3 arrivals for 4 requests"):
        prepared(requests=4, arrivals=f"trace:{file}")


# Traces.


def with_trace(**workload: object) -> Plan:
    trace = load_exit_trace(parse_exit(f"trace:{resources.find_file('ci-trace.json')}"))
    return replace(planned(**workload), trace=trace)


def test_a_trace_gives_tokens_and_depths_to_its_prompts() -> None:
    plan = with_trace(source="ci-prompts.jsonl", requests=14)
    work = prepare(plan)
    assert work is not None
    assert work.recorded is not None
    assert plan.trace is not None
    for recorded, request, kept in zip(
        work.recorded, work.requests, plan.trace.requests, strict=True
    ):
        assert recorded.prompt == request.prompt
        assert (recorded.tokens, recorded.executed_depths) == (kept.tokens, kept.executed_depths)
    with pytest.raises(UsageError, match="whose tokens are replayed"):
        prepare(with_trace(source="ci-prompts.jsonl", output=5))
    with pytest.raises(UsageError, match="holds no prompts"):
        prepare(with_trace(source="trace"))


def test_random_prompts_take_the_lengths_of_a_trace() -> None:
    plan = with_trace(source="random")
    work = prepare(plan)
    assert work is not None
    assert work.recorded is not None
    assert plan.trace is not None
    assert [len(r.prompt) for r in work.requests] == [r.prompt_tokens for r in plan.trace.requests]
    assert [r.tokens for r in work.recorded] == [r.tokens for r in plan.trace.requests]
    fewer = prepare(with_trace(source="random", requests=3))
    assert fewer is not None
    assert fewer.requests == work.requests[:3]
    found = findings(plan, work, work.recorded, None)
    assert found.invalid == (), "the depths are not those of these prompts"


# Identity.


def recorded(*prompts: Sequence[int], depth: int = 2) -> list[RecordedRequest]:
    return [
        RecordedRequest(str(i), None, None, tuple(p), (5, 6), (4, depth), (4, depth))
        for i, p in enumerate(prompts)
    ]


def given_to(work: Sequence[RecordedRequest], adaptive: bool = True) -> list[Request]:
    return [
        Request(
            r.id,
            prompt=list(r.prompt),
            force=list(r.tokens),
            replay_depths=list(r.executed_depths) if adaptive else None,
        )
        for r in work
    ]


def test_the_hash_covers_prompts_tokens_depths_and_arrivals() -> None:
    work, at_once = recorded([1, 2], [3]), ArrivalSchedule()
    other = [
        recorded([1, 2], [4]),
        recorded([1], [2, 3]),
        recorded([3], [1, 2]),
        recorded([1, 2], [3], depth=3),
        [replace(r, tokens=(5, 7)) for r in work],
        [replace(r, id=f"x{r.id}") for r in work],
    ]
    paced = ArrivalSchedule(parse_arrivals("open-loop:1"), (0.5, 2.0))
    later = ArrivalSchedule(parse_arrivals("open-loop:1"), (0.5, 2.1))
    closed = ArrivalSchedule(parse_arrivals("closed-loop:2"))
    hashes = [workload_hash(w, at_once) for w in (work, *other)]
    hashes += [workload_hash(work, arrivals) for arrivals in (paced, later, closed)]
    assert len(set(hashes)) == len(hashes)
    # Written down: the same work has the same hash on every machine and in every version.
    assert hashes[0] == HASH


HASH = "073ee25e5493717d10d6d40cb82f8f2f5ad98f4d0219adfdcd1882900de6a389"


def test_what_a_mode_is_given_is_hashed_again() -> None:
    work, arrivals = recorded([1, 2], [3]), ArrivalSchedule()
    for adaptive in (True, False):
        own = given_to(work, adaptive)
        assert difference(own, work, arrivals) is None
        assert difference(own[:1], work, arrivals) is not None
        assert difference([replace(own[0], force=[5, 7]), own[1]], work, arrivals) is not None
        assert difference([replace(own[0], prompt=[1]), own[1]], work, arrivals) is not None
    deeper = given_to(work)
    deeper[0] = replace(deeper[0], replay_depths=[4, 3])
    assert "another workload than the recorded one" in (difference(deeper, work, arrivals) or "")


# What is said of a workload's text.


def words(seed: int, count: int, vocabulary: int = 60) -> list[int]:
    """Text as texts are: a few words make up most of it."""
    rng = random.Random(seed)
    return [min(int(rng.paretovariate(0.7)), vocabulary) for _ in range(count)]


def said(continuations: list[health.Continuation]) -> str:
    return "\n".join(health.warnings(continuations))


def test_ordinary_text_is_not_remarked_on() -> None:
    fresh = [health.Continuation(words(i, 30), words(100 + i, 60)) for i in range(50)]
    assert said(fresh) == ""
    assert said([]) == ""


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda c, i: replace(c, prompt=[1, 2, 3]), "prompts: 49 of 50 (98%) repeat an earlier"),
        (lambda c, i: replace(c, output=[9, *c.prompt]), "outputs: 50 of 50 (100%) repeat their"),
        (lambda c, i: replace(c, output=[1, 2, *[7, 8, 9] * 9]), "50 (100%) end in a loop"),
        (lambda c, i: replace(c, capped=i % 5 == 0), "10 of 50 (20%) hit their length limit"),
    ],
)
def test_text_that_flatters_is_named(
    spoil: Callable[[health.Continuation, int], health.Continuation], named: str
) -> None:
    fresh = [health.Continuation(words(i, 30), words(100 + i, 60)) for i in range(50)]
    assert named in said([spoil(c, i) for i, c in enumerate(fresh)])


def test_loops_and_echoes() -> None:
    assert health.loops([7] * 20)
    assert health.loops([*range(15), *[7, 8] * 8])
    assert not health.loops([*range(40), *[7, 8] * 8]), "less than half of the output"
    assert not health.loops([*range(10), *range(10)]), "twice is no loop"
    assert not health.loops([])
    assert health.echoes(range(20), [50, *range(4, 20), 51])
    assert not health.echoes(range(20), range(20)[::-1])
    assert not health.echoes(range(20), range(5))


def test_random_ids_are_told_from_text_where_there_are_enough() -> None:
    rng = random.Random(0)
    ids = [[rng.randrange(1000) for _ in range(50)] for _ in range(20)]
    assert health.looks_random(ids, 1000)
    assert not health.looks_random(ids[:2], 1000), "too few to tell"
    assert not health.looks_random([words(i, 50, 1000) for i in range(20)], 1000)
    asked = prepared(requests=14).requests
    assert not health.looks_random([r.prompt for r in asked], 96)


def answered(work: TimedWork, reason: FinishReason, tokens: int = 20) -> dict[str, RequestResult]:
    return {
        request.id: RequestResult(
            id=request.id,
            prompt_tokens=len(request.prompt),
            tokens=words(index, tokens),
            executed_depths=[4] * tokens,
            requested_depths=[4] * tokens,
            logprobs=[0.0] * tokens,
            text=None,
            stop_depth=None,
            finish_reason=reason,
            error=None,
            arrival_s=0.0,
            admitted_s=0.0,
            token_s=[1.0] * tokens,
            finish_s=1.0,
        )
        for index, request in enumerate(work.requests)
    }


def test_findings_void_a_run_on_random_prompts_with_live_depths_only() -> None:
    keys: dict[str, object] = {"source": "random", "prompt_tokens": 20, "requests": 40}
    plan, work = planned(**keys), prepared(**keys)
    results = answered(work, FinishReason.STOP)
    kept = recorded_workload(work.requests, results)
    (reason,) = findings(plan, work, kept, results).invalid
    assert "random token ids" in reason
    synthetic = planned(**keys, depths="full")
    assert findings(synthetic, work, kept, results).invalid == ()


def test_requests_that_a_source_does_not_have_are_missed_aloud(tmp_path: Path) -> None:
    source = rows_file(tmp_path / "a.jsonl", SUMS)
    trace = resources.find_file("ci-trace.json")
    few = "workload.requests: 30 were asked for, {} gave {}"
    for keys, made, said in (
        ({"source": source}, planned, few.format(source, 9)),
        ({}, planned, few.format("the tasks' questions", len(prepared().requests))),
        ({"source": "random"}, with_trace, few.format(trace, 14)),
        ({"source": "ci-prompts.jsonl"}, with_trace, few.format("ci-prompts.jsonl", 14)),
    ):
        plan = made(**keys, requests=30)
        work = prepare(plan)
        assert work is not None
        assert said in work.notes
        kept = work.recorded or recorded_workload(work.requests, answered(work, FinishReason.STOP))
        assert said in findings(plan, work, kept, None).flags
        left_open = made(**keys)
        assert findings(left_open, work, kept, None).flags == tuple(
            flag for flag in findings(plan, work, kept, None).flags if flag != said
        ), "nobody asked for a number"


def test_findings_flag_what_does_not_void_a_run(tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = [{"prompt": [rng.randrange(96) for _ in range(30)]} for _ in range(20)]
    source = rows_file(tmp_path / "ids.jsonl", rows)
    plan, work = planned(source=source), prepared(source=source)
    results = answered(work, FinishReason.LENGTH)
    results["3"] = replace(results["3"], tokens=[], executed_depths=[], requested_depths=[])
    found = findings(plan, work, recorded_workload(work.requests, results), results)
    assert found.invalid == ()
    assert any("look like random token ids" in flag for flag in found.flags)
    assert any("19 of 19 (100%) hit their length limit" in flag for flag in found.flags)
    assert "1 of 20 outputs are empty and are not timed" in found.flags
    forced = replace(work, requests=tuple(replace(r, force=[1] * 20) for r in work.requests))
    again = findings(plan, forced, recorded_workload(work.requests, results), results)
    assert not any("length limit" in flag for flag in again.flags)

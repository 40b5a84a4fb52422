"""What a plan makes of the configuration: dense twins, layer splits, memory, first tokens."""

from __future__ import annotations

import pytest

from cdbench.bench import live
from cdbench.bench.measurements import Measurements
from cdbench.bench.once import work_key
from cdbench.bench.plan import Plan, make_plan
from cdbench.bench.rows import mode_result
from cdbench.config import load_config
from cdbench.errors import UsageError
from cdbench.grammar import parse_mode
from cdbench.runtime.core import RequestResult
from cdbench.workloads import resolve

DEMO = {"model": "demo-ouro", "dense": "", "limit": 1, "dtype": "float64", "device": "cpu"}


def plan(**changes: object) -> Plan:
    keys = {name.replace("__", "."): value for name, value in changes.items()}
    return make_plan(load_config(None, (), {**DEMO, **keys}))


def answers(made: Plan, mode: str) -> list[RequestResult]:
    subject = made.subject(parse_mode(mode))
    return list(live.answer(made, subject, live.questions(made)[:3], lambda _: None).results)


def test_the_unrolled_twin_answers_as_full_depth_does_and_says_what_it_is() -> None:
    made = plan(modes="dense:unrolled,static")
    for ours, twin in zip(answers(made, "static"), answers(made, "dense:unrolled"), strict=True):
        assert twin.tokens == ours.tokens
        assert twin.logprobs == pytest.approx(ours.logprobs, abs=1e-9)
        assert set(twin.executed_depths) == {1}
    twin_cost = made.dense["unrolled"].network.weight_bytes().core
    assert twin_cost == pytest.approx(4 * made.model.network.weight_bytes().core, rel=1e-3)
    subject = made.subject(parse_mode("dense:unrolled"))
    measured = Measurements()
    measured.subjects["dense:unrolled"] = subject
    row = mode_result(made, measured, "dense:unrolled")
    assert "4 copies of its core" in (row.note or "")


def test_a_layer_split_needs_random_weights_and_is_marked() -> None:
    with pytest.raises(UsageError, match="layers: changes the model, so the checkpoint's weights"):
        load_config(None, (), {**DEMO, "layers": "0-2-0"})
    made = plan(layers="0-2-0", weights="random:0", work="equal")
    assert made.model.network.dims.core_layers == 2
    assert any("layers 0-2-0" in note and "timing only" in note for note in made.notes)


def test_prefixes_are_reused_for_questions_and_not_where_work_is_timed() -> None:
    subject = (made := plan()).subject(parse_mode("cdb"))
    assert made.engine(subject).cache.prefixes is not None
    assert made.engine(subject, live=False).cache.prefixes is None
    forced = plan(kv__prefix_cache=True)
    assert forced.engine(subject, live=False).cache.prefixes is not None
    never = plan(kv__prefix_cache=False)
    assert never.engine(subject).cache.prefixes is None


def test_a_share_of_the_device_is_split_among_the_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "free_bytes", lambda device: 8_000_000)
    made = plan(modes="static,lockstep,cdb,static@2", kv__budget_fraction=0.5, kv__host_bytes=5)
    assert made.kv_budget_bytes == 1_000_000
    settings = made.engine(made.subject(parse_mode("cdb"))).config
    assert (settings.kv_budget_bytes, settings.kv_host_bytes) == (1_000_000, 5)


def test_first_tokens_and_states_reach_the_engine_and_the_notes() -> None:
    made = plan(first_token="select")
    assert made.engine(made.subject(parse_mode("cdb"))).config.first_token == "select"
    assert any("no loop is saved" in note for note in made.notes)
    with pytest.raises(UsageError, match="starts from its prelude"):
        plan(state_init="random")


def test_how_tasks_are_asked_decides_which_work_is_timed() -> None:
    """Examples are part of the prompts that equal work times."""
    plain, shots = (
        work_key(load_config(None, (), {"evaluation.num_fewshot": count})) for count in (0, 2)
    )
    assert plain != shots

"""A schedule never changes a result: random everything against one request at a time."""

from __future__ import annotations

import dataclasses
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from cdbench.models.base import StagedModel
from cdbench.runtime.core import (
    ExitPolicy,
    LaunchLog,
    Request,
    RequestResult,
    SamplingParams,
    Stage,
)
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.exits import RULES, suits
from tests import tiny
from tests.reference import assert_equals_alone

LAYOUTS = ("per-loop", "first-shared", "shared", "slots:3")
LOOPS = tiny.OURO_CONFIG["total_ut_steps"]
VOCAB = tiny.OURO_CONFIG["vocab_size"]

THRESHOLDS: dict[str, list[float]] = {
    "cdf": [0.0, 0.3, 0.6, 0.9],
    "act": [0.4, 0.7, 0.99],
    "confidence": [0.2, 0.5, 0.8],
    "margin": [0.2, 0.5, 0.8],
    "latent-diff": [0.3, 0.6, 0.9],
    "cosine": [0.05, 0.2, 0.5],
    "entropy-diff": [0.1, 0.3, 0.8],
    "kl": [0.05, 0.3, 1.0],
    "minp-kl": [0.05, 0.3, 1.0],
    "argmax-stability": [0, 1, 2],
}


def policies(model: StagedModel) -> st.SearchStrategy[ExitPolicy]:
    """Every rule that a model can run, with floors and lags."""
    loops = model.dims.max_loops
    late = {"min_loops": st.integers(1, loops), "lag": st.integers(0, 1)}
    rules = [name for name in THRESHOLDS if suits(RULES[name], model.dims)]
    return st.one_of(
        st.just(ExitPolicy()),
        st.builds(ExitPolicy, rule=st.just("fixed"), depth=st.integers(1, loops), **late),
        st.sampled_from(rules).flatmap(
            lambda rule: st.builds(
                ExitPolicy,
                rule=st.just(rule),
                threshold=st.sampled_from(THRESHOLDS[rule]),
                **late,
            )
        ),
    )


token_ids = st.integers(0, VOCAB - 1)


OURO_POLICIES = policies(tiny.ouro())
prefixes = st.sampled_from([[], [], [3, 1, 4], [3, 1, 4, 1, 5], [3, 1, 2, 7]])


@st.composite
def requests(
    draw: st.DrawFn, policies: st.SearchStrategy[ExitPolicy] = OURO_POLICIES
) -> list[Request]:
    batch = []
    for i in range(draw(st.integers(1, 9))):
        force = draw(st.none() | st.lists(token_ids, min_size=1, max_size=9))
        batch.append(
            Request(
                id=str(i),
                prompt=draw(prefixes) + draw(st.lists(token_ids, min_size=1, max_size=9)),
                max_new_tokens=draw(st.integers(1, 9)),
                exit=draw(policies),
                force=force,
                stop_ids=frozenset(draw(st.lists(token_ids, max_size=2))),
                ignore_eos=draw(st.booleans()),
                arrival_s=draw(st.floats(0, 60)),
            )
        )
    return batch


@st.composite
def configs(draw: st.DrawFn, modes: tuple[str, ...] = ("cdb", "lockstep")) -> EngineConfig:
    cap = draw(st.integers(1, 9))
    width = draw(st.integers(1, cap))
    return EngineConfig(
        mode=draw(st.sampled_from(modes)),
        max_residents=cap,
        width=width,
        kv_layout=draw(st.sampled_from(LAYOUTS)),
        prefill_tokens=draw(st.sampled_from([1, 3, 8, 64])),
        coda_min_rows=draw(st.integers(1, width)),
        min_free_residents=draw(st.none() | st.integers(1, cap)),
    )


@st.composite
def memory(
    draw: st.DrawFn, model: StagedModel, config: EngineConfig, batch: list[Request]
) -> EngineConfig:
    """The same engine with a prefix cache or not, and a KV budget from the tightest up."""
    config = dataclasses.replace(config, prefix_cache=draw(st.booleans()))
    if not draw(st.booleans()):
        return config
    longest = max(request.positions for request in batch)
    shape = Engine(model, config).cache.shape
    budget = shape.budget_for(draw(st.integers(longest, 3 * longest)))
    host = draw(st.none() | st.integers(1, budget))
    return dataclasses.replace(config, kv_budget_bytes=budget, kv_host_bytes=host)


def serve(
    model: StagedModel, config: EngineConfig, batch: list[Request], log: LaunchLog | None = None
) -> dict[str, RequestResult]:
    engine = Engine(model, config, clock=tiny.StepClock(), observer=log)
    results = {r.id: r for r in engine.run(batch)}
    assert engine.idle, "requests were left behind"
    assert engine.memory.host_bytes_in_use == 0
    assert engine.memory.counters.peak_host_bytes <= (config.kv_host_bytes or 2**62)
    engine.cache.clear_prefixes()
    assert engine.schedule.in_flight == 0
    assert engine.cache.rows_in_use == 0, "KV rows leaked"
    assert results.keys() == {r.id for r in batch}
    return results


@settings(max_examples=40)
@given(batch=requests(), config=configs(), data=st.data())
def test_any_schedule_equals_the_request_alone(
    tiny_ouro: StagedModel, batch: list[Request], config: EngineConfig, data: st.DataObject
) -> None:
    config = data.draw(memory(tiny_ouro, config, batch))
    results = serve(tiny_ouro, config, batch)
    for request in batch:
        assert_equals_alone(tiny_ouro, request, results[request.id], config.kv_layout)


@settings(max_examples=15)
@given(batch=requests(), config=configs())
def test_token_loops_equal_decode_rows_of_core_launches(
    tiny_ouro: StagedModel, batch: list[Request], config: EngineConfig
) -> None:
    log = LaunchLog()
    results = serve(tiny_ouro, config, batch, log)
    core = [r for r in log.records if r.stage is Stage.CORE]
    assert sum(r.token_loops for r in results.values()) == sum(r.decode_rows for r in core)
    assert all(r.decode_rows <= (config.width or 0) for r in core)
    assert all(sum(r.depth_counts) == r.decode_rows for r in core if not r.is_prefill)


@settings(max_examples=15)
@given(batch=requests(), config=configs(modes=("cdb",)))
def test_cdb_without_exits_equals_static(
    tiny_ouro: StagedModel, batch: list[Request], config: EngineConfig
) -> None:
    full_depth = [dataclasses.replace(r, exit=ExitPolicy()) for r in batch]
    static = serve(tiny_ouro, dataclasses.replace(config, mode="static"), batch)
    cdb = serve(tiny_ouro, config, full_depth)
    for name, result in cdb.items():
        assert result.tokens == static[name].tokens
        assert result.executed_depths == static[name].executed_depths


@settings(max_examples=15)
@given(batch=requests(), config=configs(), order=st.randoms(use_true_random=False))
def test_permuting_requests_permutes_results(
    tiny_ouro: StagedModel, batch: list[Request], config: EngineConfig, order: object
) -> None:
    sampled = [
        dataclasses.replace(r, arrival_s=0.0, sampling=SamplingParams(0.8, 5, 0.9, seed=3))
        for r in batch
    ]
    shuffled = list(sampled)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = serve(tiny_ouro, config, sampled), serve(tiny_ouro, config, shuffled)
    for name in first:
        assert first[name].tokens == second[name].tokens
        assert first[name].executed_depths == second[name].executed_depths


@settings(max_examples=15)
@given(batch=requests(), config=configs(), data=st.data())
def test_replay_repeats_tokens_and_depths_exactly(
    tiny_ouro: StagedModel, batch: list[Request], config: EngineConfig, data: st.DataObject
) -> None:
    live = serve(tiny_ouro, config, batch)
    replays = [
        dataclasses.replace(
            r, force=live[r.id].tokens, replay_depths=live[r.id].executed_depths, arrival_s=0.0
        )
        for r in batch
        if live[r.id].tokens
    ]
    other = data.draw(configs())
    replayed = serve(tiny_ouro, dataclasses.replace(other, kv_layout=config.kv_layout), replays)
    for name, result in replayed.items():
        assert result.tokens == live[name].tokens
        assert result.executed_depths == live[name].executed_depths


@settings(max_examples=15)
@given(batch=requests(), config=configs(), data=st.data())
def test_cancelling_some_requests_leaves_the_others_unchanged(
    tiny_ouro: StagedModel, batch: list[Request], config: EngineConfig, data: st.DataObject
) -> None:
    undisturbed = serve(tiny_ouro, config, batch)
    engine = Engine(tiny_ouro, config, clock=tiny.StepClock())
    for request in batch:
        engine.submit(request)
    cancelled = set()
    for _ in range(data.draw(st.integers(0, 30))):
        engine.tick()
        if data.draw(st.integers(0, 4)) == 0:
            name = data.draw(st.sampled_from([r.id for r in batch]))
            if engine.cancel(name):
                cancelled.add(name)
    results = list(engine.run())
    assert Counter(r.id for r in results) == Counter(r.id for r in batch)
    assert engine.cache.rows_in_use == 0
    for result in results:
        if result.id not in cancelled:
            assert result.tokens == undisturbed[result.id].tokens
            assert result.executed_depths == undisturbed[result.id].executed_depths

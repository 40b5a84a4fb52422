"""Short of memory: requests are moved away, wait and come back, prefixes are given up, and every
result is what the request yields alone.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections import Counter, deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, target
from hypothesis import strategies as st

from cdbench.models.base import StagedModel
from cdbench.runtime.core import (
    ExitPolicy,
    FinishReason,
    Request,
    RequestResult,
    SamplingParams,
    Stage,
)
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.memory import MemoryCounters, Preempted
from cdbench.runtime.residents import Residents, SavedResident
from tests import tiny
from tests.pressure import (
    LAYOUTS,
    MODELS,
    Served,
    check_drained,
    check_engine,
    check_result,
    draw_batch,
    draw_config,
    model_of,
    oracle_of,
    palette_of,
    serve,
    shape_of,
)
from tests.reference import continue_alone

MODES = ("cdb", "lockstep")
randoms = st.randoms(use_true_random=False)


def some(count: int, policy: ExitPolicy, tokens: int = 9, **changes: Any) -> list[Request]:
    """Requests with prompts of one to three tokens, all there at once."""
    return [
        Request(str(i), [(5 * i + j) % 23 for j in range(1 + i % 3)], tokens, policy, **changes)
        for i in range(count)
    ]


def letters(ids: list[int]) -> str:
    return "".join(chr(ord("a") + i) for i in ids)


def tight(model: StagedModel, positions: int, **settings: Any) -> EngineConfig:
    """An engine whose pools just hold so many positions at full depth."""
    config = EngineConfig(**{"max_residents": 8, **settings})
    return dataclasses.replace(
        config, kv_budget_bytes=shape_of(model, config).budget_for(positions)
    )


def exact(name: str, config: EngineConfig, batch: list[Request]) -> Served:
    """Serve a batch, and see that every result is what its request yields alone."""
    served = serve(model_of(name), config, batch)
    oracle_of(name).check(served, batch)
    return served


# Any schedule under pressure.


@settings(max_examples=40)
@given(rng=randoms, name=st.sampled_from(list(MODELS)))
def test_whatever_the_pressure_a_request_yields_what_it_yields_alone(
    rng: random.Random, name: str
) -> None:
    model = model_of(name)
    batch = draw_batch(rng, palette_of(name, rng.randint(0, 3)), most=7)
    config = draw_config(rng, model, batch)
    served = serve(model, config, batch)
    target(float(served.engine.memory.counters.preemptions), label="preemptions")
    oracle_of(name).check(served, batch)


@settings(max_examples=30)
@given(rng=randoms, name=st.sampled_from(list(MODELS)))
def test_cancelling_under_pressure_leaves_a_beginning_and_the_others_unchanged(
    rng: random.Random, name: str
) -> None:
    model = model_of(name)
    batch = draw_batch(rng, palette_of(name, rng.randint(0, 3)), most=7)
    config = draw_config(rng, model, batch)
    served = serve(model, config, batch, rng, cancel_rate=0.1)
    target(float(len(served.cancelled)), label="cancellations")
    oracle_of(name).check(served, batch)


@settings(max_examples=20)
@given(rng=randoms, name=st.sampled_from(list(MODELS)))
def test_drawn_text_is_the_same_under_pressure(rng: random.Random, name: str) -> None:
    model = model_of(name)
    drawn = SamplingParams(1.3, 0, 0.95, seed=rng.randint(0, 9))
    batch = [
        dataclasses.replace(request, sampling=drawn, force=None)
        for request in draw_batch(rng, palette_of(name, rng.randint(0, 3)), most=5)
    ]
    served = serve(model, draw_config(rng, model, batch), batch)
    target(float(served.engine.memory.counters.preemptions), label="preemptions")
    oracle_of(name).check(served, batch)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mode", MODES)
def test_there_is_pressure_under_every_model_mode_and_layout(name: str, mode: str) -> None:
    """What the properties above are about happens: many are moved, also in the middle of tokens."""
    model, batch = model_of(name), some(7, ExitPolicy("latent-diff", 0.6), tokens=12)
    found: Counter[str] = Counter()
    for layout in LAYOUTS:
        served = exact(name, tight(model, 16, mode=mode, kv_layout=layout), batch)
        counters = served.engine.memory.counters
        assert counters.preemptions > 0, layout
        assert counters.swapped_bytes >= counters.peak_host_bytes > 0
        found.update(moved=counters.preemptions, mid_token=counters.mid_token)
    assert found["moved"] > 10
    assert found["mid_token"] > 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("prelude", "coda"), [(0, 1), (1, 0)])
def test_the_pools_of_prelude_and_coda_run_out_too(prelude: int, coda: int, mode: str) -> None:
    """Tokens of one loop need few rows of the core: what is short is one boundary stage."""
    model = tiny.looped_llama(prelude_layers=prelude, coda_layers=coda)
    for policy in (ExitPolicy("fixed", depth=1), ExitPolicy("margin", 0.0)):
        batch = some(7, policy, tokens=12)
        served = serve(model, tight(model, 16, mode=mode), batch)
        assert served.engine.memory.counters.preemptions > 0
        for request in batch:
            known = continue_alone(model, request, "per-loop")
            check_result(known, served.results[request.id])


@pytest.mark.parametrize("mode", MODES)
def test_no_launch_is_wider_than_the_width_though_requests_come_back(mode: str) -> None:
    """They come back in front of a coda, where a batch may be waiting already."""
    model = model_of("staged")
    for seed in range(12):
        rng = random.Random(seed)
        policies = [ExitPolicy(rule, 0.5) for rule in ("cdf", "margin")]
        batch = [
            Request(str(i), [rng.randrange(23)] * rng.randint(1, 2), 8, rng.choice(policies))
            for i in range(8)
        ]
        config = tight(model, 10 + seed, mode=mode, max_residents=6, width=2)
        # ``serve`` looks at every launch.
        assert serve(model, config, batch).engine.memory.counters.preemptions > 0


def test_the_oldest_is_never_moved_and_the_youngest_goes_first() -> None:
    model, batch = model_of("ouro"), some(6, ExitPolicy())
    engine = Engine(model, tight(model, 14), clock=tiny.StepClock())
    for request in batch:
        engine.submit(request)
    moved: list[str] = []
    while engine.tick():
        check_engine(engine)
        away = [saved.resident.request.id for saved in engine.memory.preempted]
        moved += [name for name in away if name not in moved]
        assert away == sorted(away), "who came first is to come back first"
        if away:
            here = [r.id for r in engine.residents.requests if r is not None]
            assert max(here, default="") < min(away)
    assert moved
    assert "0" not in moved


# What a request takes along when it is moved.


class Watched(deque[Preempted]):
    """The requests in host memory, and at which loops of a token each was ever moved there."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: dict[str, list[int]] = {}

    def appendleft(self, gone: Preempted) -> None:
        loops = self.moved.setdefault(gone.resident.request.id, [])
        loops.append(int(gone.resident.lines["loop"]))
        super().appendleft(gone)

    @property
    def mid_token(self) -> list[str]:
        return [name for name, loops in self.moved.items() if max(loops) > 0]


def watched(
    model: StagedModel, config: EngineConfig, batch: list[Request]
) -> tuple[dict[str, RequestResult], Watched]:
    engine = Engine(model, config, clock=tiny.StepClock())
    engine.memory.preempted = away = Watched()
    results = {result.id: result for result in engine.run(batch)}
    check_drained(engine)
    return results, away


REMEMBERING = [
    ("ouro", ExitPolicy("cdf", 0.9)),
    ("ouro", ExitPolicy("kl", 0.3)),
    ("staged", ExitPolicy("minp-kl", 0.3)),
    ("huginn", ExitPolicy("entropy-diff", 0.3)),
    ("huginn", ExitPolicy("argmax-stability", 1)),
    ("huginn", ExitPolicy("latent-diff", 0.6)),
    ("universal", ExitPolicy("act", 0.7)),
]
"""Rules that carry something from loop to loop: signals, a state, or a halting mean."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "policy"), REMEMBERING, ids=str)
def test_who_is_moved_in_the_middle_of_a_token_goes_on_where_it_was(
    name: str, policy: ExitPolicy, mode: str
) -> None:
    model, batch = model_of(name), some(7, policy, tokens=12)
    oracle, in_the_middle = oracle_of(name), 0
    for positions in (15, 18):
        config = tight(model, positions, mode=mode, kv_layout="per-loop")
        results, away = watched(model, config, batch)
        in_the_middle += len(away.mid_token)
        for request in batch:
            check_result(oracle.alone(request, "per-loop"), results[request.id])
    assert in_the_middle > 0


@pytest.mark.parametrize(
    ("name", "policy"), [(n, p) for n, p in REMEMBERING if p.rule in ("cdf", "kl", "minp-kl")]
)
def test_losing_what_a_rule_remembers_would_be_seen(
    name: str, policy: ExitPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the test above."""
    right = Residents.restore

    def wrong(self: Residents, saved: SavedResident) -> int:
        assert saved.memory is not None
        start = torch.zeros_like(saved.memory)
        return right(self, dataclasses.replace(saved, memory=start))

    monkeypatch.setattr(Residents, "restore", wrong)
    model, batch = model_of(name), some(7, policy, tokens=12)
    oracle, differ = oracle_of(name), 0
    for positions in (15, 18):
        results, _ = watched(model, tight(model, positions), batch)
        for request in batch:
            known = oracle.alone(request, "per-loop")
            differ += known.executed != results[request.id].executed_depths
    assert differ > 0


@pytest.mark.parametrize("name", MODELS)
def test_who_is_moved_keeps_its_place_in_its_stream_of_numbers(name: str) -> None:
    model = model_of(name)
    drawn = SamplingParams(temperature=1.5, top_p=0.95, seed=4)
    batch = some(7, ExitPolicy("latent-diff", 0.6), tokens=12, sampling=drawn)
    results, away = watched(model, tight(model, 15), batch)
    assert away.moved
    oracle = oracle_of(name)
    for request in batch:
        check_result(oracle.alone(request, "per-loop"), results[request.id])


def test_a_request_comes_back_under_another_number_with_its_limits_stops_and_scripts() -> None:
    """Every array of the residents is as it was, whatever number the request is given."""
    model = model_of("staged")
    rich = Request(
        "rich",
        [1, 2],
        9,
        ExitPolicy("cdf", 0.4, 2, 1),
        SamplingParams(0.7, 5, 0.8, seed=3),
        stop_ids=frozenset({3, 4, 5}),
    )
    forced = Request("forced", [3], force=[5, 6, 7], replay_depths=[4, 2, 3])
    engine = Engine(model, EngineConfig(max_residents=3))
    res = engine.residents
    for request in (Request("other", [1], 30), rich, forced):
        res.admit(request, 1.5)
    names = [name for name, value in vars(res).items() if isinstance(value, np.ndarray)]
    # Whatever a token in flight may have left there.
    left_alone = {"rule", "limit", "stop_ids", "forced", "scripted_depth"}
    for i, name in enumerate(sorted(set(names) - left_alone)):
        array = getattr(res, name)
        array[1], array[2] = (True, False) if array.dtype == np.bool_ else (2 * i + 5, 2 * i + 6)
    before = {name: [getattr(res, name)[r].copy() for r in (1, 2)] for name in names}
    saved = [res.save(1), res.save(2)]
    res.admit(Request("new", [9], 4, stop_ids=frozenset(range(9))), 2.0)
    res.free(0)
    assert [res.restore(saved[1]), res.restore(saved[0])] == [0, 2]
    for name, (first, second) in before.items():
        for line, known in ((getattr(res, name)[2], first), (getattr(res, name)[0], second)):
            width = np.size(known)
            assert np.array_equal(np.ravel(line)[:width], np.ravel(known)), name


@pytest.mark.parametrize("mode", MODES)
def test_recorded_depths_are_replayed_under_pressure(mode: str) -> None:
    model, batch = model_of("staged"), some(7, ExitPolicy("margin", 0.5), tokens=12)
    live = serve(model, EngineConfig(max_residents=7), batch).results
    replays = [
        dataclasses.replace(r, force=live[r.id].tokens, replay_depths=live[r.id].executed_depths)
        for r in batch
    ]
    served = serve(model, tight(model, 15, mode=mode), replays)
    assert served.engine.memory.counters.preemptions > 0
    for name, result in served.results.items():
        assert result.tokens == live[name].tokens
        assert result.executed_depths == live[name].executed_depths
        assert result.requested_depths == live[name].requested_depths


def test_stop_strings_and_times_survive_a_move() -> None:
    model, batch = model_of("ouro"), some(7, ExitPolicy("cdf", 0.9), tokens=12)
    whole = serve(model, EngineConfig(max_residents=7), batch).results
    stop = {r.id: letters(whole[r.id].tokens)[6:8] for r in batch}
    batch = [dataclasses.replace(r, stop_strings=(stop[r.id],)) for r in batch]
    engine = Engine(model, tight(model, 15), clock=tiny.StepClock(), detokenize=letters)
    engine.memory.preempted = away = Watched()
    results = {result.id: result for result in engine.run(batch)}
    assert len(away.moved) > 2
    for name, result in results.items():
        text = letters(whole[name].tokens)
        assert result.text == text[: text.index(stop[name])]
        assert result.finish_reason is FinishReason.STOP
        assert result.admitted_s is not None
        times = [result.arrival_s, result.admitted_s, *result.token_s, result.finish_s]
        assert times == sorted(times)
        assert len(result.token_s) == len(result.tokens)
    check_drained(engine)


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize(("mode", "loops"), [("static", 4), ("static@2", 2), ("cdb", 3)])
def test_fewer_loops_and_full_depth_under_pressure(
    mode: str, loops: int, prefix_cache: bool
) -> None:
    model, full = model_of("huginn"), ExitPolicy()
    batch = some(7, ExitPolicy("latent-diff", 0.6) if mode == "cdb" else full, tokens=12)
    config = EngineConfig(
        mode=mode,
        max_residents=8,
        prefix_cache=prefix_cache,
        max_loops=loops if mode == "cdb" else None,
    )
    budget = shape_of(model, config).budget_for(16)
    served = serve(model, dataclasses.replace(config, kv_budget_bytes=budget), batch)
    assert served.engine.memory.counters.preemptions > 0
    for request in batch:
        check_result(continue_alone(model, request, "per-loop", loops), served.results[request.id])


def test_a_dense_model_is_moved_and_comes_back() -> None:
    model, batch = tiny.llama(), some(7, ExitPolicy(), tokens=12)
    served = serve(model, tight(model, 16, mode="dense:x"), batch)
    assert served.engine.memory.counters.preemptions > 0
    for request in batch:
        check_result(continue_alone(model, request, "per-loop"), served.results[request.id])


@settings(max_examples=20)
@given(rng=randoms, name=st.sampled_from(list(MODELS)))
def test_tables_of_their_own_on_the_device_follow_the_hosts(rng: random.Random, name: str) -> None:
    """As on an accelerator, where attention reads other memory than the host writes."""
    model = model_of(name)
    batch = draw_batch(rng, palette_of(name, rng.randint(0, 3)), most=5)
    config = draw_config(rng, model, batch)
    engine = Engine(model, config, clock=tiny.StepClock())
    tables = [
        table
        for held in engine.cache.stages.values()
        for table in (held.table, held.by_loop)
        if table is not None
    ]
    for table in tables:
        table.mirrored = True
        table.mirror()
    for request in batch:
        engine.submit(request)
    while engine.tick():
        for table in tables:
            assert (table.on_device.numpy() == table.host).all()
    results = {result.id: result for result in engine.run()}
    for request in batch:
        known = oracle_of(name).alone(request, config.kv_layout, config.first_token)
        check_result(known, results[request.id])


# The host budget.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_without_host_memory_requests_wait_and_none_is_moved(name: str, mode: str) -> None:
    model, batch = model_of(name), some(7, ExitPolicy("latent-diff", 0.6), tokens=12)
    config = tight(model, 16, mode=mode)
    free = exact(name, config, batch).engine.memory.counters
    assert free.preemptions > 0
    none = exact(name, dataclasses.replace(config, kv_host_bytes=1), batch)
    assert none.engine.memory.counters.preemptions == 0
    assert none.engine.memory.counters.peak_host_bytes == 0
    assert all(r.finish_reason is FinishReason.LENGTH for r in none.results.values())


@pytest.mark.parametrize(("mode", "prefix_cache"), [("cdb", True), ("lockstep", False)])
@pytest.mark.parametrize("name", MODELS)
def test_more_host_memory_lets_more_be_moved_and_none_more_than_there_is(
    name: str, prefix_cache: bool, mode: str
) -> None:
    """``serve`` checks the limit after every tick, and that no request is lost."""
    model, batch = model_of(name), some(7, ExitPolicy("latent-diff", 0.6), tokens=12)
    config = tight(model, 16, mode=mode, prefix_cache=prefix_cache)
    need = exact(name, config, batch).engine.memory.counters.peak_host_bytes
    one = 14 * shape_of(model, config).position_bytes
    peaks = []
    for host_bytes in (1, one // 2, one, 2 * one, 20 * one):
        limited = dataclasses.replace(config, kv_host_bytes=host_bytes)
        counters = exact(name, limited, batch).engine.memory.counters
        assert counters.peak_host_bytes <= host_bytes
        peaks.append(counters.peak_host_bytes)
    assert peaks[0] == peaks[1] == 0, "less than a request's worst case covers none"
    assert peaks[-1] == need > 0, "with plenty it is as without a limit"


def test_a_small_request_waits_where_an_older_one_fills_the_host_budget() -> None:
    """It would fit beside the oldest, but being the youngest it would be moved before the other."""
    model = model_of("ouro")
    batch = [
        Request("oldest", [1], 16, ExitPolicy()),
        Request("second", [2], 14, ExitPolicy()),
        Request("small", [3], 3, ExitPolicy()),
    ]
    config = tight(model, 20)
    host_bytes = batch[1].positions * shape_of(model, config).position_bytes
    config = dataclasses.replace(config, kv_host_bytes=host_bytes)
    engine, together = Engine(model, config, clock=tiny.StepClock()), set()
    for request in batch:
        engine.submit(request)
    while engine.tick():
        check_engine(engine)
        held = {r.id for r in engine.residents.requests if r is not None}
        held |= {away.resident.request.id for away in engine.memory.preempted}
        together.add(frozenset(held))
    assert {"oldest", "second"} in together, "the budget covers the second"
    assert not any(len(held) == 3 for held in together)
    assert len(list(engine.run())) == 3


# Requests that cannot fit.


@settings(max_examples=25)
@given(
    name=st.sampled_from(list(MODELS)),
    layout=st.sampled_from(LAYOUTS),
    prompt=st.integers(1, 9),
    tokens=st.integers(1, 12),
    short=st.integers(1, 400),
    prefix_cache=st.booleans(),
    mode=st.sampled_from(MODES),
)
def test_a_request_beyond_the_pools_is_refused_alone_and_the_budget_named_serves_it(
    name: str, layout: str, prompt: int, tokens: int, short: int, prefix_cache: bool, mode: str
) -> None:
    model = model_of(name)
    config = EngineConfig(mode=mode, kv_layout=layout, prefix_cache=prefix_cache, max_residents=3)
    big = Request("big", [i % 23 for i in range(prompt)], tokens, ExitPolicy())
    needed = shape_of(model, config).budget_for(big.positions)
    small = [Request(name, [4], 1, ExitPolicy()) for name in "ab"]
    available = max(needed - short, shape_of(model, config).budget_for(1))
    served = _serve_in(model, config, available, [small[0], big, small[1]])
    assert [served[r.id].finish_reason for r in small] == [FinishReason.LENGTH] * 2
    if served["big"].error is None:
        assert available + shape_of(model, config).position_bytes > needed
        return
    found = re.fullmatch(
        r"needs (\d+) bytes of KV cache, (\d+) are available; raise the KV budget or shorten the "
        "request",
        served["big"].error,
    )
    assert found is not None
    assert int(found[2]) == available < int(found[1])
    assert served["big"].finish_reason is FinishReason.ERROR
    assert served["big"].tokens == []
    again = _serve_in(model, config, int(found[1]), [small[0], big, small[1]])
    check_result(oracle_of(name).alone(big, layout), again["big"])


def _serve_in(
    model: StagedModel, config: EngineConfig, budget: int, batch: list[Request]
) -> dict[str, Any]:
    engine = Engine(model, dataclasses.replace(config, kv_budget_bytes=budget))
    results = {result.id: result for result in engine.run(batch)}
    check_drained(engine)
    return results


@settings(max_examples=25)
@given(
    name=st.sampled_from(list(MODELS)),
    layout=st.sampled_from(LAYOUTS),
    prompt=st.integers(1, 6),
    tokens=st.integers(1, 12),
    beyond=st.integers(0, 3),
    pack=st.booleans(),
)
def test_equal_prompts_one_after_the_other_fit_the_least_budget_that_caches_them(
    name: str, layout: str, prompt: int, tokens: int, beyond: int, pack: bool
) -> None:
    """The second reads the first one's prefix, which it may not give up while it reads it."""
    model = model_of(name)
    config = EngineConfig(kv_layout=layout, prefix_cache=True, max_residents=1 + pack)
    shape, loops = shape_of(model, config), model.dims.max_loops
    rows = loops * prompt + shape.slots * (tokens - 1) + beyond
    positions = -(-rows // shape.slots)
    batch = [
        Request(n, [3, 1, 4, 1, 5, 9][:prompt], tokens, ExitPolicy(), force=[7] * tokens)
        for n in "abc"
    ]
    budget = shape.budget_for(max(positions, batch[0].positions))
    exact(name, dataclasses.replace(config, kv_budget_bytes=budget), batch)


# Cancelling.


def until(engine: Engine, holds: Any) -> None:
    """Tick until something holds."""
    for _ in range(2000):
        if holds():
            return
        assert engine.tick(), "it never came to that"
    raise AssertionError("it never came to that")


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("state", ["preempted", "prefilling", "waiting", "restored"])
def test_cancelling_under_pressure_frees_all_and_leaves_the_others(
    state: str, mode: str, prefix_cache: bool
) -> None:
    model = model_of("staged")
    batch = some(7, ExitPolicy("cdf", 0.6), tokens=12)
    config = tight(model, 17, mode=mode, prefill_tokens=2, prefix_cache=prefix_cache)
    engine, oracle = Engine(model, config, clock=tiny.StepClock()), oracle_of("staged")
    for request in batch:
        engine.submit(request)
    memory, res = engine.memory, engine.residents
    if state == "preempted":
        until(engine, lambda: memory.preempted)
        gone = memory.preempted[-1].resident.request.id
    elif state == "prefilling":
        until(engine, lambda: engine.intake.preparing and res.occupied_count > 1)
        gone = res.request(max(engine.intake.preparing)).id
    elif state == "waiting":
        until(engine, lambda: res.occupied_count > 1)
        gone = engine.intake.arrivals.waiting[-1].id
    else:
        until(engine, lambda: memory.preempted)
        gone = memory.preempted[0].resident.request.id
        until(engine, lambda: res.find(gone) is not None)
    assert engine.cancel(gone)
    assert not engine.cancel(gone)
    check_engine(engine)
    results = {result.id: result for result in engine.run()}
    assert results.keys() == {request.id for request in batch}
    for request in batch:
        known = oracle.alone(request, "per-loop")
        check_result(known, results[request.id], cancelled=request.id == gone)
    assert (results[gone].admitted_s is None) == (state == "waiting")
    check_drained(engine)


def test_a_preempted_requests_loops_are_told_when_it_is_cancelled() -> None:
    model = model_of("ouro")
    engine = Engine(model, tight(model, 14), clock=tiny.StepClock())
    for request in some(6, ExitPolicy()):
        engine.submit(request)
    memory = engine.memory
    until(engine, lambda: any(p.resident.lines["loop"] > 0 for p in memory.preempted))
    away = next(p for p in memory.preempted if p.resident.lines["loop"] > 0)
    name, loops = away.resident.request.id, int(away.resident.lines["loop"])
    assert engine.cancel(name)
    (result,) = [r for r in engine.run() if r.id == name]
    assert result.cancelled_loops == loops
    assert result.finish_reason is FinishReason.CANCELLED


# The prefix cache.


def one_by_one(
    name: str, prompts: list[list[int]], config: EngineConfig
) -> tuple[Engine, list[int]]:
    """Serve prompts one after the other; how many tokens of each were cached already."""
    engine, hits = Engine(model_of(name), config), []
    for i, prompt in enumerate(prompts):
        before = engine.cache.prefix_tokens
        request = Request(str(i), prompt, 3, ExitPolicy())
        (result,) = engine.run([request])
        check_result(oracle_of(name).alone(request, config.kv_layout), result)
        check_engine(engine)
        hits.append(engine.cache.prefix_tokens - before)
    return engine, hits


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_how_many_tokens_of_each_prompt_are_found(name: str, layout: str) -> None:
    prompts = [
        [1, 2, 3, 4, 5],
        [1, 2, 3, 4, 5],  # all but the last, which always runs
        [1, 2, 3, 4, 5, 6],
        [1, 2, 3],  # a beginning: again all but the last
        [1, 2, 9, 9],
        [1, 2, 9, 8],
        [7],
        [7],
        [7, 1, 2],
    ]
    model = model_of(name)
    config = EngineConfig(kv_layout=layout, prefix_cache=True)
    engine, hits = one_by_one(name, prompts, config)
    assert hits == [0, 4, 5, 2, 2, 3, 0, 0, 1]
    assert engine.cache.prompt_tokens == sum(map(len, prompts))
    # The tree holds every beginning once: 1 2 3 4 5 6, 9 9 and 8 after 1 2, and 7 1 2.
    prefixes = engine.cache.prefixes
    assert prefixes is not None
    assert prefixes.positions == 6 + 2 + 1 + 3
    for stage, held in engine.cache.stages.items():
        lines = model.dims.max_loops if stage is Stage.CORE else 1
        assert held.pool.rows_in_use == prefixes.positions * lines, "all R loops are kept"
    check_drained(engine)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_prefixes_least_recently_used_make_way_for_new_prompts(layout: str) -> None:
    model = model_of("huginn")
    config = EngineConfig(kv_layout=layout, prefix_cache=True, max_residents=1)
    shape = shape_of(model, config)
    # Room for three prompts of four tokens at all loops, and the two later tokens of one.
    rows = 3 * 4 * model.dims.max_loops + 2 * shape.slots
    budget = shape.budget_for(-(-rows // shape.slots))
    config = dataclasses.replace(config, kv_budget_bytes=budget)
    a, b, c, d = ([n] * 4 for n in (1, 2, 3, 4))
    engine, hits = one_by_one("huginn", [a, b, a, c, d, a, c, d, b], config)
    room = engine.cache.stages[Stage.CORE].pool.rows // (4 * model.dims.max_loops)
    if room == 3:
        assert hits == [0, 0, 3, 0, 0, 3, 3, 3, 0], "b went, which nobody had read for longest"
    assert engine.cache.prefixes is not None
    assert engine.cache.prefixes.positions <= 4 * room
    check_drained(engine)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_equal_prompts_and_beginnings_of_one_another_in_one_pack(
    name: str, mode: str, layout: str
) -> None:
    model = model_of(name)
    long = [3, 1, 4, 1, 5]
    prompts = [long, long, long[:3], long[:3], [*long, 9], long[:1], long[:1], [*long[:2], 8]]
    batch = [Request(str(i), p, 5, ExitPolicy("latent-diff", 0.6)) for i, p in enumerate(prompts)]
    for order in (batch, batch[::-1]):
        config = EngineConfig(mode=mode, kv_layout=layout, prefix_cache=True, max_residents=8)
        served = exact(name, config, order)
        assert served.engine.cache.prefix_tokens == 0, "they ran together"
    engine = Engine(model, config)
    list(engine.run(batch))
    assert engine.cache.prefixes is not None
    assert engine.cache.prefixes.positions == 6 + 1
    list(engine.run(batch))
    assert engine.cache.prefix_tokens == sum(len(p) - 1 for p in prompts)
    check_drained(engine)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_with_a_cached_prefix_read_it_at_once_and_it_stays_while_they_do(layout: str) -> None:
    model, oracle = model_of("staged"), oracle_of("staged")
    config = EngineConfig(kv_layout=layout, prefix_cache=True, max_residents=2)
    engine = Engine(model, config, clock=tiny.StepClock())
    list(engine.run([Request("first", [1, 2, 3, 4], 2)]))
    batch = [Request(str(i), [1, 2, 3, 5 + i], 6, ExitPolicy("cdf", 0.6)) for i in range(2)]
    for request in batch:
        engine.submit(request)
    until(engine, lambda: engine.schedule.in_flight == 2)
    cache = engine.cache
    cache.clear_prefixes()
    assert cache.prefixes is not None
    assert cache.prefixes.positions == 5, "what they read, and their own last tokens"
    check_engine(engine)
    results = {result.id: result for result in engine.run()}
    for request in batch:
        check_result(oracle.alone(request, layout), results[request.id])
    check_drained(engine)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layout", ["first-shared", "shared", "slots:3"])
def test_prompts_too_long_to_be_cached_are_served_without(name: str, layout: str) -> None:
    """R rows a position do not fit where m do: such a prompt is not cached, and not looked up."""
    model = model_of(name)
    config = EngineConfig(kv_layout=layout, prefix_cache=True, max_residents=2)
    shape = shape_of(model, config)
    batch = [Request(str(i), [5, 1, 9, 9, 2, 7, 20, i], 4) for i in range(3)]
    budget = shape.budget_for(batch[0].positions)
    rows = shape.pool_rows(budget)[Stage.CORE]
    assert rows < model.dims.max_loops * 8 + shape.slots * 3, "the pool is too small to cache them"
    served = exact(name, dataclasses.replace(config, kv_budget_bytes=budget), batch)
    assert served.engine.cache.prefix_tokens == 0
    short = [Request("a", [5], 2), Request("b", [5, 1], 2)]
    mixed = exact(name, dataclasses.replace(config, kv_budget_bytes=budget), [*short, *batch])
    assert {r.finish_reason for r in mixed.results.values()} == {FinishReason.LENGTH}


def test_starting_afresh_empties_the_prefix_cache_and_all_counters() -> None:
    """A repeat finds what the first run found, and counts what it counted."""
    model, batch = model_of("staged"), some(7, ExitPolicy("cdf", 0.6), tokens=12)
    engine = Engine(model, tight(model, 18, prefix_cache=True), clock=tiny.StepClock())
    seen = []
    for _ in range(2):
        assert len(list(engine.run(batch))) == 7
        cache = engine.cache
        seen.append((engine.memory.counters, cache.prefix_hit_rate, cache.peak_bytes))
        engine.start_afresh()
        assert cache.prefix_hit_rate is None
        assert cache.rows_in_use == cache.peak_bytes == 0
        assert engine.memory.counters == MemoryCounters()
        check_drained(engine)
    assert seen[0] == seen[1]
    assert seen[0][0].preemptions > 0


@settings(max_examples=25)
@given(rng=randoms, name=st.sampled_from(list(MODELS)), layout=st.sampled_from(LAYOUTS))
def test_prompts_in_common_are_reused_under_pressure(
    rng: random.Random, name: str, layout: str
) -> None:
    model = model_of(name)
    palette = palette_of(name, rng.randint(0, 3))
    batch = draw_batch(rng, palette, most=7)
    config = dataclasses.replace(
        draw_config(rng, model, batch), prefix_cache=True, kv_layout=layout
    )
    shape = shape_of(model, config)
    longest = max(request.positions for request in batch)
    budget = shape.budget_for(longest + rng.randint(0, 2 * longest))
    served = serve(model, dataclasses.replace(config, kv_budget_bytes=budget), batch)
    target(float(served.engine.cache.prefix_tokens), label="prompt tokens found cached")
    oracle_of(name).check(served, batch)


# The long run in small.


def test_two_hundred_requests_with_cancellation_sizes_and_pressure() -> None:
    """Nothing leaks: rows, host bytes, pins and residents are counted all along and at the end."""
    rng, name, model = random.Random(20), "staged", model_of("staged")
    palette = palette_of(name, 4)
    batch = [
        dataclasses.replace(request, id=str(i), arrival_s=rng.uniform(0, 3000))
        for i in range(200)
        for request in draw_batch(rng, palette, most=2)[:1]
    ]
    longest = max(request.positions for request in batch)
    config = tight(
        model,
        3 * longest,
        max_residents=12,
        width=7,
        kv_layout="first-shared",
        prefix_cache=True,
        prefill_tokens=5,
        coda_min_rows=3,
    )
    config = dataclasses.replace(config, kv_host_bytes=2 * (config.kv_budget_bytes or 0))
    served = serve(model, config, batch, rng, cancel_rate=0.03, check_every=5)
    oracle_of(name).check(served, batch)
    counters = served.engine.memory.counters
    assert len(served.results) == 200
    assert len(served.cancelled) > 20
    assert counters.preemptions > 20
    assert counters.mid_token > 5
    assert served.engine.cache.prefix_tokens > 50

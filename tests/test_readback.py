"""The host waits for the device where it must, no earlier and no oftener; results are the same."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cdbench.runtime.core import ExitPolicy, Request, Stage
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.readback import (
    Awaited,
    Chosen,
    EventLink,
    Here,
    HostLink,
    link_of,
    put,
    to_device,
)
from tests import tiny
from tests.late import LateDevice
from tests.pressure import (
    MODELS,
    draw_batch,
    draw_config,
    model_of,
    oracle_of,
    palette_of,
    serve,
)
from tests.test_engine_properties import configs, memory
from tests.test_lookahead import assert_equals_alone, gated_requests

CPU = torch.device("cpu")
randoms = st.randoms(use_true_random=False)


# The parts.


def test_on_a_cpu_arrays_are_shared_and_results_are_there_at_once() -> None:
    array = np.arange(3)
    sent = to_device(array, CPU)
    array[0] = 7
    assert sent.tolist() == [7, 1, 2]
    link = link_of(CPU)
    assert isinstance(link, HostLink)
    readback = link.fetch(torch.tensor([1, 2]), torch.tensor([0.5]))
    assert readback.arrived
    assert [values.tolist() for values in readback.wait()] == [[1, 2], [0.5]]
    target = torch.zeros(3, dtype=torch.int64)
    put(target, np.array([4, 5, 6]))
    assert target.tolist() == [4, 5, 6]


def test_a_readback_keeps_what_a_later_launch_overwrites_and_is_waited_for_once() -> None:
    device = LateDevice()
    link = EventLink(device.event, pinned=False)
    values = torch.tensor([1.0, 2.0])
    readback = link.fetch(values)
    values.zero_()
    seen = [(readback.arrived, readback.wait()[0].tolist()) for _ in range(2)]
    assert seen == [(False, [1.0, 2.0]), (True, [1.0, 2.0])]
    assert device.journal == [("fetch", 0), ("wait", 0)]


def test_what_is_expected_is_taken_in_order_as_soon_as_it_is_there() -> None:
    device, awaited = LateDevice(), Awaited()
    link, taken = EventLink(device.event, pinned=False), list[Any]()

    def expect(name: int) -> None:
        tensor = torch.tensor([name])
        awaited.expect(link.fetch(tensor), lambda values: taken.append(int(values[0])))

    expect(1)
    expect(2)
    # It is there, but those before it are not.
    awaited.expect(Here((np.array([3]),)), lambda values: taken.append(int(values[0])))
    assert (taken, len(awaited)) == ([], 3)
    device.reached = 1
    expect(4)
    assert (taken, len(awaited)) == ([1], 3)
    awaited.take_all()
    assert (taken, len(awaited)) == ([1, 2, 3, 4], 0)
    awaited.expect(Here((np.array([5]),)), lambda values: taken.append(int(values[0])))
    assert taken[-1] == 5


def test_of_some_rows_only_their_choices_are_meant() -> None:
    chosen = Chosen.known(np.array([5, 6, 7]), np.array([0.1, 0.2, 0.3]))
    some = chosen.of(np.array([True, False, True]))
    assert [part.tolist() for part in some.wait()] == [[5, 7], [0.1, 0.3]]
    assert not chosen.met().any()
    tested = Chosen(Here((*chosen.wait(), np.array([True, False, False]))))
    assert tested.met().tolist() == [True, False, False]


# When the host waits.


def requests(lag: int, count: int = 5, rule: str = "cdf", **changes: Any) -> list[Request]:
    """Forced ones of unlike lengths: none ends because of what is chosen."""
    rng = random.Random(4)
    return [
        Request(
            str(i),
            [rng.randrange(23) for _ in range(3)],
            exit=ExitPolicy(rule, {"cdf": 0.3, "entropy-diff": 0.3}.get(rule), 1, lag),
            force=[rng.randrange(23) for _ in range(4 + i)],
            **changes,
        )
        for i in range(count)
    ]


def watched(batch: list[Request], **config: Any) -> LateDevice:
    """What happens as a batch is served, its results checked against a device that is in time."""
    device, settings_ = LateDevice(), EngineConfig(**{"max_residents": 4, **config})
    model = model_of("ouro")
    late = device.take(Engine(model, settings_, clock=tiny.StepClock(), observer=device))
    found = {r.id: r for r in late.run(batch)}
    assert late.idle
    for known in Engine(model, settings_, clock=tiny.StepClock()).run(batch):
        result = found[known.id]
        assert result.tokens == known.tokens
        assert result.logprobs == known.logprobs
        assert result.executed_depths == known.executed_depths
        assert result.requested_depths == known.requested_depths
        assert result.token_s == sorted(result.token_s)
    return device


def waits(device: LateDevice) -> dict[int, int]:
    """By readback that was waited for: how many launches were begun after its own until then.

    A readback is begun within its launch, which is noted at the launch's end.
    """
    began: dict[int, int] = {}
    found: dict[int, int] = {}
    launches = 0
    for what, number in device.journal:
        if what == "launch":
            launches += 1
        elif what == "fetch":
            began[number] = launches
        else:
            found[number] = launches - began[number] - 1
    return found


@pytest.mark.parametrize("mode", ["cdb", "lockstep"])
@pytest.mark.parametrize("replayed", [False, True])
def test_at_lag_1_no_launch_just_made_is_waited_for(mode: str, replayed: bool) -> None:
    batch = requests(lag=1)
    if replayed:
        depths = [4, 1, 3, 2, 4, 2, 1, 3, 2]
        batch = [dataclasses.replace(r, replay_depths=depths[: len(r.force or ())]) for r in batch]
    device = watched(batch, mode=mode)
    total = len(device.stages)
    found = waits(device)
    assert found, "nothing was waited for at all"
    # When all has been launched what is on its way is waited for, and nothing else can be.
    last = sum(1 for what, _ in device.journal[device.journal.index(("launch", total - 1)) :]) - 1
    early = [n for n, launched_since in found.items() if launched_since == 0]
    assert len(early) <= last, f"readbacks {early} were waited for with nothing launched since"
    assert all(n >= device.fetched - last for n in early)


@pytest.mark.parametrize("mode", ["cdb", "lockstep"])
def test_at_lag_0_every_tested_loop_is_waited_for_once_and_before_the_next_launch(
    mode: str,
) -> None:
    device = watched(requests(lag=0), mode=mode)
    decode_loops = [i for i, (what, n) in enumerate(device.journal) if what == "launch"]
    found = waits(device)
    counted = [n for what, n in device.journal if what == "wait"]
    assert len(counted) == len(set(counted)), "a readback was waited for twice"
    tested = 0
    for at in decode_loops:
        number = device.journal[at][1]
        is_core = device.stages[number] is Stage.CORE
        if is_core and device.journal[at - 1][0] == "fetch":
            tested += 1
            assert found[device.journal[at - 1][1]] == 0
    assert tested > 10


@pytest.mark.parametrize("mode", ["cdb", "lockstep"])
def test_a_late_test_of_a_readout_is_not_taken_for_the_next_tokens(mode: str) -> None:
    """Who leaves begins its next token before what its last readout says is there."""
    batch = [
        dataclasses.replace(r, force=[*(r.force or ()), *range(12)])
        for r in requests(lag=1, rule="entropy-diff", count=6)
    ]
    device = watched(batch, mode=mode)
    assert 0 not in [since for n, since in waits(device).items() if n < device.fetched - 1]


def test_a_launch_without_tests_is_not_waited_for() -> None:
    """At full depth the host only needs the tokens, and those after the next launch."""
    device = watched(requests(lag=0, rule="none"), mode="static")
    found = waits(device)
    total = len(device.stages)
    assert len(found) <= device.fetched < total
    assert all(since > 0 for n, since in found.items() if n < device.fetched - 1)


def test_a_token_that_may_stop_its_request_is_waited_for_before_the_next_prelude() -> None:
    """No work is done for a token that turns out not to be there."""
    batch = [
        dataclasses.replace(r, force=None, max_new_tokens=6, stop_ids=frozenset({i, 11, 17}))
        for i, r in enumerate(requests(lag=1))
    ]
    device = watched(batch)
    preludes = sum(stage is Stage.PRELUDE for stage in device.stages)
    plain = LateDevice()
    engine = Engine(model_of("ouro"), EngineConfig(max_residents=4), observer=plain)
    results = list(engine.run(batch))
    assert any(r.stop_depth for r in results), "no request stopped"
    assert preludes == sum(stage is Stage.PRELUDE for stage in plain.stages)
    for n, since in waits(device).items():
        at = device.journal.index(("fetch", n))
        if device.stages[device.journal[at + 1][1]] is Stage.CODA:
            assert since == 0


def test_times_of_a_device_in_time_are_those_of_its_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each token is stamped when the host has it: right after its coda, on a CPU."""
    device = LateDevice()
    clock = tiny.StepClock()
    engine = Engine(model_of("ouro"), EngineConfig(max_residents=4), clock=clock, observer=device)
    seen: list[float] = []
    take = engine.new_tokens.take

    def noted(*args: Any) -> None:
        before = clock.time_s
        take(*args)
        seen.append(before)

    monkeypatch.setattr(engine.new_tokens, "take", noted)
    stamps = {s for r in engine.run(requests(lag=1)) for s in r.token_s}
    assert stamps == {before + 1.0 for before in seen}


# A device that runs behind changes no result.


@settings(max_examples=20)
@given(rng=randoms, name=st.sampled_from(list(MODELS)))
def test_a_device_that_runs_behind_changes_no_result(rng: random.Random, name: str) -> None:
    """Any rule, lag, floor, layout, mode, memory pressure, cancellation, with chunks that ride."""
    model = model_of(name)
    batch = draw_batch(rng, palette_of(name, rng.randint(0, 3)), most=7)
    config = dataclasses.replace(draw_config(rng, model, batch), ride=rng.random() < 0.5)
    device = LateDevice()
    cancel_rate = rng.choice([0.0, 0.1])
    served = serve(model, config, batch, rng, cancel_rate, prepare=device.take)
    assert device.fetched
    oracle_of(name).check(served, batch)


def test_waiting_longer_for_a_readback_would_be_noticed() -> None:
    """The tests above would see tests that are lost on the way, or taken a launch too late."""
    batch = requests(lag=1)
    model = model_of("ouro")
    right = {r.id: r.executed_depths for r in Engine(model, EngineConfig()).run(batch)}
    assert len({depth for depths in right.values() for depth in depths}) > 2
    device = LateDevice()
    engine = device.take(Engine(model, EngineConfig()))
    take_all, calls = engine.awaited.take_all, 0

    def sometimes() -> None:
        nonlocal calls
        calls += 1
        if calls % 3 == 0 or engine.schedule.in_flight == 0:
            take_all()

    engine.awaited.take_all = sometimes  # type: ignore[method-assign]
    wrong = {r.id: r.executed_depths for r in engine.run(batch)}
    assert wrong != right


@pytest.mark.parametrize("name", ["ouro", "huginn"])
@settings(max_examples=8)
@given(data=st.data())
def test_gates_that_are_heard_late_call_the_same(name: str, data: st.DataObject) -> None:
    """A gate may be asked once more before its call is known: the first call counts."""
    model = model_of(name)
    batch = data.draw(gated_requests(name))
    config = data.draw(memory(model, data.draw(configs()), batch))
    config = dataclasses.replace(config, graphs=data.draw(st.booleans()))
    engine = LateDevice().take(Engine(model, config, clock=tiny.StepClock()))
    results = {r.id: r for r in engine.run(batch)}
    for request in batch:
        if request.exit.lookahead is not None:
            assert_equals_alone(model, request, results[request.id], config.kv_layout)

"""Draws are pure functions of their key, and follow the distribution they say they do."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cdbench.errors import UsageError
from cdbench.models.base import StagedModel
from cdbench.runtime.core import ExitPolicy, FloatArray, Request, RequestResult, SamplingParams
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.sampling import draw, logprobs_of, state_keys, stream_key, uniform
from tests import pressure, staged, tiny

NEAR_A_BOUNDARY = 1e-9
rows = st.lists(st.floats(-5, 5), min_size=1, max_size=9)


def keys(*names: str, seed: int = 0) -> np.ndarray:
    return np.array([stream_key(name, seed) for name in names], dtype=np.uint64)


def draw_one(
    logits: list[float], uniform: float, temperature: float = 1.0, top_k: int = 0, top_p: float = 1
) -> int:
    one = [torch.tensor([x], dtype=torch.float64) for x in (temperature, top_p, uniform)]
    row = torch.tensor([logits], dtype=torch.float64)
    return int(draw(row, one[0], torch.tensor([top_k]), one[1], one[2]))


def cut(logits: list[float], temperature: float, top_k: int, top_p: float) -> FloatArray:
    """The distribution left after the cuts, one step after the other as they are defined."""
    weights = np.exp((np.array(logits) - max(logits)) / temperature)
    order = np.argsort(-weights, kind="stable")
    kept = order[: top_k or len(order)]
    probs = np.zeros(len(logits))
    probs[kept] = weights[kept] / weights[kept].sum()
    reached = np.cumsum(probs[order])
    assume(np.abs(reached - top_p).min() > NEAR_A_BOUNDARY or top_p == 1)
    last = int(np.argmax(reached >= top_p)) if top_p < 1 else len(order) - 1
    probs[order[last + 1 :]] = 0
    result: FloatArray = probs / probs.sum()
    return result


@given(
    logits=rows,
    number=st.floats(0, 1, exclude_max=True),
    temperature=st.floats(0.2, 3),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.05, 1),
)
def test_a_draw_inverts_the_cut_distribution(
    logits: list[float], number: float, temperature: float, top_k: int, top_p: float
) -> None:
    probs = cut(logits, temperature, top_k, top_p)
    order = np.argsort(-np.array(logits), kind="stable")
    reached = np.cumsum(probs[order])
    assume(np.abs(reached - number).min() > NEAR_A_BOUNDARY)
    known = order[int(np.argmax(reached > number))]
    assert draw_one(logits, number, temperature, top_k, top_p) == known


@given(logits=rows, number=st.floats(0, 1, exclude_max=True), temperature=st.floats(0.01, 5))
def test_top_k_of_one_and_a_tiny_top_p_are_greedy(
    logits: list[float], number: float, temperature: float
) -> None:
    greedy = int(np.argmax(logits))
    assert draw_one(logits, number, temperature, top_k=1) == greedy
    assert draw_one(logits, number, temperature, top_p=1e-9) == greedy


def test_a_tiny_temperature_is_greedy_and_not_nan() -> None:
    for temperature in (1e-30, 1e-300, 5e-324):
        assert draw_one([0.0, 3.0, 3.0, -9.0], 0.25, temperature) == 1


def test_impossible_tokens_are_never_drawn() -> None:
    logits = [-math.inf, 0.0, -math.inf, 0.0]
    drawn = {draw_one(logits, i / 64) for i in range(64)} | {draw_one(logits, 1 - 2**-53)}
    assert drawn == {1, 3}


def test_each_row_of_a_launch_is_cut_by_its_own_parameters() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).repeat(3, 1)
    number = torch.tensor([0.999, 0.999, 0.999])
    tokens = draw(
        logits, torch.ones(3), torch.tensor([1, 2, 0]), torch.tensor([1.0, 1.0, 1.0]), number
    )
    assert tokens.tolist() == [3, 2, 0]


def test_a_number_depends_on_its_key_and_position_alone() -> None:
    together = uniform(keys("a", "b", "a"), np.array([3, 3, 4]))
    assert uniform(keys("a"), np.array([3])) == together[:1]
    assert uniform(keys("b"), np.array([3])) == together[1:2]
    assert len(set(together)) == 3
    assert (uniform(keys("a", seed=1), np.array([3])) != together[:1]).all()
    assert stream_key("a", 1) != stream_key("1", 0)


def test_numbers_are_roughly_uniform_along_and_across_streams() -> None:
    along = uniform(keys("a").repeat(4096), np.arange(4096))
    across = uniform(keys(*(str(i) for i in range(4096))), np.zeros(4096, np.int64))
    for numbers in (along, across):
        assert ((numbers >= 0) & (numbers < 1)).all()
        counts = np.bincount((numbers * 16).astype(int), minlength=16)
        # 15 degrees of freedom: 37.7 is the 0.1 % point.
        assert ((counts - 256) ** 2 / 256).sum() < 37.7
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.05


def test_drawn_tokens_follow_the_softmax() -> None:
    logits, n = [0.0, 1.0, 2.0, -1.0], 4000
    numbers = torch.from_numpy(uniform(keys("x").repeat(n), np.arange(n)))
    ones = torch.ones(n, dtype=torch.float64)
    tokens = draw(torch.tensor([logits]).repeat(n, 1), ones, torch.zeros(n).long(), ones, numbers)
    expected = n * torch.tensor(logits, dtype=torch.float64).softmax(-1)
    chi_square = ((tokens.bincount(minlength=4) - expected) ** 2 / expected).sum()
    # 3 degrees of freedom: 16.3 is the 0.1 % point.
    assert float(chi_square) < 16.3


@given(st.lists(rows, min_size=1, max_size=3))
def test_logprobs_are_those_of_the_raw_model(batch: list[list[float]]) -> None:
    width = min(len(row) for row in batch)
    logits: Tensor = torch.tensor([row[:width] for row in batch], dtype=torch.float64)
    tokens = torch.zeros(len(batch), dtype=torch.int64)
    known = logits.log_softmax(-1)[:, 0]
    torch.testing.assert_close(logprobs_of(logits, tokens), known)
    assert logprobs_of(logits.bfloat16(), tokens).dtype is torch.float32


def test_temperature_and_cuts_leave_reported_logprobs_raw(tiny_ouro: StagedModel) -> None:
    sampling = SamplingParams(temperature=2.0, top_k=3, top_p=0.8, seed=5)
    (drawn,) = Engine(tiny_ouro).run([Request("r", [1, 2, 3], 6, sampling=sampling)])
    (forced,) = Engine(tiny_ouro).run([Request("f", [1, 2, 3], force=drawn.tokens)])
    assert drawn.logprobs == pytest.approx(forced.logprobs)


def test_the_seed_changes_the_text_and_repeats_it(tiny_ouro: StagedModel) -> None:
    def text(seed: int) -> list[int]:
        sampling = SamplingParams(temperature=2.0, seed=seed)
        (result,) = Engine(tiny_ouro).run([Request("r", [1, 2, 3], 12, sampling=sampling)])
        return result.tokens

    assert text(1) == text(1)
    assert text(1) != text(2)


# Random initial states.


def test_a_states_key_depends_on_its_stream_and_position_alone() -> None:
    together = state_keys(keys("a", "b", "a"), np.array([3, 3, 4]))
    assert together.dtype == np.int64
    assert state_keys(keys("a"), np.array([3])) == together[:1]
    assert state_keys(keys("b"), np.array([3])) == together[1:2]
    assert len(set(together.tolist())) == 3
    assert (state_keys(keys("a", seed=1), np.array([3])) != together[:1]).all()


def test_states_and_draws_are_keyed_apart() -> None:
    """No position of a stream draws a token with the number that another draws a state with."""
    streams, positions = keys(*(str(i) for i in range(64))).repeat(64), np.tile(np.arange(64), 64)
    states = state_keys(streams, positions).view(np.uint64)
    assert len(set(states.tolist())) == states.size
    numbers = (states >> np.uint64(11)).astype(np.float64) * 2.0**-53
    drawn = uniform(streams, positions)
    assert not set(numbers.tolist()) & set(drawn.tolist())
    assert abs(np.corrcoef(numbers, drawn)[0, 1]) < 0.05


HUGINN = tiny.huginn()
RANDOM = EngineConfig(state_init="random")


def random_requests(rng: random.Random) -> list[Request]:
    palette = pressure.palette_of("huginn", rng.randint(0, 3))
    return pressure.draw_batch(rng, palette, most=6)


def served(config: EngineConfig, batch: list[Request]) -> dict[str, RequestResult]:
    engine = Engine(HUGINN, config, clock=tiny.StepClock())
    return {result.id: result for result in engine.run(batch)}


def known(request: Request, config: EngineConfig) -> RequestResult:
    """The request alone, its whole prompt at once, in an engine with all the memory it wants."""
    alone = EngineConfig(
        max_residents=1,
        kv_layout=config.kv_layout,
        first_token=config.first_token,
        state_init="random",
    )
    return served(alone, [dataclasses.replace(request, arrival_s=0.0)])[request.id]


@settings(max_examples=15)
@given(rng=st.randoms(use_true_random=False), budget=st.booleans())
def test_random_states_are_the_same_in_any_schedule(rng: random.Random, budget: bool) -> None:
    batch = random_requests(rng)
    config = dataclasses.replace(
        pressure.draw_config(rng, HUGINN, batch), state_init="random", prefix_cache=False
    )
    if not budget:
        config = dataclasses.replace(config, kv_budget_bytes=None, kv_host_bytes=None)
    results = served(config, batch)
    for request in batch:
        alone, result = known(request, config), results[request.id]
        assert result.tokens == alone.tokens
        assert result.executed_depths == alone.executed_depths
        assert result.requested_depths == alone.requested_depths
        assert result.logprobs == pytest.approx(alone.logprobs, abs=pressure.TOLERANCE)


def test_random_states_survive_being_moved_in_the_middle_of_a_token() -> None:
    policy, shape = ExitPolicy("latent-diff", 0.6), Engine(HUGINN).cache.shape
    batch = [Request(str(i), [i + 1, 2], 10, policy) for i in range(6)]
    config = dataclasses.replace(RANDOM, max_residents=6, kv_budget_bytes=shape.budget_for(14))
    engine = Engine(HUGINN, config, clock=tiny.StepClock())
    results = {result.id: result for result in engine.run(batch)}
    assert engine.memory.counters.mid_token > 0
    for request in batch:
        alone = known(request, config)
        assert results[request.id].tokens == alone.tokens
        assert results[request.id].executed_depths == alone.executed_depths


def test_random_states_are_keyed_by_request_seed_and_position() -> None:
    def one(name: str, seed: int, config: EngineConfig = RANDOM) -> list[float]:
        request = Request(name, [4, 4, 4], force=[4, 4, 4, 4], sampling=SamplingParams(seed=seed))
        return served(config, [request])[name].logprobs

    assert one("a", 0) == one("a", 0)
    assert len({tuple(one(name, seed)) for name in "ab" for seed in (0, 1)}) == 4
    zero = EngineConfig()
    assert one("a", 0, zero) == one("b", 1, zero) != one("a", 0)
    # Equal tokens at different positions start from different states.
    spread = np.ptp(one("a", 0)[1:]), np.ptp(one("a", 0, zero)[1:])
    assert spread[0] > 0


@pytest.mark.parametrize(
    "build", [tiny.ouro, tiny.universal, tiny.llama, tiny.looped_llama, staged.staged]
)
def test_a_model_without_an_initial_state_of_its_own_refuses_a_random_one(
    build: Callable[[], StagedModel],
) -> None:
    model = build()
    with pytest.raises(UsageError, match=r"state_init 'random': a .* starts from its prelude"):
        Engine(model, RANDOM)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"state_init": "random", "prefix_cache": True}, "kv.prefix_cache: with state_init random"),
        ({"state_init": "ones"}, "state_init 'ones': unknown; use zero or random"),
    ],
)
def test_random_states_and_cached_prefixes_exclude_each_other(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Engine(HUGINN, EngineConfig(**changes))

"""Models with layers in every stage: served in any schedule and layout as one request alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings

from cdbench.models.base import StagedModel
from cdbench.models.sequence import loop_states
from cdbench.runtime.core import ExitPolicy, LaunchLog, Request, Stage
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from tests import tiny
from tests.reference import ReferenceModel, assert_equals_alone
from tests.staged import staged
from tests.test_engine_properties import configs, requests, serve

MODEL = staged()
READOUTS = [
    ExitPolicy(rule, t, 1, lag)
    for rule in ("confidence", "margin")
    for t in (0.2, 0.5)
    for lag in (0, 1)
]


@settings(max_examples=20)
@given(batch=requests(), config=configs())
def test_any_schedule_equals_the_request_alone(batch: list[Request], config: EngineConfig) -> None:
    results = serve(MODEL, config, batch)
    for request in batch:
        assert_equals_alone(MODEL, request, results[request.id], config.kv_layout)


@pytest.mark.parametrize("policy", READOUTS, ids=str)
@pytest.mark.parametrize("mode", ["cdb", "lockstep"])
def test_readouts_overwrite_one_coda_row_and_the_exit_readout_is_the_coda(
    mode: str, policy: ExitPolicy
) -> None:
    """Every loop but a scripted or a last one reads out once; no token runs a second coda."""
    batch = [Request(str(i), [i + 1, 2], 5, policy) for i in range(5)]
    log = LaunchLog()
    results = serve(MODEL, EngineConfig(mode=mode, max_residents=3, width=2), batch, log)
    decode = [r for r in log.records if not r.is_prefill]
    rows = {s: sum(r.decode_rows for r in decode if r.stage is s) for s in Stage}
    assert rows[Stage.CORE] == sum(r.token_loops for r in results.values())
    assert rows[Stage.CODA] == rows[Stage.CORE], "a readout per loop, and nothing on top"
    assert rows[Stage.PRELUDE] == sum(len(r.tokens) - 1 for r in results.values())


def test_readouts_stay_within_the_smallest_budget() -> None:
    """A readout at every loop takes no second coda row, so the worst case reserved is enough."""
    policy = ExitPolicy("confidence", 1.0)
    batch = [Request(str(i), [i + 1, 2], 8, policy) for i in range(3)]
    config = EngineConfig(max_residents=3, kv_budget_bytes=Engine(MODEL).cache.shape.budget_for(9))
    results = serve(MODEL, config, batch)
    assert all(r.executed_depths == [4] * 8 for r in results.values())


@settings(max_examples=10)
@given(batch=requests(), config=configs())
def test_replay_repeats_tokens_depths_and_requests_under_every_rule(
    batch: list[Request], config: EngineConfig
) -> None:
    live = serve(MODEL, config, batch)
    replays = [
        dataclasses.replace(
            r, force=live[r.id].tokens, replay_depths=live[r.id].executed_depths, arrival_s=0.0
        )
        for r in batch
        if live[r.id].tokens
    ]
    replayed = serve(MODEL, config, replays)
    for name, result in replayed.items():
        assert result.tokens == live[name].tokens
        assert result.executed_depths == live[name].executed_depths
        assert result.requested_depths == live[name].requested_depths


@pytest.mark.parametrize("build", [tiny.ouro, staged])
def test_a_model_can_be_trained_after_it_was_served(build: Callable[[], StagedModel]) -> None:
    model = build()
    serve(model, EngineConfig(), [Request("r", [1, 2, 3], 4, ExitPolicy("cdf", 0.5))])
    model.requires_grad_(True)
    loss = torch.stack([state.sum() for state in loop_states(model, torch.tensor([[1, 2, 3]]))])
    loss.sum().backward()
    core = [weight for weight in model.stage_parameters()["core"] if weight.grad is not None]
    assert core
    assert all(torch.isfinite(weight.grad).all() for weight in core if weight.grad is not None)


@pytest.mark.parametrize("build", [tiny.ouro, staged])
def test_whole_sequences_equal_the_prompt_read_token_by_token(
    build: Callable[[], StagedModel],
) -> None:
    """Training sees at every loop what serving a prompt computes."""
    model, ids = build(), [4, 9, 1, 1, 20]
    alone, positions = ReferenceModel(model, "per-loop", None), list(range(len(ids)))
    state, injection = alone.prelude(ids, positions)
    for loop, found in enumerate(loop_states(model, torch.tensor([ids, ids])), start=1):
        state = alone.core(state, injection, positions, loop)
        torch.testing.assert_close(found, torch.cat([state, state]), atol=1e-12, rtol=0)

"""What an engine promises its caller: stops, streaming, order, cancelling, modes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from cdbench.errors import UsageError
from cdbench.models.base import StagedModel
from cdbench.runtime.core import (
    ExitPolicy,
    FinishReason,
    LaunchLog,
    Request,
    RequestResult,
    SamplingParams,
    Stage,
)
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.schedules.base import Work
from tests import staged, tiny
from tests.reference import continue_alone

CDF = ExitPolicy("cdf", 0.6)
PROMPT = [5, 1, 9]


def letters(ids: list[int]) -> str:
    return "".join(chr(ord("a") + i) for i in ids)


def serve(model: StagedModel, batch: list[Request], **settings: Any) -> dict[str, RequestResult]:
    engine = Engine(model, EngineConfig(**settings), clock=tiny.StepClock(), detokenize=letters)
    results = {result.id: result for result in engine.run(batch)}
    assert engine.idle
    assert engine.cache.rows_in_use == 0
    return results


def some(count: int, tokens: int = 6, **changes: Any) -> list[Request]:
    return [
        Request(str(i), [(3 * i + j) % 23 for j in range(1 + i % 4)], tokens, CDF, **changes)
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def greedy(tiny_ouro: StagedModel) -> RequestResult:
    """The undisturbed continuation that stop tests cut: its fourth token is new to it."""
    request = Request("g", PROMPT, 8, CDF)
    result = serve(tiny_ouro, [request])["g"]
    assert result.tokens[3] not in result.tokens[:3]
    return result


# Stops.


def test_a_stop_id_ends_the_request_unlisted_and_its_depth_is_told(
    tiny_ouro: StagedModel, greedy: RequestResult
) -> None:
    stops = frozenset({greedy.tokens[3], 22})
    result = serve(tiny_ouro, [Request("g", PROMPT, 8, CDF, stop_ids=stops)])["g"]
    assert result.tokens == greedy.tokens[:3]
    assert result.executed_depths == greedy.executed_depths[:3]
    assert result.stop_depth == greedy.executed_depths[3]
    assert result.finish_reason is FinishReason.STOP
    assert result.token_loops == sum(greedy.executed_depths[1:4])


def test_a_first_token_that_stops_has_no_loops_of_its_own(
    tiny_ouro: StagedModel, greedy: RequestResult
) -> None:
    stops = frozenset(greedy.tokens[:1])
    result = serve(tiny_ouro, [Request("g", PROMPT, 8, CDF, stop_ids=stops)])["g"]
    assert (result.tokens, result.stop_depth, result.token_loops) == ([], None, 0)
    assert result.finish_reason is FinishReason.STOP
    assert result.text == ""


def test_a_stop_id_on_the_last_token_is_a_stop(
    tiny_ouro: StagedModel, greedy: RequestResult
) -> None:
    stops = frozenset({greedy.tokens[3]})
    result = serve(tiny_ouro, [Request("g", PROMPT, 4, CDF, stop_ids=stops)])["g"]
    assert (len(result.tokens), result.finish_reason) == (3, FinishReason.STOP)


def test_a_stop_string_ends_the_request_and_cuts_its_text(
    tiny_ouro: StagedModel, greedy: RequestResult
) -> None:
    text = letters(greedy.tokens)
    result = serve(tiny_ouro, [Request("g", PROMPT, 8, CDF, stop_strings=("?", text[2:4]))])["g"]
    assert result.text == text[:2]
    assert result.tokens == greedy.tokens[:4], "the tokens that made the stop string are listed"
    assert result.finish_reason is FinishReason.STOP
    assert result.stop_depth is None


def test_ignore_eos_ignores_stop_ids(tiny_ouro: StagedModel, greedy: RequestResult) -> None:
    stops = frozenset(greedy.tokens)
    request = Request("g", PROMPT, 8, CDF, stop_ids=stops, ignore_eos=True)
    result = serve(tiny_ouro, [request])["g"]
    assert (result.tokens, result.finish_reason) == (greedy.tokens, FinishReason.LENGTH)


def test_forced_tokens_ignore_stops_and_limits(tiny_ouro: StagedModel) -> None:
    force = [7, 7, 3, 0, 7]
    request = Request(
        "f", PROMPT, 2, CDF, force=force, stop_ids=frozenset(force), stop_strings=("h",)
    )
    result = serve(tiny_ouro, [request])["f"]
    assert result.tokens == force
    assert result.text == letters(force)
    assert result.finish_reason is FinishReason.LENGTH


# Streaming, order, independence.


def test_results_stream_before_the_last_request_is_done(tiny_ouro: StagedModel) -> None:
    short, long = Request("short", PROMPT, 2), Request("long", PROMPT, 12)
    engine = Engine(tiny_ouro)
    stream = engine.run([long, short])
    assert next(stream).id == "short"
    assert not engine.idle
    assert next(stream).id == "long"
    assert engine.idle


def test_requests_that_arrive_together_are_admitted_in_submission_order(
    tiny_ouro: StagedModel,
) -> None:
    batch = some(6, arrival_s=50.0)
    results = serve(tiny_ouro, batch, max_residents=1)
    assert list(results) == [r.id for r in batch]


def test_nobody_is_admitted_before_arriving_however_far_in_the_future(
    tiny_ouro: StagedModel,
) -> None:
    arrivals = [3e6, 0.0, 1e9]
    batch = [dataclasses.replace(r, arrival_s=t) for r, t in zip(some(3), arrivals, strict=True)]
    results = serve(tiny_ouro, batch)
    assert list(results) == ["1", "0", "2"]
    assert all((r.admitted_s or 0.0) >= r.arrival_s for r in results.values())


def test_two_engines_side_by_side_are_independent(tiny_ouro: StagedModel) -> None:
    settings = ({"mode": "cdb", "width": 2}, {"mode": "lockstep", "kv_layout": "shared"})
    alone = [serve(tiny_ouro, some(6), **changes) for changes in settings]
    engines = [Engine(tiny_ouro, EngineConfig(**changes)) for changes in settings]
    for engine in engines:
        for request in some(6):
            engine.submit(request)
    while any([engine.tick() for engine in engines]):
        pass
    for engine, known in zip(engines, alone, strict=True):
        for result in engine.run():
            assert result.tokens == known[result.id].tokens
            assert result.executed_depths == known[result.id].executed_depths


def test_sampled_text_is_independent_of_batching(tiny_ouro: StagedModel) -> None:
    batch = some(7, sampling=SamplingParams(temperature=1.5, top_p=0.95, seed=11))
    together = serve(tiny_ouro, batch, max_residents=7, width=3)
    for request in batch:
        alone = serve(tiny_ouro, [request])[request.id]
        assert alone.tokens == together[request.id].tokens


# Cancelling.


@pytest.mark.parametrize("work", ["future", "waiting", *Work])
def test_cancelling_in_any_state_frees_all_and_leaves_the_others(
    tiny_ouro: StagedModel, work: str
) -> None:
    batch = some(4)
    known = serve(tiny_ouro, batch)
    log = LaunchLog()
    config = EngineConfig(max_residents=4, coda_min_rows=4, prefill_tokens=2)
    engine = Engine(tiny_ouro, config, clock=tiny.StepClock(), observer=log)
    for request in batch:
        engine.submit(dataclasses.replace(request, arrival_s=9.0 if work == "future" else 0.0))
    ran = {"prefill": Stage.PRELUDE, "core": Stage.CORE, "coda": Stage.CODA}
    while work in ran and not any(
        r.stage is ran[work] and r.is_prefill == (work == "prefill") for r in log.records
    ):
        engine.tick()
    assert engine.cancel("2")
    assert not engine.cancel("2")
    assert not engine.cancel("nobody")
    results = {result.id: result for result in engine.run()}
    cancelled = results.pop("2")
    assert cancelled.finish_reason is FinishReason.CANCELLED
    assert cancelled.tokens == known["2"].tokens[: len(cancelled.tokens)]
    assert engine.cache.rows_in_use == 0
    assert {k: r.tokens for k, r in results.items()} == {k: known[k].tokens for k in results}
    core = sum(r.decode_rows for r in log.records if r.stage is Stage.CORE)
    assert core == sum(r.token_loops for r in (*results.values(), cancelled))


def test_a_request_that_ends_with_its_prefill_can_no_longer_be_cancelled(
    tiny_ouro: StagedModel,
) -> None:
    engine = Engine(tiny_ouro)
    engine.submit(Request("r", PROMPT, 1))
    engine.tick()
    assert not engine.cancel("r")
    assert [r.finish_reason for r in engine.run()] == [FinishReason.LENGTH]


# Modes, depths, dtypes.


def test_tables_and_pools_that_grow_in_mid_run_change_nothing() -> None:
    model = tiny.ouro(max_position_embeddings=200)
    long = Request("long", [i % 23 for i in range(90)], 40, CDF, arrival_s=20.0)
    batch = [*some(4, tokens=30), long]
    results = serve(model, batch, max_residents=5)
    for request in batch:
        alone = continue_alone(model, request, "per-loop")
        assert results[request.id].tokens == alone.tokens
        assert results[request.id].executed_depths == alone.executed


@pytest.mark.parametrize("loops", [1, 2, 4])
@pytest.mark.parametrize("layout", ["per-loop", "first-shared", "shared"])
def test_static_at_d_is_rule_none_with_d_loops_prompts_included(
    tiny_ouro: StagedModel, loops: int, layout: str
) -> None:
    batch = some(4)
    at_d = serve(tiny_ouro, batch, mode=f"static@{loops}", kv_layout=layout)
    capped = serve(tiny_ouro, batch, mode="static", max_loops=loops, kv_layout=layout)
    for request in batch:
        full = dataclasses.replace(request, exit=ExitPolicy())
        alone = continue_alone(tiny_ouro, full, layout, loops)
        for results in (at_d, capped):
            assert results[request.id].tokens == alone.tokens
            assert results[request.id].executed_depths == [loops] * len(alone.tokens)


def test_max_loops_caps_an_adaptive_run(tiny_ouro: StagedModel) -> None:
    policy = ExitPolicy("cdf", 0.9, min_loops=2, lag=1)
    batch = [dataclasses.replace(r, exit=policy) for r in some(4)]
    results = serve(tiny_ouro, batch, max_loops=3)
    for request in batch:
        alone = continue_alone(tiny_ouro, request, "per-loop", 3)
        assert results[request.id].executed_depths == alone.executed
        assert results[request.id].tokens == alone.tokens
    with pytest.raises(UsageError, match="use 1 to 3 loops"):
        serve(tiny_ouro, [dataclasses.replace(batch[0], exit=ExitPolicy(min_loops=4))], max_loops=3)


def test_a_dense_model_runs_one_loop_per_token() -> None:
    model = tiny.llama()
    batch = [dataclasses.replace(r, exit=ExitPolicy()) for r in some(5)]
    results = serve(model, batch, mode="dense:x", width=2)
    for request in batch:
        alone = continue_alone(model, request, "per-loop")
        assert results[request.id].tokens == alone.tokens
        assert set(results[request.id].executed_depths) == {1}


@pytest.mark.parametrize("build", [tiny.ouro, staged.staged])
@pytest.mark.parametrize("rule", ["cdf", "confidence"])
def test_a_bfloat16_engine_runs(build: Any, rule: str) -> None:
    batch = [dataclasses.replace(r, exit=ExitPolicy(rule, 0.5)) for r in some(4)]
    results = serve(build(torch.bfloat16), batch)
    assert all(len(r.tokens) == 6 for r in results.values())
    assert all(math.isfinite(x) for r in results.values() for x in r.logprobs)


def test_no_decode_launch_is_wider_than_the_width(tiny_ouro: StagedModel) -> None:
    log = LaunchLog()
    engine = Engine(tiny_ouro, EngineConfig(max_residents=8, width=3), observer=log)
    assert len(list(engine.run(some(9)))) == 9
    assert max(r.decode_rows for r in log.records) == 3

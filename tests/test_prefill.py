"""Prefill is exact: chunking and packing change neither first tokens, nor KV, nor what follows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cdbench.models.base import StagedModel
from cdbench.runtime.core import ExitPolicy, LaunchLog, Request, RequestResult, Stage
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.prefill import cut
from tests import staged, tiny

LAYOUTS = ("per-loop", "first-shared", "shared", "slots:3")
PROMPTS = ([5, 1, 9, 9, 2, 7, 20], [3], [4, 4, 4], [8, 0, 11])
EXIT = ExitPolicy("cdf", 0.6)
MODELS = {"ouro": tiny.ouro(), "staged": staged.staged(), "llama": tiny.llama()}


def requests(prompts: tuple[list[int], ...], tokens: int) -> list[Request]:
    return [Request(str(i), p, tokens, ExitPolicy()) for i, p in enumerate(prompts)]


def prefilled(
    model: StagedModel, prompts: tuple[list[int], ...], layout: str, chunk: int
) -> Engine:
    """An engine that has just prefilled these prompts, each in the resident of its rank."""
    config = EngineConfig(max_residents=4, kv_layout=layout, prefill_tokens=chunk)
    engine = Engine(model, config)
    for request in requests(prompts, 3):
        engine.submit(request)
    while engine.schedule.in_flight < len(prompts):
        assert engine.tick()
    return engine


def keys_and_values(engine: Engine, resident: int, length: int) -> dict[str, Tensor]:
    """What attention would read of a resident's prompt: ``[slot, position, layer, …]`` by stage."""
    read = {}
    for stage, cache in engine.cache.stages.items():
        rows = cache.table.on_device[resident, :, :length].long()
        assert (rows > 0).all()
        read[stage.value] = torch.stack([layer[rows] for layer in cache.pool.layers], dim=2)
    return read


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
def test_chunk_size_changes_no_key_value_or_first_token(name: str, layout: str, chunk: int) -> None:
    model, prompts = MODELS[name], PROMPTS[:1]
    whole, cut = (prefilled(model, prompts, layout, size) for size in (64, chunk))
    assert torch.equal(whole.runner.tokens, cut.runner.tokens)
    length = len(prompts[0])
    known, found = (keys_and_values(engine, 0, length) for engine in (whole, cut))
    for stage in known:
        torch.testing.assert_close(found[stage], known[stage], atol=1e-10, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_a_packed_prompt_equals_the_prompt_alone(name: str, layout: str) -> None:
    model = MODELS[name]
    packed = prefilled(model, PROMPTS, layout, 64)
    for resident, prompt in enumerate(PROMPTS):
        alone = prefilled(model, (prompt,), layout, 64)
        assert packed.runner.tokens[resident] == alone.runner.tokens[0]
        known = keys_and_values(alone, 0, len(prompt))
        for stage, found in keys_and_values(packed, resident, len(prompt)).items():
            torch.testing.assert_close(found, known[stage], atol=1e-10, rtol=0)


def finish(engine: Engine, batch: list[Request]) -> dict[str, RequestResult]:
    return {result.id: result for result in engine.run(batch)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["ouro", "staged"])
def test_chunk_size_changes_no_continuation(name: str, layout: str) -> None:
    batch = [Request(str(i), p, 6, EXIT) for i, p in enumerate(PROMPTS)]
    config = EngineConfig(max_residents=3, kv_layout=layout)
    known = finish(Engine(MODELS[name], config), batch)
    for chunk in (1, 2, 4, 9):
        config = EngineConfig(max_residents=3, kv_layout=layout, prefill_tokens=chunk)
        found = finish(Engine(MODELS[name], config), batch)
        for key, result in found.items():
            assert result.tokens == known[key].tokens
            assert result.executed_depths == known[key].executed_depths
            assert result.logprobs == pytest.approx(known[key].logprobs, abs=1e-9)


def test_every_loop_runs_over_all_chunks_before_the_next_begins() -> None:
    log = LaunchLog()
    engine = Engine(MODELS["staged"], EngineConfig(prefill_tokens=3), observer=log)
    finish(engine, [Request("r", PROMPTS[0], 1)])
    launches = [(r.stage, r.prefill_rows) for r in log.records]
    chunks = [3, 3, 1]
    core = [(Stage.CORE, rows) for _ in range(4) for rows in chunks]
    prelude, coda = ([(stage, rows) for rows in chunks] for stage in (Stage.PRELUDE, Stage.CODA))
    assert launches == [*prelude, *core, *coda, (Stage.CODA, 1)]


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), size=st.integers(1, 12))
def test_chunks_cover_every_prompt_in_order_and_never_exceed_their_size(
    lengths: list[int], size: int
) -> None:
    chunks = cut([(r, 0, n) for r, n in enumerate(lengths)], size)
    assert all(sum(s.length for s in chunk) == size for chunk in chunks[:-1])
    assert 1 <= sum(s.length for s in chunks[-1]) <= size
    tokens = [
        (s.resident, position)
        for chunk in chunks
        for s in chunk
        for position in range(s.start, s.start + s.length)
    ]
    assert tokens == [(r, p) for r, length in enumerate(lengths) for p in range(length)]

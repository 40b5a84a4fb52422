"""What an engine refuses, and how it keeps to its KV budget."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from cdbench.errors import UsageError
from cdbench.models.base import StagedModel
from cdbench.runtime.core import (
    ExitPolicy,
    FinishReason,
    LaunchRecord,
    Request,
    SamplingParams,
    Stage,
)
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from tests.test_engine import CDF, PROMPT, letters, serve, some


def test_a_request_that_can_never_fit_is_refused_alone(tiny_ouro: StagedModel) -> None:
    unit = Engine(tiny_ouro).cache.position_bytes
    batch = [*some(3), Request("big", PROMPT, 20, CDF), *some(5)[3:]]
    results = serve(tiny_ouro, batch, kv_budget_bytes=12 * unit)
    assert f"needs {22 * unit} bytes of KV cache, {12 * unit} are available" in (
        results["big"].error or ""
    )
    assert results["big"].finish_reason is FinishReason.ERROR
    assert results["big"].tokens == []
    assert {r.id for r in results.values() if r.error is None} == set("01234")


@pytest.mark.parametrize("mode", ["cdb", "lockstep", "static"])
def test_rows_in_use_never_exceed_the_budget(mode: str, tiny_ouro: StagedModel) -> None:
    positions = 14
    unit = Engine(tiny_ouro).cache.position_bytes
    most = 0

    class Watch:
        def launched(self, record: LaunchRecord) -> None:
            nonlocal most
            most = max(most, engine.cache.peak_bytes)

    config = EngineConfig(mode=mode, kv_budget_bytes=positions * unit + unit - 1)
    engine = Engine(tiny_ouro, config, observer=Watch())
    assert len(list(engine.run(some(9)))) == 9
    assert 0 < most < (positions + 1) * unit
    assert engine.cache.stages[Stage.CORE].pool.rows == positions * 4 + 3, "the pool never grew"


def test_the_smallest_budget_that_fits_one_request_serves_them_all(tiny_ouro: StagedModel) -> None:
    unit = Engine(tiny_ouro).cache.position_bytes
    results = serve(tiny_ouro, some(6), kv_budget_bytes=9 * unit)
    assert results == {r.id: r for r in results.values() if r.error is None}
    assert len(results) == 6


def test_a_prompt_may_be_as_long_as_positions_allow(tiny_ouro: StagedModel) -> None:
    prompt = [i % 23 for i in range(tiny_ouro.dims.max_positions)]
    request = Request("long", prompt, 1)
    assert serve(tiny_ouro, [request])["long"].finish_reason is FinishReason.LENGTH
    with pytest.raises(UsageError, match="exceed the model's 64 positions"):
        serve(tiny_ouro, [dataclasses.replace(request, max_new_tokens=2)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [1, 23]}, "token id 23 is outside the vocabulary; use 0 to 22"),
        ({"prompt": [-1]}, "token id -1 is outside"),
        ({"force": [1, 99]}, "token id 99 is outside"),
        ({"force": []}, "asks for 0 new tokens"),
        ({"max_new_tokens": 0}, "asks for 0 new tokens"),
        ({"max_new_tokens": 63}, "exceed the model's 64 positions"),
        ({"arrival_s": math.nan}, "arrives at nan s; give a finite time"),
        ({"arrival_s": math.inf}, "arrives at inf s"),
        ({"stop_strings": ("",)}, "a stop string is empty"),
        ({"sampling": SamplingParams(temperature=-1.0)}, "temperature is -1.0"),
        ({"sampling": SamplingParams(temperature=math.nan)}, "temperature is nan"),
        ({"sampling": SamplingParams(top_k=-2)}, "top_k is -2"),
        ({"sampling": SamplingParams(top_p=0.0)}, "top_p is 0.0"),
        ({"sampling": SamplingParams(top_p=1.5)}, "top_p is 1.5"),
        ({"replay_depths": [4, 2]}, "replayed depths need as many forced tokens"),
        ({"force": [1, 2], "replay_depths": [4]}, "replayed depths need as many forced"),
        ({"force": [1, 2], "replay_depths": [4, 5]}, "recorded depth 5 is out of range"),
        ({"force": [1, 2], "replay_depths": [4, 0]}, "recorded depth 0 is out of range"),
        ({"exit": ExitPolicy("trace")}, "'trace' needs recorded depths"),
        ({"exit": ExitPolicy("cdf", 2.0)}, "threshold 2.0 is out of range"),
    ],
)
def test_a_malformed_request_raises_and_says_what_to_do(
    tiny_ouro: StagedModel, changes: dict[str, Any], message: str
) -> None:
    engine = Engine(tiny_ouro, detokenize=letters)
    with pytest.raises(UsageError, match=message):
        engine.submit(dataclasses.replace(Request("bad", PROMPT, 8), **changes))
    assert engine.idle


def test_stop_strings_without_a_tokenizer_are_refused(tiny_ouro: StagedModel) -> None:
    with pytest.raises(UsageError, match="stop strings need a tokenizer; use stop ids"):
        Engine(tiny_ouro).submit(Request("r", PROMPT, 8, stop_strings=("x",)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 0}, "width is 0"),
        ({"max_residents": 0}, "max_residents is 0"),
        ({"kv_budget_bytes": 0}, "kv.budget_bytes is 0"),
        ({"max_loops": 0}, "max_loops is 0"),
        ({"kv_layout": "odd"}, "KV layout 'odd'"),
        ({"mode": "static@9"}, "static@9"),
        ({"mode": "static@auto"}, "static@auto"),
    ],
)
def test_an_impossible_configuration_is_refused(
    tiny_ouro: StagedModel, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Engine(tiny_ouro, EngineConfig(**settings))


def test_an_id_names_one_request_until_its_result_is_taken(tiny_ouro: StagedModel) -> None:
    """Two of one id would draw from one stream, and cancelling by id would find one of them."""
    engine = Engine(tiny_ouro, EngineConfig(max_residents=1))
    first, second = some(2)
    engine.submit(first)
    engine.submit(second)
    engine.tick()
    assert engine.residents.find(first.id) is not None
    for taken in (first, second):
        with pytest.raises(UsageError, match=f"^request '{taken.id}': another one of this id is"):
            engine.submit(dataclasses.replace(taken, prompt=[1]))
    assert engine.cancel(second.id)
    with pytest.raises(UsageError, match="give each an id of its own"):
        engine.submit(second)
    known = {result.id: result for result in engine.run()}
    assert len(known) == 2, "what was refused left nothing behind"
    (again,) = engine.run([dataclasses.replace(first, arrival_s=0.0)])
    assert again.tokens == known[first.id].tokens


def test_a_request_that_is_refused_takes_no_id(tiny_ouro: StagedModel) -> None:
    engine, (good, *_) = Engine(tiny_ouro), some(1)
    with pytest.raises(UsageError, match="the prompt is empty"):
        engine.submit(dataclasses.replace(good, prompt=[]))
    assert [result.id for result in engine.run([good])] == [good.id]

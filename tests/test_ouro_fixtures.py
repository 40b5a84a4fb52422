"""The runtime against outputs of the official Ouro code, case by case."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from cdbench.models.sequence import SequenceContext, loop_states
from cdbench.runtime.core import ExitPolicy, Request, RequestResult
from cdbench.runtime.engine import Engine, EngineConfig
from cdbench.runtime.stage_cache import StageCache
from tests.tiny import FIXTURE, StepClock, fixture_model

EXPECTED = json.loads((FIXTURE / "expected.json").read_text())
LAYOUTS = ("per-loop", "first-shared", "shared")
LOGPROB_TOLERANCE = 2e-3


def cases_of(layout: str) -> dict[str, dict[str, Any]]:
    return {str(i): c for i, c in enumerate(EXPECTED["cases"]) if c["kv"] == layout}


def request_of(name: str, case: dict[str, Any], arrival_s: float = 0.0) -> Request:
    threshold = None if case["rule"] == "none" else case["threshold"]
    return Request(
        id=name,
        prompt=EXPECTED["prompts"][case["prompt"]],
        max_new_tokens=len(case["tokens"]),
        exit=ExitPolicy(case["rule"], threshold, case["min_loops"], case["exit_lag"]),
        force=case["tokens"] if case["forced"] else None,
        arrival_s=arrival_s,
    )


def serve(
    dtype: torch.dtype, mode: str, layout: str, width: int, cap: int
) -> dict[str, RequestResult]:
    """All cases of a layout, rules and lags mixed, in one engine, arriving in shuffled order."""
    cases = list(cases_of(layout).items())
    random.Random(width).shuffle(cases)
    config = EngineConfig(mode=mode, max_residents=cap, width=width, kv_layout=layout)
    engine = Engine(fixture_model(dtype), config, clock=StepClock())
    requests = [request_of(name, case, 5.0 * i) for i, (name, case) in enumerate(cases)]
    results = {result.id: result for result in engine.run(requests)}
    assert engine.cache.rows_in_use == 0
    assert engine.idle
    return results


@pytest.mark.parametrize(("width", "cap"), [(1, 4), (3, 7), (128, 128)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["cdb", "lockstep"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_every_case_is_exact(
    dtype: torch.dtype, mode: str, layout: str, width: int, cap: int
) -> None:
    results = serve(dtype, mode, layout, width, cap)
    cases = cases_of(layout)
    assert results.keys() == cases.keys()
    for name, case in cases.items():
        result = results[name]
        assert result.tokens == case["tokens"], name
        assert result.executed_depths == case["depths"], name
        assert result.logprobs == pytest.approx(case["logprobs"], abs=LOGPROB_TOLERANCE), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("prompt", range(len(EXPECTED["prompts"])))
def test_static_logits_and_gates_at_every_loop(prompt: int, dtype: torch.dtype) -> None:
    known: dict[str, Tensor] = load_file(FIXTURE / "expected.safetensors")
    model = fixture_model(dtype)
    ids = torch.tensor([EXPECTED["prompts"][prompt]])
    ctx = SequenceContext(1, ids.shape[1], ids.device)
    for loop, state in enumerate(loop_states(model, ids)):
        logits = model.head(model.coda(state, ctx))
        torch.testing.assert_close(
            logits.float(), known[f"logits.{prompt}"][loop].float(), atol=5e-4, rtol=0
        )
        torch.testing.assert_close(
            model.exit_logit(state).float(),
            known[f"gate_logits.{prompt}"][loop].float(),
            atol=5e-4,
            rtol=0,
        )


@pytest.mark.parametrize("layout", ["per-loop", "first-shared"])
def test_reading_the_previous_loops_slot_is_caught(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a table that reads loop k - 1 must not pass for the right one."""
    right = StageCache.lines

    def wrong(self: StageCache, residents: Tensor, slots: Tensor, context: int) -> Tensor:
        return right(self, residents, (slots - 1).clamp(min=0), context)

    monkeypatch.setattr(StageCache, "lines", wrong)
    results = serve(torch.float64, "cdb", layout, 128, 128)
    wrong_cases = [
        n
        for n, c in cases_of(layout).items()
        if results[n].logprobs != pytest.approx(c["logprobs"], abs=LOGPROB_TOLERANCE)
    ]
    assert len(wrong_cases) > len(results) / 2

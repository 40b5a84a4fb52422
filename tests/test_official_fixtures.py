"""The runtime against outputs of the official Ouro and Huginn code, case by case.

All cases of a layout are served by one engine, rules and lags and floors mixed: once with all the
memory they want, and once with everything that could disturb them at a time. There the pool is so
small that requests are moved to host memory in the middle of tokens, the host budget is finite,
prompts are chunked, their common prefixes are cached, and other requests come and are cancelled.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from cdbench.models.base import StagedModel
from cdbench.models.sequence import SequenceContext, loop_states
from cdbench.runtime.cache_shape import CacheShape
from cdbench.runtime.carried import Carried
from cdbench.runtime.core import ExitPolicy, Request, RequestResult, Stage
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.prefix_cache import Prefix, PrefixCache, StageLines
from cdbench.runtime.residents import Residents, SavedResident
from cdbench.runtime.stage_cache import StageCache
from tests import tiny
from tests.pressure import check_drained, check_engine

LAYOUTS = ("per-loop", "first-shared", "shared")
MODES = ("cdb", "lockstep")
LOGPROB_TOLERANCE = 2e-3
LOGIT_TOLERANCE = 5e-4
LATER = 14
"""How many requests' later tokens a tight budget holds."""
Case = dict[str, Any]
Results = dict[str, RequestResult]


@dataclass(frozen=True)
class Official:
    """One fixture: a checkpoint, and what the official code made of it."""

    directory: Path
    load: Callable[[torch.dtype], StagedModel]
    case_count: int

    @functools.cached_property
    def expected(self) -> dict[str, Any]:
        return json.loads((self.directory / "expected.json").read_text())

    def cases(self, layout: str) -> dict[str, Case]:
        """By name, the cases recorded under one layout."""
        return {str(i): c for i, c in enumerate(self.expected["cases"]) if c["kv"] == layout}

    def request(self, name: str, case: Case, arrival_s: float = 0.0) -> Request:
        threshold = None if case["rule"] == "none" else case["threshold"]
        return Request(
            id=name,
            prompt=self.expected["prompts"][case["prompt"]],
            max_new_tokens=len(case["tokens"]),
            exit=ExitPolicy(case["rule"], threshold, case["min_loops"], case["exit_lag"]),
            force=case["tokens"] if case["forced"] else None,
            arrival_s=arrival_s,
        )

    def requests(self, layout: str, gap_s: float = 0.0) -> list[Request]:
        """All cases of a layout in shuffled order, arriving one after the other."""
        cases = list(self.cases(layout).items())
        random.Random(len(cases)).shuffle(cases)
        return [self.request(name, case, gap_s * i) for i, (name, case) in enumerate(cases)]


OFFICIAL = {
    "ouro": Official(tiny.FIXTURE, tiny.fixture_model, 209),
    "huginn": Official(tiny.HUGINN_FIXTURE, tiny.huginn_fixture, 460),
}
DTYPES = {"float64": torch.float64, "float32": torch.float32}


def wrong_cases(official: Official, layout: str, results: Results) -> list[str]:
    """The cases whose tokens, depths or logprobs are not the official ones."""

    def differs(case: Case, result: RequestResult) -> bool:
        return (
            result.tokens != case["tokens"]
            or result.executed_depths != case["depths"]
            or result.logprobs != pytest.approx(case["logprobs"], abs=LOGPROB_TOLERANCE)
        )

    cases = official.cases(layout)
    return [name for name, case in cases.items() if differs(case, results[name])]


def test_every_case_of_both_fixtures_is_served_under_some_layout() -> None:
    for official in OFFICIAL.values():
        served = [name for layout in LAYOUTS for name in official.cases(layout)]
        assert len(served) == len(official.expected["cases"]) == official.case_count


# With all the memory they want.


def roomy(name: str, dtype: str, mode: str, layout: str, width: int, cap: int) -> Results:
    """All cases of a layout, arriving in shuffled order."""
    official = OFFICIAL[name]
    config = EngineConfig(mode=mode, max_residents=cap, width=width, kv_layout=layout)
    engine = Engine(official.load(DTYPES[dtype]), config, clock=tiny.StepClock())
    requests = official.requests(layout, gap_s=5.0)
    results = {result.id: result for result in engine.run(requests)}
    check_drained(engine)
    return results


# Narrow launches are many: there each layout and width has one mode and dtype, taken in turn.
ROOMY = [
    (mode, dtype, layout, 128, 128) for mode in MODES for dtype in DTYPES for layout in LAYOUTS
]
ROOMY += [
    (MODES[(i + j) % 2], list(DTYPES)[i % 2], layout, width, cap)
    for i, layout in enumerate(LAYOUTS)
    for j, (width, cap) in enumerate([(1, 4), (3, 7)])
]


@pytest.mark.parametrize(("mode", "dtype", "layout", "width", "cap"), ROOMY)
def test_every_case_of_ouro_is_exact(
    mode: str, dtype: str, layout: str, width: int, cap: int
) -> None:
    results = roomy("ouro", dtype, mode, layout, width, cap)
    assert wrong_cases(OFFICIAL["ouro"], layout, results) == []


@pytest.mark.parametrize(
    ("mode", "dtype", "layout"),
    [
        ("cdb", "float64", "per-loop"),
        ("lockstep", "float64", "first-shared"),
        ("lockstep", "float32", "shared"),
    ],
)
def test_every_case_of_huginn_is_exact(mode: str, dtype: str, layout: str) -> None:
    results = roomy("huginn", dtype, mode, layout, 128, 128)
    assert wrong_cases(OFFICIAL["huginn"], layout, results) == []


# With everything that could disturb them.


def others(official: Official, layout: str, count: int, rng: random.Random) -> list[Request]:
    """Requests beside the cases: of the same prompts, beginnings of them, or with other ends."""
    cases = list(official.cases(layout).values())
    made = []
    for i in range(count):
        like = official.request(f"other {i}", rng.choice(cases))
        prompt = [*like.prompt[: rng.randint(1, len(like.prompt))], *rng.sample(range(97), 2)]
        made.append(replace(like, prompt=prompt[: rng.randint(1, 23)], force=None))
    return made


def tight_budget(shape: CacheShape, max_loops: int, requests: list[Request]) -> int:
    """Room for each prompt once at all loops, and for the later tokens of a few requests."""
    prompts = {tuple(request.prompt) for request in requests}
    rows = max_loops * sum(map(len, prompts)) + LATER * shape.slots * requests[0].new_tokens
    return shape.budget_for(-(-rows // shape.slots))


@dataclass
class Pressed:
    engine: Engine
    results: Results
    cancelled: int


def pressed(
    name: str, dtype: str, mode: str, layout: str, chunk: int, check: bool = True
) -> Pressed:
    """All cases of a layout where memory is short, prompts shared, and others are cancelled."""
    official, rng = OFFICIAL[name], random.Random(f"{name} {layout} {chunk}")
    model = official.load(DTYPES[dtype])
    cases, beside = official.requests(layout), others(official, layout, 12, rng)
    shape = Engine(model, EngineConfig(kv_layout=layout)).cache.shape
    budget = tight_budget(shape, model.dims.max_loops, cases)
    config = EngineConfig(
        mode=mode,
        max_residents=48,
        width=24,
        kv_layout=layout,
        kv_budget_bytes=budget,
        kv_host_bytes=3 * budget,
        prefix_cache=True,
        prefill_tokens=chunk,
        coda_min_rows=rng.randint(1, 12),
    )
    engine = Engine(model, config, clock=tiny.StepClock())
    for request in rng.sample([*cases, *beside], len(cases) + len(beside)):
        engine.submit(request)
    left, cancelled, ticks = [request.id for request in beside], 0, 0
    while engine.tick():
        ticks += 1
        if left and rng.random() < 0.03:
            cancelled += engine.cancel(left.pop())
        if check and ticks % 50 == 0:
            check_engine(engine)
    results = {result.id: result for result in engine.run()}
    if check:
        check_drained(engine)
    return Pressed(engine, results, cancelled)


# Both fixtures, in both dtypes, under every layout; modes and chunk sizes take turns. Ouro, whose
# cases are quickly run, meets every chunk size under every layout.
CHUNKS = (8, 3, 1)
VARIANTS = [
    (name, dtype, MODES[(i + j + k) % 2], layout, CHUNKS[(i + k) % 3])
    for i, layout in enumerate(LAYOUTS)
    for j, name in enumerate(OFFICIAL)
    for k, dtype in enumerate(DTYPES)
]
VARIANTS += [
    ("ouro", "float64", MODES[(i + 1) % 2], layout, CHUNKS[(i + 2) % 3])
    for i, layout in enumerate(LAYOUTS)
]


@pytest.mark.parametrize(("name", "dtype", "mode", "layout", "chunk"), VARIANTS)
def test_every_case_is_exact_whatever_disturbs_it(
    name: str, dtype: str, mode: str, layout: str, chunk: int
) -> None:
    served = pressed(name, dtype, mode, layout, chunk)
    assert wrong_cases(OFFICIAL[name], layout, served.results) == []
    counters, cache = served.engine.memory.counters, served.engine.cache
    assert counters.preemptions > 0
    # Ouro has no rows but the core's, and under one slot a token takes its only row at loop 1.
    if (name, mode, layout) != ("ouro", "lockstep", "shared"):
        assert counters.mid_token > 0, "nothing was moved in the middle of a token"
    assert 0 < counters.peak_host_bytes <= (served.engine.config.kv_host_bytes or 0)
    assert cache.prefix_tokens > 0, "no prefix was reused"
    assert served.cancelled > 0, "nothing was cancelled beside"


# The whole prompt at every loop.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prompt", range(3))
@pytest.mark.parametrize("name", OFFICIAL)
def test_static_logits_and_gates_at_every_loop(name: str, prompt: int, dtype: str) -> None:
    official = OFFICIAL[name]
    known: dict[str, Tensor] = load_file(official.directory / "expected.safetensors")
    model = official.load(DTYPES[dtype])
    ids = torch.tensor([official.expected["prompts"][prompt]])
    ctx = SequenceContext(1, ids.shape[1], ids.device)
    states = list(loop_states(model, ids))
    assert len(states) == official.expected["max_loops"] == len(known[f"logits.{prompt}"])
    for loop, state in enumerate(states):
        found = {"logits": model.head(model.coda(state, ctx))}
        if model.dims.has_exit_gate:
            found["gate_logits"] = model.exit_logit(state)
        for what, values in found.items():
            expected = known[f"{what}.{prompt}"][loop].float()
            torch.testing.assert_close(values.float(), expected, atol=LOGIT_TOLERANCE, rtol=0)


# Negative controls: each of these faults must be seen.


@pytest.mark.parametrize(
    ("name", "layout"), [("ouro", "per-loop"), ("ouro", "first-shared"), ("huginn", "per-loop")]
)
def test_reading_the_previous_loops_slot_is_caught(
    name: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = StageCache.lines

    def wrong(self: StageCache, residents: Tensor, slots: Tensor, context: int) -> Tensor:
        return right(self, residents, (slots - 1).clamp(min=0), context)

    monkeypatch.setattr(StageCache, "lines", wrong)
    results = roomy(name, "float64", "cdb", layout, 128, 128)
    assert len(wrong_cases(OFFICIAL[name], layout, results)) > len(results) / 2


def test_losing_a_preempted_requests_rule_memory_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = Residents.restore

    def wrong(self: Residents, saved: SavedResident) -> int:
        memory = None if saved.memory is None else torch.zeros_like(saved.memory)
        return right(self, replace(saved, memory=memory))

    monkeypatch.setattr(Residents, "restore", wrong)
    served = pressed("ouro", "float64", "cdb", "per-loop", 8, check=False)
    found = wrong_cases(OFFICIAL["ouro"], "per-loop", served.results)
    cases = OFFICIAL["ouro"].cases("per-loop")
    assert len(found) > 3
    assert all(cases[name]["rule"] == "cdf" for name in found), "rule none remembers nothing"


def test_losing_a_preempted_requests_state_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Carried, "restore", lambda self, resident, saved: None)
    served = pressed("ouro", "float64", "cdb", "per-loop", 8, check=False)
    assert len(wrong_cases(OFFICIAL["ouro"], "per-loop", served.results)) > 3


def test_restoring_rows_in_another_order_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = StageCache.restore

    def wrong(self: StageCache, resident: int, saved: Any) -> None:
        right(self, resident, replace(saved, contents=saved.contents.flip(1)))

    monkeypatch.setattr(StageCache, "restore", wrong)
    served = pressed("ouro", "float64", "cdb", "per-loop", 8, check=False)
    assert len(wrong_cases(OFFICIAL["ouro"], "per-loop", served.results)) > 3


@pytest.mark.parametrize("layout", ["per-loop", "shared"])
def test_reading_a_cached_prefix_at_the_wrong_loop_is_caught(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = PrefixCache.lines

    def wrong(self: PrefixCache, node: Prefix) -> StageLines:
        lines = right(self, node)
        return {**lines, Stage.CORE: np.roll(lines[Stage.CORE], 1, axis=0)}

    monkeypatch.setattr(PrefixCache, "lines", wrong)
    served = pressed("ouro", "float64", "cdb", layout, 8, check=False)
    assert len(wrong_cases(OFFICIAL["ouro"], layout, served.results)) > len(served.results) / 4

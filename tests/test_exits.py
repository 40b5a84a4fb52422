"""Exit rules against their formulas, and the table of lag and floor worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cdbench.errors import UsageError
from cdbench.models.base import ModelDims, StagedModel
from cdbench.runtime.core import ExitPolicy, Request
from cdbench.runtime.engine import Engine
from cdbench.runtime.exits import RULES, ExitRule, check_policy
from cdbench.runtime.residents import Residents
from cdbench.runtime.runner import signal_dtype
from tests import tiny
from tests.staged import DIMS as STAGED_DIMS

LOOPS = 4
CDF = RULES["cdf"]
DIMS = STAGED_DIMS


def memory_of(rule: ExitRule, rows: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return rule.memory_start(DIMS).to(dtype).repeat(rows, 1)


def meets(rule: ExitRule, signal: float, threshold: float) -> bool:
    one = torch.tensor([signal], dtype=torch.float64)
    return bool(rule.met(one, torch.tensor([threshold], dtype=torch.float64)))


@given(st.lists(st.floats(-8, 8), min_size=1, max_size=8))
def test_cdf_is_the_sum_of_exit_probabilities(logits: list[float]) -> None:
    memory = memory_of(CDF)
    gates = [1 / (1 + math.exp(-x)) for x in logits]
    for loop, logit in enumerate(logits, start=1):
        signal = CDF.signal((torch.tensor([logit], dtype=torch.float64),), memory)
        known = sum(gates[j] * math.prod(1 - g for g in gates[:j]) for j in range(loop))
        assert float(signal) == pytest.approx(known, abs=1e-12)


def test_what_a_rule_remembers_starts_afresh_with_every_token() -> None:
    residents = Residents(3, LOOPS, DIMS, torch.device("cpu"), torch.float64)
    for name in "ab":
        residents.admit(Request(name, [1], exit=ExitPolicy("cdf", 0.5)), 0.0)
    (memory,) = residents.memories.values()
    memory.fill_(0.25)
    residents.forget(torch.tensor([1]))
    assert memory[0].tolist() == [0.25, 0.25]
    assert memory[1].tolist() == CDF.memory_start(DIMS).tolist()


@pytest.mark.parametrize("name", ["cdf", "confidence", "margin"])
def test_thresholds_are_inclusive_and_nan_never_exits(name: str) -> None:
    rule = RULES[name]
    assert meets(rule, 0.5, 0.5)
    assert not meets(rule, math.nextafter(0.5, 0.0), 0.5)
    assert not meets(rule, math.nan, 0.0)


def test_a_nan_gate_never_exits_even_after_a_later_good_one() -> None:
    memory = memory_of(CDF)
    for logit in (math.nan, 9.0):
        signal = CDF.signal((torch.tensor([logit], dtype=torch.float64),), memory)
        assert not CDF.met(signal, torch.zeros(1, dtype=torch.float64))


def test_nan_logits_never_exit() -> None:
    logits = torch.tensor([[0.0, math.nan, 1.0]])
    for name in ("confidence", "margin"):
        signal = RULES[name].signal((logits,), torch.zeros(1, 0))
        assert not RULES[name].met(signal.double(), torch.zeros(1, dtype=torch.float64))


def test_a_bfloat16_model_does_not_round_its_cdf_to_one() -> None:
    model = tiny.ouro(torch.bfloat16)
    assert signal_dtype(model) is torch.float32
    assert model.exit_logit(torch.ones(2, 16, dtype=torch.bfloat16)).dtype is torch.float32
    logit = torch.tensor([6.5])
    assert float(logit.bfloat16().sigmoid()) == 1.0, "bfloat16 alone would round early"
    signal = CDF.signal((logit,), memory_of(CDF, dtype=torch.float32))
    assert not CDF.met(signal.double(), torch.tensor([0.9999], dtype=torch.float64))


@given(st.lists(st.floats(-6, 6), min_size=2, max_size=9))
def test_confidence_and_margin_are_the_best_probability_and_its_lead(logits: list[float]) -> None:
    row = torch.tensor([logits], dtype=torch.float64)
    weights = np.exp(np.array(logits) - max(logits))
    best, second = np.sort(weights / weights.sum())[:-3:-1]
    nothing = torch.zeros(1, 0)
    assert float(RULES["confidence"].signal((row,), nothing)) == pytest.approx(best)
    assert float(RULES["margin"].signal((row,), nothing)) == pytest.approx(best - second)


def test_readouts_are_computed_in_float32_or_better() -> None:
    for name in ("confidence", "margin"):
        for dtype, kept in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
            signal = RULES[name].signal((torch.zeros(1, 5, dtype=dtype),), torch.zeros(1, 0))
            assert signal.dtype is kept


def depths(met: str, lag: int, floor: int, replay: int | None = None) -> tuple[int, int]:
    """Executed and requested depth of one token whose test comes out as ``met``, loop by loop."""
    residents = Residents(1, LOOPS, DIMS, torch.device("cpu"), torch.float64)
    forced = [1, 1] if replay else None
    replayed = [LOOPS, replay] if replay else None
    policy = ExitPolicy("cdf", 0.5, min_loops=floor, lag=lag)
    residents.admit(Request("r", [1], exit=policy, force=forced, replay_depths=replayed), 0.0)
    residents.outputs.count[0] = 1
    rows = np.array([0])
    residents.start_token(rows)
    for loop, answer in enumerate(met, start=1):
        residents.loop[0] = loop
        if residents.decide(rows, np.array([answer == "y"]))[0]:
            break
    return int(residents.loop[0]), int(residents.requested_depths(rows)[0])


@pytest.mark.parametrize(
    ("met", "lag", "floor", "executed", "requested"),
    [
        # Lag 0: the first loop at or above the floor whose test is met.
        ("nyyy", 0, 1, 2, 2),
        ("yyyy", 0, 1, 1, 1),
        ("yyyy", 0, 3, 3, 3),
        ("ynny", 0, 2, 4, 4),
        ("nnnn", 0, 1, 4, 4),
        ("yyyy", 0, 4, 4, 4),
        # Lag 1: one loop later, never beyond the last.
        ("nyyy", 1, 1, 3, 2),
        ("ynnn", 1, 1, 2, 1),
        ("nnyy", 1, 1, 4, 3),
        ("nnny", 1, 1, 4, 4),
        ("nnnn", 1, 1, 4, 4),
        # Lag 1 and a floor: the decision may be taken one loop below the floor.
        ("yyyy", 1, 2, 2, 2),
        ("yyyy", 1, 3, 3, 3),
        ("nnyy", 1, 3, 4, 3),
        ("yyyy", 1, 4, 4, 4),
        # The rule, met below the floor only: at lag 0 it is not seen to be met again.
        ("nynn", 1, 3, 3, 3),
        ("ynnn", 1, 3, 4, 4),
    ],
)
def test_lag_and_floor_by_hand(
    met: str, lag: int, floor: int, executed: int, requested: int
) -> None:
    assert depths(met, lag, floor) == (executed, requested)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(("met", "replay", "requested"), [("ynnn", 3, 1), ("nnnn", 2, 2)])
def test_a_replayed_token_leaves_as_recorded_and_still_says_what_it_asked_for(
    met: str, replay: int, requested: int, lag: int
) -> None:
    assert depths(met, lag, 1, replay) == (replay, requested)


@pytest.mark.parametrize("lag", [0, 1])
def test_lag_adds_nothing_to_a_fixed_depth_and_the_floor_raises_it(
    tiny_ouro: StagedModel, lag: int
) -> None:
    for depth, floor, executed in ((2, 1, 2), (2, 3, 3), (4, 1, 4)):
        policy = ExitPolicy("fixed", depth=depth, min_loops=floor, lag=lag)
        (result,) = Engine(tiny_ouro).run([Request("r", [1, 2], 4, policy)])
        assert result.executed_depths == [LOOPS, executed, executed, executed]
        assert result.requested_depths == result.executed_depths


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (ExitPolicy("cdff", 0.5), "did you mean 'cdf'"),
        (ExitPolicy("zzz"), "known: none, fixed"),
        (ExitPolicy("cdf", None), "threshold None is out of range; use 0 to 1"),
        (ExitPolicy("cdf", 1.5), "threshold 1.5 is out of range"),
        (ExitPolicy("cdf", math.nan), "threshold nan is out of range"),
        (ExitPolicy("none", 0.5), "takes no threshold"),
        (ExitPolicy("cdf", 0.5, lag=2), "exit lag 2: not available; use 0 or 1"),
        (ExitPolicy("cdf", 0.5, min_loops=0), "min_loops 0: out of range; use 1 to 4"),
        (ExitPolicy("cdf", 0.5, min_loops=5), "min_loops 5: out of range"),
        (ExitPolicy("fixed"), "use a depth of 1 to 4 loops"),
        (ExitPolicy("fixed", depth=5), "use a depth of 1 to 4 loops"),
    ],
)
def test_an_impossible_policy_is_refused_with_what_to_do(
    tiny_ouro: StagedModel, policy: ExitPolicy, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_policy(policy, tiny_ouro.dims, LOOPS)


def test_a_gate_rule_on_a_model_without_a_gate_names_the_rules_it_can_have() -> None:
    dims: ModelDims = tiny.llama().dims
    with pytest.raises(UsageError, match=r"needs an exit gate.*none, fixed, trace, latent-diff, cosine"):
        check_policy(ExitPolicy("cdf", 0.5), dims, 1)

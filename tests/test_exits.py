"""Exit rules against their formulas, and the table of lag and floor worked out by hand."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from cdbench.errors import UsageError
from cdbench.models.base import ModelDims, StagedModel
from cdbench.runtime.core import ExitPolicy, Request
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.exit_checks import check_policy
from cdbench.runtime.exit_rule import ExitRule, Needs
from cdbench.runtime.exits import RULES, suits
from cdbench.runtime.residents import Residents
from cdbench.runtime.rule_memory import RULE_INDEX, signal_dtype
from tests import tiny
from tests.reference import ReferenceContext, ReferenceModel
from tests.staged import DIMS as STAGED_DIMS
from tests.test_universal_model import weights_of

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
    (memory,) = residents.memories.by_rule.values()
    memory.fill_(0.25)
    residents.memories.forget(torch.tensor([1]))
    assert memory[0].tolist() == [0.25, 0.25]
    assert memory[1].tolist() == CDF.memory_start(DIMS).tolist()


def test_what_a_rule_remembers_is_made_once_and_not_with_every_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy to a GPU at each admission would wait for all that the device has to do."""
    residents = Residents(3, LOOPS, DIMS, torch.device("cpu"), torch.float64)
    residents.admit(Request("a", [1], exit=ExitPolicy("cdf", 0.5)), 0.0)
    held = dict(residents.memories.by_rule)
    assert list(held) == [RULE_INDEX["cdf"]]
    monkeypatch.setattr(Tensor, "to", lambda *_: pytest.fail("something was copied"))
    for rule in ("cdf", "none"):
        residents.memories.hold(RULE_INDEX[rule])
    assert list(residents.memories.by_rule) == list(held)
    assert residents.memories.by_rule[RULE_INDEX["cdf"]] is held[RULE_INDEX["cdf"]]


# Every formula in plain Python, loop by loop.

Row = list[float]
VOCAB = 5
SMALL = dataclasses.replace(STAGED_DIMS, vocab_size=VOCAB)
rows = st.lists(st.lists(st.floats(-6, 6), min_size=VOCAB, max_size=VOCAB), min_size=1, max_size=6)


def softmax(logits: Row) -> Row:
    weights = [math.exp(x - max(logits)) for x in logits]
    return [w / sum(weights) for w in weights]


def norm(vector: Row) -> float:
    return math.sqrt(sum(x * x for x in vector))


def entropy(probs: Row) -> float:
    return -sum(p * math.log(p + 1e-10) for p in probs)


def divergence(before: Row, now: Row) -> float:
    return sum(p * (math.log(p) - math.log(q)) for p, q in zip(before, now, strict=True))


def cut(probs: Row) -> Row:
    """minp: what is below a tenth of the largest counts as 1 / V."""
    assume(all(abs(p - 0.1 * max(probs)) > 1e-9 for p in probs))
    kept = [p if p >= 0.1 * max(probs) else 1 / VOCAB for p in probs]
    return [p / sum(kept) for p in kept]


def repeats(readouts: list[Row]) -> int:
    """How often in a row, up to the last readout, the likeliest token was the one before."""
    best = [row.index(max(row)) for row in readouts]
    count = 0
    while count + 1 < len(best) and best[-count - 1] == best[-count - 2]:
        count += 1
    return count


UNIFORM = [1 / VOCAB] * VOCAB
BY_HAND: dict[str, Callable[[list[Row]], float]] = {
    "entropy-diff": lambda seen: abs(
        entropy(softmax(seen[-1])) - (entropy(softmax(seen[-2])) if len(seen) > 1 else 100.0)
    ),
    "kl": lambda seen: divergence(
        softmax(seen[-2]) if len(seen) > 1 else UNIFORM, softmax(seen[-1])
    ),
    "minp-kl": lambda seen: divergence(
        cut(softmax(seen[-2])) if len(seen) > 1 else UNIFORM, cut(softmax(seen[-1]))
    ),
    "argmax-stability": repeats,
    "confidence": lambda seen: max(softmax(seen[-1])),
    "margin": lambda seen: sorted(softmax(seen[-1]))[-1] - sorted(softmax(seen[-1]))[-2],
}
"""Signals of the rules that read logits, from the readouts of loops 1 … k."""


@pytest.mark.parametrize("name", BY_HAND)
@given(readouts=rows)
def test_a_readout_rules_signal_is_its_formula_at_every_loop(
    name: str, readouts: list[Row]
) -> None:
    assume(all(row.count(max(row)) == 1 for row in readouts))
    rule = RULES[name]
    memory = rule.memory_start(SMALL).double().repeat(2, 1)
    for loop in range(1, len(readouts) + 1):
        beside = [1.0, 5.0, 0.0, 2.0, float(loop)]
        logits = torch.tensor([readouts[loop - 1], beside], dtype=torch.float64)
        signal = rule.signal((logits,), memory)
        assert float(signal[0]) == pytest.approx(BY_HAND[name](readouts[:loop]), abs=1e-9)


@given(states=rows)
def test_state_rules_compare_a_state_with_the_one_before(states: list[Row]) -> None:
    nothing = torch.empty(1, 0)
    for before, now in itertools.pairwise([[0.0] * VOCAB, *states]):
        evidence = tuple(torch.tensor([x], dtype=torch.float64) for x in (now, before))
        assume(norm(now) > 1e-3)
        change = norm([x - y for x, y in zip(now, before, strict=True)])
        relative = RULES["latent-diff"].signal(evidence, nothing)
        assert float(relative) == pytest.approx(change / norm(now), abs=1e-9)
        assume(norm(before) == 0 or norm(before) > 1e-3)
        product = sum(x * y for x, y in zip(now, before, strict=True))
        cosine = product / (norm(now) * norm(before)) if norm(before) else 0.0
        turned = RULES["cosine"].signal(evidence, nothing)
        assert float(turned) == pytest.approx(1 - cosine, abs=1e-9)


def test_act_is_the_halting_mass_the_model_has_gathered() -> None:
    mass = torch.tensor([0.3, 1.7], dtype=torch.float64)
    assert RULES["act"].signal((mass,), torch.empty(2, 0)).tolist() == [0.3, 1.7]


def test_a_state_of_zeros_never_exits_by_its_change() -> None:
    zeros = torch.zeros(1, 4, dtype=torch.float64)
    for name in ("latent-diff", "cosine"):
        signal = RULES[name].signal((zeros, zeros), torch.empty(1, 0))
        assert not meets(RULES[name], float(signal), 0.5)


def test_before_loop_one_nothing_has_repeated_and_no_readout_is_like_the_start() -> None:
    """The first loop's signals: far from falling, and no repeat, whatever the likeliest token."""
    for best in range(VOCAB):
        logits = torch.zeros(1, VOCAB, dtype=torch.float64)
        logits[0, best] = 3.0
        first = {
            name: float(
                RULES[name].signal((logits,), RULES[name].memory_start(SMALL).double()[None])
            )
            for name in ("entropy-diff", "kl", "minp-kl", "argmax-stability")
        }
        assert first["argmax-stability"] == 0
        assert first["entropy-diff"] > 90
        assert first["kl"] > 0.1
        assert first["minp-kl"] > 0.1


# Strict or inclusive, NaN, precision.

FALLING = ("latent-diff", "cosine", "entropy-diff", "kl", "minp-kl")
RISING = ("cdf", "act", "confidence", "margin", "argmax-stability")
SIGNALLED = (*FALLING, *RISING)


def test_every_rule_with_a_signal_falls_or_rises() -> None:
    assert set(SIGNALLED) == {name for name, rule in RULES.items() if rule.threshold_range}


@pytest.mark.parametrize("name", RISING)
def test_rising_signals_exit_at_the_threshold(name: str) -> None:
    rule = RULES[name]
    assert meets(rule, 0.5, 0.5)
    assert meets(rule, 0.0, 0.0)
    assert not meets(rule, math.nextafter(0.5, 0.0), 0.5)


@pytest.mark.parametrize("name", FALLING)
def test_falling_signals_exit_below_the_threshold_and_not_at_it(name: str) -> None:
    rule = RULES[name]
    assert meets(rule, math.nextafter(0.5, 0.0), 0.5)
    assert not meets(rule, 0.5, 0.5)
    assert not meets(rule, 0.0, 0.0), "threshold 0 never exits"


@pytest.mark.parametrize("name", SIGNALLED)
def test_a_nan_signal_never_exits(name: str) -> None:
    allowed = RULES[name].threshold_range
    assert allowed is not None
    for threshold in (allowed.low, allowed.high):
        assert not meets(RULES[name], math.nan, threshold)


def evidence_of(name: str, values: Tensor) -> tuple[Tensor, ...]:
    """What a rule is shown where the model's numbers are ``values`` ``[T, V]``."""
    needs = RULES[name].needs
    if needs is Needs.STATES:
        return values, values.flip(-1)
    return (values,) if needs is Needs.LOGITS else (values[:, 0],)


@pytest.mark.parametrize("name", SIGNALLED)
@pytest.mark.parametrize("place", range(VOCAB))
def test_one_nan_among_the_numbers_makes_a_nan_signal(name: str, place: int) -> None:
    values = torch.tensor([[1.0, 4.0, 0.0, 2.0, 3.0]], dtype=torch.float64)
    where = place if RULES[name].needs in (Needs.STATES, Needs.LOGITS) else 0
    values[0, where] = math.nan
    memory = RULES[name].memory_start(SMALL).double()[None]
    for _ in range(3):
        assert RULES[name].signal(evidence_of(name, values), memory).isnan().all()


@pytest.mark.parametrize("name", SIGNALLED)
def test_signals_are_computed_in_float32_or_better(name: str) -> None:
    """A bfloat16 model's signals are those of the same numbers in float32, to the last bit."""
    torch.manual_seed(0)
    rule, loops = RULES[name], [torch.randn(3, VOCAB).bfloat16() for _ in range(4)]
    low, single = (rule.memory_start(SMALL).float().repeat(3, 1) for _ in range(2))
    # Gates and halting masses come from the model in float32 or better.
    shown = torch.bfloat16 if rule.needs in (Needs.STATES, Needs.LOGITS) else torch.float32
    for values in loops:
        signal = rule.signal(evidence_of(name, values.to(shown)), low)
        assert signal.dtype is torch.float32
        assert torch.equal(signal, rule.signal(evidence_of(name, values.float()), single))
    double = RULES[name].memory_start(SMALL).double().repeat(3, 1)
    signal = RULES[name].signal(evidence_of(name, loops[0].double()), double)
    assert signal.dtype is torch.float64


def test_a_nan_gate_never_exits_even_after_a_later_good_one() -> None:
    memory = memory_of(CDF)
    for logit in (math.nan, 9.0):
        signal = CDF.signal((torch.tensor([logit], dtype=torch.float64),), memory)
        assert not CDF.met(signal, torch.zeros(1, dtype=torch.float64))


def test_a_bfloat16_model_does_not_round_its_cdf_to_one() -> None:
    model = tiny.ouro(torch.bfloat16)
    assert signal_dtype(model) is torch.float32
    assert model.exit_logit(torch.ones(2, 16, dtype=torch.bfloat16)).dtype is torch.float32
    logit = torch.tensor([6.5])
    assert float(logit.bfloat16().sigmoid()) == 1.0, "bfloat16 alone would round early"
    signal = CDF.signal((logit,), memory_of(CDF, dtype=torch.float32))
    assert not CDF.met(signal.double(), torch.tensor([0.9999], dtype=torch.float64))


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


@pytest.mark.parametrize("name", SIGNALLED)
def test_thresholds_out_of_range_are_refused_with_the_range(name: str) -> None:
    dims = tiny.universal().dims if name == "act" else STAGED_DIMS
    if name in (*FALLING, "argmax-stability"):
        allowed, refused, words = [0.0, 1e-9, 7.0, math.inf], [-1e-9, -math.inf], "0 or more"
    else:
        allowed, refused, words = [0.0, 0.5, 1.0], [-1e-9, 1.0 + 1e-9, math.inf], "0 to 1"
    for threshold in allowed:
        check_policy(ExitPolicy(name, threshold), dims, LOOPS)
    for wrong in (*refused, math.nan, None):
        with pytest.raises(UsageError, match=rf"exit rule '{name}'.*out of range; use {words}"):
            check_policy(ExitPolicy(name, wrong), dims, LOOPS)


@pytest.mark.parametrize("name", SIGNALLED)
def test_the_default_threshold_is_one_that_can_be_asked_for(name: str) -> None:
    dims = tiny.universal().dims if name == "act" else STAGED_DIMS
    check_policy(ExitPolicy(name, RULES[name].default_threshold), dims, LOOPS)


@pytest.mark.parametrize(
    ("name", "build", "lacks"),
    [
        ("cdf", tiny.huginn, "an exit gate"),
        ("cdf", tiny.llama, "an exit gate"),
        ("act", tiny.ouro, "a halting mean"),
        ("act", tiny.huginn, "a halting mean"),
    ],
)
def test_a_rule_the_model_is_not_made_for_names_those_it_can_have(
    name: str, build: Callable[[], StagedModel], lacks: str
) -> None:
    dims = build().dims
    with pytest.raises(UsageError) as refusal:
        check_policy(ExitPolicy(name, 0.5), dims, dims.max_loops)
    message = str(refusal.value)
    assert message.startswith(f"exit rule {name!r}: needs {lacks}")
    assert f"a {dims.model_type} model lacks" in message
    named = message.rpartition("choose one of ")[2].split(", ")
    assert named == [rule for rule in RULES if suits(RULES[rule], dims)]
    assert name not in named
    for rule in set(named) - {"fixed", "trace", "lookahead"}:
        check_policy(ExitPolicy(rule, RULES[rule].default_threshold), dims, dims.max_loops)


# The halting mean, served.


def first_later_logprob(policy: ExitPolicy, first_token: str = "full") -> tuple[float, int]:
    """Logprob and depth of a first later token, whose context no policy can change."""
    request = Request("r", [5, 1, 9], exit=policy, force=[3, 8])
    config = EngineConfig(first_token=first_token)
    (result,) = Engine(tiny.universal(), config).run([request])
    return result.logprobs[1], result.executed_depths[1]


def test_lag_and_floor_make_act_run_longer_and_change_no_readout() -> None:
    """A token's weights are complete once it has halted; loops after that count nothing."""
    known, depth = first_later_logprob(ExitPolicy("act", 0.7))
    assert depth < LOOPS
    for floor, lag, runs in ((1, 1, depth + 1), (LOOPS, 0, LOOPS), (LOOPS, 1, LOOPS)):
        found, executed = first_later_logprob(ExitPolicy("act", 0.7, floor, lag))
        assert executed == runs
        assert found == pytest.approx(known, abs=1e-12)
    other, _ = first_later_logprob(ExitPolicy("fixed", depth=LOOPS))
    assert abs(other - known) > 1e-6, "without the rule the mean would be another"


@pytest.mark.parametrize(
    ("policy", "loops"),
    [
        (ExitPolicy(), LOOPS),
        (ExitPolicy("fixed", depth=2), 2),
        (ExitPolicy("act", 0.7), None),
        (ExitPolicy("act", 1.0), None),
        (ExitPolicy("latent-diff", 0.6), None),
    ],
    ids=str,
)
def test_the_remainder_falls_to_the_loop_that_halts_or_that_the_token_leaves_at(
    policy: ExitPolicy, loops: int | None
) -> None:
    """The readout from the states of all loops by ACT's weights, for any rule."""
    model, positions = tiny.universal(), [3]
    found, executed = first_later_logprob(policy)
    assert loops in (None, executed)
    alone = ReferenceModel(model, "per-loop", None)
    state, _ = alone.prelude([5, 1, 9], [0, 1, 2])
    for loop in range(1, LOOPS + 1):
        state = alone.core(state, None, [0, 1, 2], loop)
    state, _ = alone.prelude([3], positions)
    states = []
    for loop in range(1, executed + 1):
        state = alone.core(state, None, positions, loop)
        states.append(state)
    halting = [float(torch.sigmoid(model.exit_logit(state))) for state in states]
    halt_at = policy.threshold or 0.0 if policy.rule == "act" else 1.0
    weights = weights_of(halting, halt_at, executed)
    mean = torch.stack([w * state for w, state in zip(weights, states, strict=True)]).sum(0)
    logits = model.head(model.coda(mean, ReferenceContext(1).at(positions)))[0]
    assert found == pytest.approx(float(logits.log_softmax(-1)[8]), abs=1e-9)


def test_a_gate_rule_on_a_model_without_a_gate_names_the_rules_it_can_have() -> None:
    dims: ModelDims = tiny.llama().dims
    with pytest.raises(
        UsageError, match=r"needs an exit gate.*none, fixed, trace, latent-diff, cosine"
    ):
        check_policy(ExitPolicy("cdf", 0.5), dims, 1)

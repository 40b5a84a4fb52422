"""A gate that looks one loop ahead: the same tokens and depths whatever the schedule, and watched.

The reference serves one request alone, one token and one loop at a time, with the gate's score in
plain Python and what it knows of a request in a list.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cdbench.errors import UsageError
from cdbench.models.base import StagedModel
from cdbench.models.loading import load_model
from cdbench.predictor.gate_files import read_gate
from cdbench.runtime.core import ExitPolicy, LaunchLog, Request, RequestResult
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.exit_checks import check_policy
from cdbench.runtime.exit_rule import Falling
from cdbench.runtime.exits import RULES
from cdbench.runtime.ghost import GhostEngine
from cdbench.runtime.lookahead import Gate, GateKind, Lookahead, PreLoopGate, Watch
from cdbench.runtime.scoring.continuation import Continuation as ScoredContinuation
from cdbench.runtime.scoring.score import score
from cdbench.runtime.scoring.setting import Setting
from tests import tiny
from tests.pressure import LAYOUTS, model_of
from tests.reference import NEAR_TIE, ReferenceModel, _halt_at, _read_prompt, _Rule
from tests.test_engine_properties import configs, memory, serve
from tests.test_ghost import signal_of

R = 4
WATCH = Watch(window=4, floor=0.6, least_calls=2)
RULES_OF = {
    "ouro": ("cdf", [0.3, 0.6, 0.9]),
    "staged": ("cosine", [0.05, 0.2, 0.5]),
    "huginn": ("latent-diff", [0.3, 0.6, 0.9]),
    "universal": ("act", [0.4, 0.7]),
}
"""A rule of each kind that a gate can look ahead for, on a model that has what it needs."""


@functools.cache
def gate_of(
    name: str, kind: GateKind, seed: int, threshold: float, at: float, pre_loop: bool = False
) -> Lookahead:
    """A gate with random weights that calls now and then, and perhaps one before loop 1."""
    rule = RULES_OF[name][0]
    generator = torch.Generator().manual_seed(seed)
    size = model_of(name).dims.hidden_size

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def gate(loops: int, inputs: int) -> Gate:
        if kind == "linear":
            weights = {"weight": drawn(loops, inputs), "bias": drawn(loops)}
        else:
            weights = {
                "hidden": drawn(5, inputs),
                "hidden_bias": drawn(loops, 5),
                "out": drawn(5),
                "bias": drawn(loops),
            }
        return Gate(kind, weights, isinstance(RULES[rule], Falling))

    after = gate(R - 2, size + 1)
    before = PreLoopGate(gate(1, size), at) if pre_loop else None
    return Lookahead(after, at, rule, threshold, R, watch=WATCH, pre_loop=before)


# One request alone.


@dataclass
class Alone:
    """What a request comes to, by the letter of the semantics."""

    tokens: list[int] = field(default_factory=list)
    executed: list[int] = field(default_factory=list)
    requested: list[int] = field(default_factory=list)
    predicted: list[int | None] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_depth: int | None = None
    closest: float = math.inf
    """The least distance of any choice from its opposite: two logits, or a call."""


class Watcher:
    """Which of a request's calls were right, and whether it still trusts its gate."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.outcomes: list[bool] = []
        self.trusts = True

    def saw(self, right: bool) -> None:
        self.outcomes.append(right)
        recent = self.outcomes[-self.watch.window :]
        if len(recent) >= self.watch.least_calls:
            self.trusts &= sum(recent) >= self.watch.floor * len(recent)


def score_by_hand(gate: Gate, state: list[float], signal: float, loop: int) -> float:
    """A gate's score of one row, number by number."""
    left = signal if gate.falls else 1 - signal
    return logit_by_hand(gate, [*state, -math.log(min(max(left, 1e-6), 1e6))], loop)


def logit_by_hand(gate: Gate, inputs: list[float], loop: int) -> float:
    """The same from all inputs, by the weights of a loop."""
    w = {name: weight.tolist() for name, weight in gate.weights.items()}
    if gate.kind == "linear":
        terms = zip(w["weight"][loop - 1], inputs, strict=True)
        return sum(a * b for a, b in terms) + w["bias"][loop - 1]
    total = w["bias"][loop - 1]
    for line, bias, out in zip(w["hidden"], w["hidden_bias"][loop - 1], w["out"], strict=True):
        x = sum(a * b for a, b in zip(line, inputs, strict=True)) + bias
        total += out * x / (1 + math.exp(-x))
    return float(total)


@torch.inference_mode()
def serve_alone(model: StagedModel, request: Request, layout: str) -> Alone:
    """Greedy or forced continuation of one request under a gate."""
    gate = request.exit.lookahead
    assert gate is not None
    ref, out, watcher = ReferenceModel(model, layout, None), Alone(), Watcher(gate.watch)
    logits, requested = _read_prompt(ref, request, select=False)
    depth, predicted = ref.loops, None
    while True:
        step = len(out.tokens)
        best = logits.topk(2).values
        if request.force is None:
            out.closest = min(out.closest, float(best[0] - best[1]))
        token = int(logits.argmax()) if request.force is None else request.force[step]
        if request.force is None and token in request.stop_ids and not request.ignore_eos:
            out.stop_depth = depth if step else None
            return out
        out.tokens.append(token)
        out.executed.append(depth)
        out.requested.append(requested)
        out.predicted.append(predicted)
        out.logprobs.append(float(logits.log_softmax(-1)[token]))
        if len(out.tokens) == request.new_tokens:
            return out
        logits, depth, requested, predicted = run_token(ref, request, token, step + 1, watcher, out)


def run_token(
    ref: ReferenceModel, request: Request, token: int, step: int, watcher: Watcher, out: Alone
) -> tuple[torch.Tensor, int, int, int | None]:
    """One later token: its logits, and its depths executed, asked for and called."""
    policy, gate = request.exit, request.exit.lookahead
    assert gate is not None
    assert policy.threshold is not None
    position = [len(request.prompt) + step - 1]
    state, injection = ref.prelude([token], position)
    readout, rule = ref.new_readout(1), _Rule(policy, ref)
    trusts, asked, called, leaves = watcher.trusts, 0, 0, ref.loops
    if trusts and gate.pre_loop is not None and policy.min_loops == 1:
        given = (state if injection is None else injection)[0].tolist()
        p = 1 / (1 + math.exp(-logit_by_hand(gate.pre_loop.gate, given, 1)))
        out.closest = min(out.closest, abs(p - gate.pre_loop.threshold))
        if p >= gate.pre_loop.threshold:
            called = leaves = 1
    for loop in range(1, ref.loops + 1):
        before, state = state, ref.core(state, injection, position, loop)
        readout = ref.absorb(state, readout, _halt_at(policy))
        logits = ref.logits(ref.model.readout(state, readout), position)
        signal = signal_of(rule, before, state, readout, logits)
        met = signal < policy.threshold if gate.gate.falls else signal >= policy.threshold
        if met and loop >= policy.min_loops:
            asked = asked or loop
        if called == loop:
            watcher.saw(bool(asked))
        if loop >= leaves:
            break
        if loop + 1 < policy.min_loops:
            continue
        if met:
            leaves = loop + 1
        if trusts and not called and loop < ref.loops - 1 and not (asked and loop >= gate.earliest):
            p = 1 / (1 + math.exp(-score_by_hand(gate.gate, state[0].tolist(), signal, loop)))
            out.closest = min(out.closest, abs(p - gate.threshold))
            if p >= gate.threshold:
                called = leaves = loop + 1
    early = called == loop < ref.loops and not asked
    requested = loop + 1 if early else min(asked or loop, loop)
    return logits, loop, requested, (called or ref.loops) if trusts else None


def assert_equals_alone(
    model: StagedModel, request: Request, result: RequestResult, layout: str
) -> None:
    alone = serve_alone(model, request, layout)
    if alone.closest < NEAR_TIE:
        return
    assert result.tokens == alone.tokens
    assert result.executed_depths == alone.executed
    assert result.requested_depths == alone.requested
    assert result.predicted_depths == alone.predicted
    assert result.stop_depth == alone.stop_depth
    assert result.logprobs == pytest.approx(alone.logprobs, abs=1e-6)


# A schedule never changes a result.

ids = st.integers(0, 22)


@st.composite
def gated_requests(draw: st.DrawFn, name: str) -> list[Request]:
    """Requests under gates of both kinds, some beside them under the plain rule or none."""
    rule, thresholds = RULES_OF[name]
    batch = []
    for i in range(draw(st.integers(1, 6))):
        threshold = draw(st.sampled_from(thresholds))
        gate = gate_of(
            name,
            draw(st.sampled_from(["linear", "mlp"])),
            draw(st.integers(0, 3)),
            threshold,
            draw(st.sampled_from([0.1, 0.5, 0.9])),
            draw(st.booleans()),
        )
        floor = draw(st.sampled_from([1, 1, 2, 3]))
        policy = ExitPolicy(rule, threshold, floor, 1, lookahead=gate)
        if draw(st.integers(0, 5)) == 0:
            policy = draw(st.sampled_from([ExitPolicy(), ExitPolicy(rule, threshold, floor, 1)]))
        tokens = draw(st.integers(1, 14))
        batch.append(
            Request(
                id=str(i),
                prompt=draw(st.lists(ids, min_size=1, max_size=6)),
                max_new_tokens=tokens,
                exit=policy,
                force=draw(st.none() | st.lists(ids, min_size=tokens, max_size=tokens)),
                stop_ids=frozenset(draw(st.lists(ids, max_size=1))),
                arrival_s=draw(st.floats(0, 60)),
            )
        )
    return batch


@pytest.mark.parametrize("name", RULES_OF)
@settings(max_examples=12)
@given(data=st.data())
def test_any_schedule_equals_the_request_alone(name: str, data: st.DataObject) -> None:
    """Any width, cap, order, layout, mode, KV budget and preemption, in float64."""
    model = model_of(name)
    batch = data.draw(gated_requests(name))
    config = data.draw(configs())
    config = data.draw(memory(model, config, batch))
    results = serve(model, config, batch)
    for request in batch:
        result = results[request.id]
        if request.exit.lookahead is None:
            assert result.predicted_depths is None
        else:
            assert_equals_alone(model, request, result, config.kv_layout)


def gated(
    name: str, count: int, tokens: int, seed: int = 0, pre_loop: bool = False, **changes: Any
) -> list[Request]:
    rule, thresholds = RULES_OF[name]
    rng = random.Random(seed)
    gate = gate_of(name, "linear", seed, thresholds[1], 0.5, pre_loop)
    if changes:
        gate = dataclasses.replace(gate, **changes)
    policy = ExitPolicy(rule, thresholds[1], 1, 1, lookahead=gate)
    return [
        Request(
            str(i),
            [rng.randrange(23) for _ in range(4)],
            exit=policy,
            force=[rng.randrange(23) for _ in range(tokens)],
        )
        for i in range(count)
    ]


def test_the_reference_sees_calls_of_every_kind() -> None:
    """Else the property above would hold of nothing."""
    seen: set[str] = set()
    for name, pre_loop in itertools.product(RULES_OF, (False, True)):
        for seed in range(2):
            for request in gated(name, 2, 16, seed, pre_loop):
                assert request.exit.lookahead is not None
                earliest = request.exit.lookahead.earliest
                alone = serve_alone(model_of(name), request, "per-loop")
                for executed, asked, called in zip(
                    alone.executed[1:], alone.requested[1:], alone.predicted[1:], strict=True
                ):
                    if called is None:
                        seen.add("fallen back")
                    elif called < R:
                        place = " before loop 1" if called == 1 else ""
                        seen.add(("right" if max(earliest, asked) <= called else "wrong") + place)
                    else:
                        seen.add("missed" if asked < executed else "none")
    first = {"right before loop 1", "wrong before loop 1"}
    assert seen == {"fallen back", "right", "wrong", "missed", "none", *first}


@pytest.mark.parametrize("pre_loop", [False, True])
@pytest.mark.parametrize("name", ["ouro", "huginn"])
def test_preemption_in_the_middle_of_a_token_keeps_what_is_known_of_the_calls(
    name: str, pre_loop: bool
) -> None:
    model, batch = model_of(name), gated(name, 8, 14, pre_loop=pre_loop)
    config = EngineConfig(max_residents=8, width=3)
    roomy = {r.id: r for r in Engine(model, config).run(batch)}
    budget = Engine(model, config).cache.shape.budget_for(24)
    tight = Engine(model, dataclasses.replace(config, kv_budget_bytes=budget))
    found = {r.id: r for r in tight.run(batch)}
    assert tight.memory.counters.mid_token
    for key, result in roomy.items():
        assert found[key].executed_depths == result.executed_depths
        assert found[key].predicted_depths == result.predicted_depths


# What it may and may not do.


def always(right_p: float = 1.0) -> dict[str, Any]:
    """A gate that calls at every loop (or at none)."""
    size = model_of("ouro").dims.hidden_size
    bias = torch.full((R - 2,), 30.0 if right_p else -30.0, dtype=torch.float64)
    weight = torch.zeros(R - 2, size + 1, dtype=torch.float64)
    return {"gate": Gate("linear", {"weight": weight, "bias": bias}, falls=False)}


def one(model: StagedModel, request: Request, **config: object) -> RequestResult:
    (result,) = Engine(model, EngineConfig(**config)).run([request])  # type: ignore[arg-type]
    return result


def test_a_gate_that_never_calls_is_the_plain_rule_at_lag_1() -> None:
    model = model_of("ouro")
    (request,) = gated("ouro", 1, 20, **always(0.0))
    plain = dataclasses.replace(request.exit, lookahead=None)
    found, wanted = one(model, request), one(model, dataclasses.replace(request, exit=plain))
    assert found.predicted_depths == [None] + [R] * 19
    for part in ("tokens", "executed_depths", "requested_depths", "logprobs"):
        assert getattr(found, part) == getattr(wanted, part)
    assert min(found.executed_depths) < R


def test_calls_end_tokens_after_loop_2_at_the_earliest_and_at_the_floor() -> None:
    model = model_of("ouro")
    (request,) = gated("ouro", 1, 6, watch=Watch(4, 0.0, 1), **always())
    assert one(model, request).executed_depths == [R] + [2] * 5
    floored = dataclasses.replace(request.exit, min_loops=3)
    found = one(model, dataclasses.replace(request, exit=floored))
    assert found.executed_depths == [R] + [3] * 5
    assert found.predicted_depths == [None] + [3] * 5


def before_loop_1(right_p: float = 1.0) -> dict[str, Any]:
    """A gate that calls after no loop, and one that calls before loop 1 (or never)."""
    size = model_of("ouro").dims.hidden_size
    bias = torch.full((1,), 30.0 if right_p else -30.0, dtype=torch.float64)
    weight = torch.zeros(1, size, dtype=torch.float64)
    gate = Gate("linear", {"weight": weight, "bias": bias}, falls=False)
    return {**always(0.0), "pre_loop": PreLoopGate(gate, 0.5)}


def changed(request: Request, **changes: Any) -> Request:
    """A request whose gate is another."""
    assert request.exit.lookahead is not None
    gate = dataclasses.replace(request.exit.lookahead, **changes)
    return dataclasses.replace(request, exit=dataclasses.replace(request.exit, lookahead=gate))


def test_a_call_before_loop_1_ends_a_token_after_it_unless_the_floor_is_higher() -> None:
    model = model_of("ouro")
    (request,) = gated("ouro", 1, 6)
    request = changed(request, watch=Watch(4, 0.0, 1), **before_loop_1())
    found = one(model, request)
    assert found.executed_depths == [R] + [1] * 5
    assert found.predicted_depths == [None] + [1] * 5
    for floor in (2, 3):
        floored = dataclasses.replace(request.exit, min_loops=floor)
        found = one(model, dataclasses.replace(request, exit=floored))
        assert min(found.executed_depths) >= floor
        assert found.predicted_depths == [None] + [R] * 5


def test_gates_that_share_a_launch_speak_for_their_own_rows_alone() -> None:
    model = model_of("ouro")
    first, second, third = gated("ouro", 3, 6)
    patient = Watch(4, 0.0, 1)
    mixed = [
        changed(first, watch=patient, **always()),
        changed(second, watch=patient, **before_loop_1()),
        dataclasses.replace(third, exit=dataclasses.replace(third.exit, lookahead=None)),
        changed(dataclasses.replace(third, id="never"), **always(0.0)),
    ]
    config = EngineConfig(mode="cdb", max_residents=4, width=4)
    found = {r.id: r for r in Engine(model, config).run(mixed)}
    assert found[first.id].executed_depths == [R] + [2] * 5
    assert found[second.id].executed_depths == [R] + [1] * 5
    # No gate calls for it, and the one that never calls leaves it to the rule as well.
    assert found[third.id].executed_depths == found["never"].executed_depths
    assert found[third.id].executed_depths == one(model, mixed[2]).executed_depths


def test_a_pre_loop_gate_that_never_calls_changes_no_token() -> None:
    model = model_of("ouro")
    (request,) = gated("ouro", 1, 20, rule_threshold=0.3, watch=Watch(4, 0.0, 1))
    request = dataclasses.replace(request, exit=dataclasses.replace(request.exit, threshold=0.3))
    assert request.exit.lookahead is not None
    quiet = {**before_loop_1(0.0), "gate": request.exit.lookahead.gate}
    found, wanted = one(model, changed(request, **quiet)), one(model, request)
    assert found.executed_depths == wanted.executed_depths
    assert found.logprobs == wanted.logprobs
    # Of a token that the rule asked to leave after loop 1 a call for loop 2 is late.
    assert found.predicted_depths is not None
    pairs = zip(found.predicted_depths, found.requested_depths, strict=True)
    assert {called for called, asked in pairs if asked == 1} == {R}


def test_wrong_calls_before_loop_1_make_a_request_fall_back() -> None:
    model = model_of("ouro")
    (request,) = gated("ouro", 1, 30)
    gate = {**before_loop_1(), "rule_threshold": 1.0, "watch": Watch(8, 0.7, 4)}
    request = changed(request, **gate)
    never = dataclasses.replace(request.exit, threshold=1.0)
    found = one(model, dataclasses.replace(request, exit=never))
    assert found.predicted_depths == [None] + [1] * 4 + [None] * 25
    assert found.executed_depths == [R] + [1] * 4 + [R] * 25
    assert found.requested_depths == [R] + [2] * 4 + [R] * 25


def test_a_nan_calls_nothing_before_loop_1() -> None:
    gate = before_loop_1()["pre_loop"]
    size = model_of("ouro").dims.hidden_size
    given = torch.zeros(2, size, dtype=torch.float64)
    given[1, 3] = torch.nan
    assert gate.calls(given).tolist() == [True, False]


def test_a_token_that_a_call_ended_too_early_was_due_at_least_a_loop_later() -> None:
    """Requested is above executed there: the shortfall that short_loops counts."""
    model = model_of("ouro")
    (request,) = gated("ouro", 1, 12, rule_threshold=1.0, watch=Watch(4, 0.0, 1), **always())
    never = dataclasses.replace(request.exit, threshold=1.0)
    found = one(model, dataclasses.replace(request, exit=never))
    assert found.executed_depths[1:] == [2] * 11
    assert found.requested_depths[1:] == [3] * 11


def test_the_fallback_acts_on_a_bad_gate_and_leaves_the_plain_rule_at_lag_1() -> None:
    model = model_of("ouro")
    (request,) = gated("ouro", 1, 30, rule_threshold=1.0, watch=Watch(8, 0.7, 4), **always())
    never = dataclasses.replace(request.exit, threshold=1.0)
    found = one(model, dataclasses.replace(request, exit=never))
    assert found.predicted_depths is not None
    # Four calls, all wrong, and no more; a rule that never asks then runs every loop.
    assert found.predicted_depths == [None] + [2] * 4 + [None] * 25
    assert found.executed_depths == [R] + [2] * 4 + [R] * 25


def test_a_token_that_has_left_is_called_no_more() -> None:
    """One that the rule alone ended after loop 2 has no call for loop 3, however sure the gate.

    Its test was met at loop 1 alone, which a signal that need not fall steadily can do.
    """
    model, threshold = model_of("ouro"), 1.1
    weight = torch.zeros(R - 2, model.dims.hidden_size + 1, dtype=torch.float64)
    weights = {"weight": weight, "bias": torch.tensor([-30.0, 30.0], dtype=torch.float64)}
    gate = Lookahead(Gate("linear", weights, falls=True), 0.5, "latent-diff", threshold, R)
    policy = ExitPolicy("latent-diff", threshold, 2, 1, lookahead=gate)
    left = 0
    for request in gated("ouro", 6, 20):
        found = one(model, dataclasses.replace(request, exit=policy))
        assert found.predicted_depths is not None
        pairs = list(zip(found.executed_depths, found.predicted_depths, strict=True))[1:]
        assert all(called in (None, R, executed) for executed, called in pairs)
        left += sum(executed == 2 for executed, _ in pairs)
    assert left, "no token was ended by the rule alone after loop 2"


def test_a_request_is_judged_by_its_recent_calls_alone() -> None:
    """Two wrong calls in any four: a request with older wrong ones goes on."""
    watcher = Watcher(Watch(window=4, floor=0.6, least_calls=4))
    for right in (True, False, True, True, True, True, False, True):
        watcher.saw(right)
    assert watcher.trusts
    watcher.saw(False)
    assert not watcher.trusts


def test_a_shipped_gate_with_its_weights_negated_is_found_out() -> None:
    """Every request falls back within a few calls, and then loops no less than the rule asks."""
    model = load_model("demo-ouro", device="cpu", dtype="float32")
    good = read_gate("demo-ouro").lookahead(None, torch.device("cpu"))
    negated = {name: -weight for name, weight in good.gate.weights.items()}
    bad = dataclasses.replace(good, gate=dataclasses.replace(good.gate, weights=negated))
    questions = ["sum m 4 ; i 1 ; w 9 ; h 2 ; :", "add 4 3 6 4 + 2 2 7 1 :", "reverse l n y x w :"]

    def run(gate: Lookahead, **ending: Any) -> list[RequestResult]:
        policy = ExitPolicy(gate.rule, gate.rule_threshold, 2, 1, lookahead=gate)
        batch = [Request(text, model.encode(text), 150, policy, **ending) for text in questions]
        return list(Engine(model.network, EngineConfig(max_residents=6)).run(batch))

    for result in run(bad, ignore_eos=True):
        assert result.predicted_depths is not None
        calls = result.predicted_depths.index(None, 1)
        later = list(zip(result.executed_depths, result.requested_depths, strict=True))[calls:]
        assert result.predicted_depths[calls:] == [None] * len(later)
        assert all(executed >= asked for executed, asked in later)
    for result in run(good, stop_ids=model.stop_ids):
        assert result.predicted_depths is not None
        assert None not in result.predicted_depths[1:]


@pytest.mark.parametrize("pre_loop", [False, True])
def test_replayed_depths_are_executed_and_the_gate_calls_as_it_did(pre_loop: bool) -> None:
    model, batch = model_of("ouro"), gated("ouro", 5, 12, pre_loop=pre_loop)
    live = {r.id: r for r in Engine(model, EngineConfig()).run(batch)}
    replays = [
        dataclasses.replace(r, replay_depths=live[r.id].executed_depths) for r in reversed(batch)
    ]
    config = EngineConfig("lockstep", max_residents=3, width=2)
    for result in Engine(model, config).run(replays):
        assert result.executed_depths == live[result.id].executed_depths
        assert result.requested_depths == live[result.id].requested_depths
        assert result.predicted_depths == live[result.id].predicted_depths


def test_ghosts_ask_no_gate_and_know_every_signal() -> None:
    model, batch = model_of("huginn"), gated("huginn", 4, 10)
    logs = LaunchLog(), LaunchLog()
    plain = Engine(model, EngineConfig(), clock=tiny.StepClock(), observer=logs[0])
    ghostly = GhostEngine(model, EngineConfig(), clock=tiny.StepClock(), observer=logs[1])
    wanted = {r.id: r for r in plain.run(batch)}
    for result in ghostly.run(batch):
        assert result == wanted[result.id]
        assert ghostly.signals.of(result).shape == (9, R)


def test_scored_continuations_are_those_of_generation() -> None:
    """A gate is watched from token to token, so nothing of it is packed."""
    model = model_of("ouro")
    for request in gated("ouro", 3, 12):
        assert request.force is not None
        item = ScoredContinuation(
            request.id, tuple(request.prompt), tuple(request.force), request.exit
        )
        setting = Setting.of(model, EngineConfig())
        assert not setting.can_pack(item)
        (scored,) = score(model, setting.config, [item])
        alone = serve_alone(model, request, "per-loop")
        assert scored.executed_depths == alone.executed
        assert scored.requested_depths == alone.requested


# What is refused.


def refusal(policy: ExitPolicy, max_loops: int = R, name: str = "ouro") -> str:
    with pytest.raises(UsageError) as caught:
        check_policy(policy, model_of(name).dims, max_loops)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in (": ", "; "))
    return message


def test_what_a_gate_was_not_trained_for_is_refused_by_name() -> None:
    (request,) = gated("ouro", 1, 4)
    good = request.exit
    check_policy(good, model_of("ouro").dims, R)
    assert "--exit-lag 1" in refusal(dataclasses.replace(good, lag=0))
    assert "cdf@0.6" in refusal(dataclasses.replace(good, threshold=0.7))
    assert "cdf@0.6" in refusal(dataclasses.replace(good, rule="latent-diff"))
    assert "R is 3" in refusal(good, max_loops=3)
    assert "at every loop" in refusal(dataclasses.replace(good, rule="confidence"))
    assert "no signal" in refusal(dataclasses.replace(good, rule="none", threshold=None))
    assert "lookahead:PATH" in refusal(ExitPolicy("lookahead", lag=1))
    assert good.lookahead is not None
    narrow = dataclasses.replace(
        good.lookahead,
        gate=Gate("linear", {"weight": torch.zeros(2, 9), "bias": torch.zeros(2)}, falls=False),
    )
    assert "state size is 16" in refusal(dataclasses.replace(good, lookahead=narrow))


def test_layouts_are_all_served() -> None:
    """Which of them a gate was trained for is for whoever loads it from disk."""
    model, (request,) = model_of("ouro"), gated("ouro", 1, 10)
    for layout in LAYOUTS:
        result = one(model, request, kv_layout=layout)
        assert_equals_alone(model, request, result, layout)

"""Ghost loops: they disturb nothing, and their signals are those of the token continued alone."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cdbench.models.base import StagedModel
from cdbench.runtime.core import ExitPolicy, LaunchLog, Request, RequestResult
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.exit_rule import Needs
from cdbench.runtime.exits import RULES, suits
from cdbench.runtime.ghost import GhostEngine
from tests import tiny
from tests.pressure import (
    LAYOUTS,
    MODELS,
    THRESHOLDS,
    Palette,
    check_drained,
    check_engine,
    draw_batch,
    draw_config,
    model_of,
)
from tests.reference import ReferenceModel, _halt_at, _Rule


def serve(engine: Engine, batch: Sequence[Request]) -> dict[str, RequestResult]:
    for request in batch:
        engine.submit(request)
    ticks = 0
    while engine.tick():
        ticks += 1
        if ticks % 9 == 0:
            check_engine(engine)
    results = {r.id: r for r in engine.run()}
    check_drained(engine)
    return results


def launches(log: LaunchLog) -> list[tuple[object, ...]]:
    return [
        (*r[:3], None if r.decode_loops is None else r.decode_loops.tolist(), *r[4:])
        for r in log.records
    ]


@settings(max_examples=8)
@given(name=st.sampled_from(list(MODELS)), seed=st.integers(0, 2**32))
def test_ghosts_disturb_nothing(name: str, seed: int) -> None:
    """Under any rule, layout, schedule, budget, preemption and prefix cache: to the last bit."""
    rng, model = random.Random(seed), model_of(name)
    batch = draw_batch(rng, Palette.draw(rng, model), most=4)
    config = draw_config(rng, model, batch)
    logs = LaunchLog(), LaunchLog()
    plain = Engine(model, config, clock=tiny.StepClock(), observer=logs[0])
    ghostly = GhostEngine(model, config, clock=tiny.StepClock(), observer=logs[1])
    assert serve(plain, batch) == serve(ghostly, batch)
    assert launches(logs[0]) == launches(logs[1])
    for stage, held in plain.cache.stages.items():
        ours = ghostly.cache.stages[stage].pool.layers
        for mine, theirs in zip(held.pool.layers, ours, strict=True):
            assert torch.equal(mine, theirs), "a ghost left something in the cache"
    assert plain.memory.counters == ghostly.memory.counters


# The signals against a token continued alone.


class Alone:
    """A forced request by the reference's stages: each token to its depth, then its ghost to R."""

    def __init__(self, model: StagedModel, request: Request, layout: str) -> None:
        self.alone = ReferenceModel(model, layout, None)
        self.request = request

    @torch.inference_mode()
    def signals(self, tokens: Sequence[int], depths: Sequence[int]) -> list[list[float]]:
        """By later token, its signal at loops 1 to R, its predecessors having left at theirs."""
        self._prompt()
        first = len(self.request.prompt)
        return [self._token(token, first + i, depths[i + 1]) for i, token in enumerate(tokens[:-1])]

    def _prompt(self) -> None:
        alone, prompt = self.alone, list(self.request.prompt)
        positions = list(range(len(prompt)))
        state, injection = alone.prelude(prompt, positions)
        readout = alone.new_readout(len(prompt))
        for loop in range(1, alone.loops + 1):
            state = alone.core(state, injection, positions, loop)
            readout = alone.absorb(state, readout, 1.0)
        alone.logits(alone.model.readout(state, readout), positions)

    def _token(self, token: int, position: int, depth: int) -> list[float]:
        alone, at, policy = self.alone, [position], self.request.exit
        state, injection = alone.prelude([token], at)
        readout, rule = alone.new_readout(1), _Rule(policy, alone)
        kept: list[dict[tuple[int, int], dict[int, tuple[Tensor, Tensor]]]] = []
        found = []
        for loop in range(1, alone.loops + 1):
            before, state = state, alone.core(state, injection, at, loop)
            readout = alone.absorb(state, readout, _halt_at(policy))
            logits = alone.logits(alone.model.readout(state, readout), at)
            found.append(signal_of(rule, before, state, readout, logits))
            if loop == depth:
                kept = [self._own(stage, position) for stage in (alone._core, alone._coda)]
        for stage, own in zip((alone._core, alone._coda), kept, strict=True):
            stage.stored.update(own)
        return found

    def _own(self, stage, position):
        """What the token has stored in a stage, to be put back once its ghost has run."""
        return {at: dict(held) for at, held in stage.stored.items() if at[1] == position}


def signal_of(rule: _Rule, before: Tensor, state: Tensor, readout: Tensor, logits: Tensor) -> float:
    """A rule's signal by its formula."""
    name = rule.policy.rule.replace("-", "_")
    if name == "cdf":
        return rule._cdf(state)
    if name == "act":
        return float(readout[0, 0])
    now, was = state[0], before[0]
    if name == "latent_diff":
        return float((now - was).norm() / now.norm())
    if name == "cosine":
        sizes = float(now.norm() * was.norm())
        return 1 - (float(now @ was) / sizes if sizes else 0.0)
    signal, _ = getattr(rule, f"_{name}")(logits.softmax(-1))
    return float(signal)


def cases() -> list[tuple[str, str]]:
    return [
        (model, rule)
        for model in MODELS
        for rule in THRESHOLDS
        if suits(RULES[rule], model_of(model).dims)
    ]


@pytest.mark.parametrize(("name", "rule"), cases())
def test_signals_beyond_the_exit_are_those_of_the_token_continued_alone(
    name: str, rule: str
) -> None:
    rng, model = random.Random(f"{name} {rule}"), model_of(name)
    layout, mode = rng.choice(LAYOUTS), rng.choice(["cdb", "lockstep"])
    batch = [
        Request(
            id=str(i),
            prompt=[rng.randrange(23) for _ in range(rng.randint(1, 5))],
            exit=ExitPolicy(rule, rng.choice(THRESHOLDS[rule]), rng.randint(1, 2), i % 2),
            force=[rng.randrange(23) for _ in range(4)],
        )
        for i in range(3)
    ]
    engine = GhostEngine(model, EngineConfig(mode, max_residents=3, width=2, kv_layout=layout))
    for result in engine.run(batch):
        request = batch[int(result.id)]
        wanted = Alone(model, request, layout).signals(result.tokens, result.executed_depths)
        found = engine.signals.of(result)
        assert found.shape == (3, model.dims.max_loops)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)


def test_a_ghost_that_stored_its_keys_would_be_seen() -> None:
    """The properties above can fail: under the shared layout later tokens would read its keys."""
    model = model_of("ouro")
    request = Request("a", [1, 2, 3], 8, ExitPolicy("cdf", 0.3), force=[4, 5, 6, 7, 8, 9])
    config = EngineConfig(kv_layout="shared")
    (clean,) = GhostEngine(model, config).run([request])
    spoiled = GhostEngine(model, config)
    spoiled.ghosts.contexts = spoiled.runner.contexts
    (spoilt,) = spoiled.run([request])
    assert min(clean.executed_depths) < 4
    assert clean.logprobs != spoilt.logprobs


def test_preemption_in_the_middle_of_a_token_keeps_its_signals() -> None:
    model = model_of("ouro")
    rng = random.Random(5)
    batch = [
        Request(str(i), [rng.randrange(23) for _ in range(4)], 10, ExitPolicy("cdf", 0.6))
        for i in range(8)
    ]
    config = EngineConfig(max_residents=8, width=3)
    roomy = GhostEngine(model, config)
    budget = roomy.cache.shape.budget_for(20)
    tight = GhostEngine(model, dataclasses.replace(config, kv_budget_bytes=budget))
    wanted = {r.id: roomy.signals.of(r) for r in roomy.run(batch)}
    found = {r.id: tight.signals.of(r) for r in tight.run(batch)}
    assert tight.memory.counters.mid_token
    for name, signals in wanted.items():
        np.testing.assert_allclose(found[name], signals, rtol=1e-9)


def test_a_stop_token_and_a_first_token_have_no_line() -> None:
    model = model_of("ouro")
    request = Request("a", [1, 2, 3], 12, ExitPolicy("cdf", 0.6))
    (free,) = Engine(model, EngineConfig()).run([request])
    stop = next(t for i, t in enumerate(free.tokens) if i and free.tokens.index(t) == i)
    engine = GhostEngine(model, EngineConfig(first_token="select"))
    (result,) = engine.run([dataclasses.replace(request, stop_ids=frozenset([stop]))])
    assert result.stop_depth is not None
    assert engine.signals.of(result).shape == (len(result.tokens) - 1, 4)


def test_a_scripted_rule_has_no_signals() -> None:
    engine = GhostEngine(model_of("ouro"), EngineConfig())
    (result,) = engine.run([Request("a", [1, 2], 4, ExitPolicy("fixed", depth=2))])
    with pytest.raises(ValueError, match="no signal"):
        engine.signals.of(result)


def test_every_kind_of_rule_is_covered() -> None:
    kinds = {RULES[rule].needs for _, rule in cases()}
    assert kinds == set(Needs) - {Needs.NOTHING}


def test_a_nan_signal_is_kept_as_one() -> None:
    model = tiny.ouro()
    model.get_parameter(_gate_bias(model)).fill_(math.nan)
    engine = GhostEngine(model, EngineConfig())
    (result,) = engine.run([Request("a", [1, 2], 4, ExitPolicy("cdf", 0.5))])
    assert result.executed_depths == [4, 4, 4, 4]
    assert np.isnan(engine.signals.of(result)).all()


def _gate_bias(model: StagedModel) -> str:
    return next(n for n, p in model.named_parameters() if "gate" in n and n.endswith("bias"))


def test_room_for_signals_grows_with_the_tokens_that_come() -> None:
    """A stop may come at any time: nothing is set aside for all that a request may produce."""
    model = model_of("ouro")
    loops = model.dims.max_loops
    request = Request("a", [1, 2, 3], 45, ExitPolicy("cdf", 0.6))
    long, short = (GhostEngine(model, EngineConfig()) for _ in range(2))
    (whole,) = long.run([request])
    signals = long.signals.of(whole)
    assert signals.shape == (44, loops)
    assert not np.isnan(signals).any()
    wanted = Alone(model, request, "per-loop").signals(whole.tokens, whole.executed_depths)
    np.testing.assert_allclose(signals, wanted, rtol=1e-6, atol=1e-9)
    # The same request, stopped after a few tokens.
    stop = next(t for t in whole.tokens[3:] if t not in whole.tokens[:3])
    (cut,) = short.run([dataclasses.replace(request, stop_ids=frozenset([stop]))])
    np.testing.assert_array_equal(short.signals.of(cut), signals[: len(cut.tokens) - 1])
    assert short.signals._values["a"].shape[0] < 45

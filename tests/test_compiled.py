"""`engine.compile`: the same tokens and depths, compiled before the first launch and not in one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cdbench.bench.plan import make_plan
from cdbench.bench.summary import model_facts
from cdbench.cli.main import main
from cdbench.config import load_config
from cdbench.errors import UsageError
from cdbench.models import compiled as module
from cdbench.models.base import StagedModel
from cdbench.models.compiled import CompiledModel, compile_seconds, compiled
from cdbench.models.unrolled import unrolled
from cdbench.runtime.core import ExitPolicy, Request, RequestResult
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.scoring.continuation import Continuation
from cdbench.runtime.scoring.score import score
from cdbench.schema import read_result
from cdbench.stages.key import stage_key
from tests import tiny
from tests.pressure import MODELS

CONFIG = EngineConfig(max_residents=3, width=2, prefill_tokens=4, ride=True)
RULES = {
    "ouro": ExitPolicy("cdf", 0.6),
    "staged": ExitPolicy("cdf", 0.6),
    "huginn": ExitPolicy("latent-diff", 0.6),
    "universal": ExitPolicy("act", 0.7),
}


def requests(policy: ExitPolicy) -> list[Request]:
    prompts = [[3, 5, 7], [3, 5], [2, 9, 4, 1, 8], [6], [1, 2, 3, 4, 5, 6]]
    return [Request(str(i), prompt, 5 + i, policy) for i, prompt in enumerate(prompts)]


def served(model: StagedModel, config: EngineConfig, policy: ExitPolicy) -> list[RequestResult]:
    return sorted(Engine(model, config).run(requests(policy)), key=lambda result: result.id)


def same(model: StagedModel, config: EngineConfig, policy: ExitPolicy) -> None:
    """Compiled and not: equal tokens and depths, several of them; logprobs but for rounding."""
    plain = served(model, config, policy)
    ours = served(model, replace(config, compile=True), policy)
    for one, other in zip(ours, plain, strict=True):
        assert one.tokens == other.tokens
        assert one.executed_depths == other.executed_depths
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-9)
    if policy.rule != "none":
        assert len({depth for result in ours for depth in result.executed_depths[1:]}) > 1


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that surrounds the compiler, without it."""
    monkeypatch.setattr(module, "_compile", lambda stage: stage)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_compiled_stages_give_the_same_tokens_and_depths() -> None:
    """In float64; nothing is compiled any more once the engine is made."""
    model = tiny.ouro(num_hidden_layers=1)
    assert compile_seconds(model) is None
    compiled(model, 2)
    assert (compile_seconds(model) or 0.0) > 0.0
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert before > 0
    same(model, CONFIG, RULES["ouro"])
    same(model, replace(CONFIG, graphs=True), RULES["ouro"])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mode", ["cdb", "lockstep"])
def test_every_model_is_the_same_behind_the_one_operation(name: str, mode: str) -> None:
    """Attention as an opaque operation reaches the launch under way, and no other."""
    same(MODELS[name](), replace(CONFIG, mode=mode), RULES[name])


@pytest.mark.usefixtures("uncompiled")
def test_captured_launches_run_compiled_stages() -> None:
    same(tiny.huginn(), replace(CONFIG, graphs=True), RULES["huginn"])


@pytest.mark.usefixtures("uncompiled")
def test_engines_of_two_models_run_in_turns() -> None:
    """Each launch is its own engine's, whoever ran before."""
    models = [tiny.ouro(), tiny.huginn()]
    rules = [RULES["ouro"], RULES["huginn"]]
    config = replace(CONFIG, compile=True)
    pairs = list(zip(models, rules, strict=True))
    alone = [served(model, CONFIG, rule) for model, rule in pairs]
    engines = [Engine(model, config) for model in models]
    for engine, rule in zip(engines, rules, strict=True):
        for request in requests(rule):
            engine.submit(request)
    while any([engine.tick() for engine in engines]):
        pass
    for engine, expected in zip(engines, alone, strict=True):
        found = sorted(engine.run(), key=lambda result: result.id)
        assert [r.tokens for r in found] == [r.tokens for r in expected]
        assert [r.executed_depths for r in found] == [r.executed_depths for r in expected]


@pytest.mark.usefixtures("uncompiled")
def test_a_dense_twin_and_scored_continuations_too() -> None:
    model = tiny.ouro()
    same(unrolled(model), replace(CONFIG, mode="static"), ExitPolicy())
    one = Continuation("a", context=[3, 5], tokens=[7, 1, 4], exit=RULES["ouro"])
    plain, ours = (
        list(score(model, replace(CONFIG, compile=compile), [one])) for compile in (False, True)
    )
    assert ours[0].executed_depths == plain[0].executed_depths
    assert ours[0].logprobs == pytest.approx(plain[0].logprobs, abs=1e-9)


@pytest.mark.usefixtures("uncompiled")
def test_a_compiled_model_is_the_network_with_its_costs() -> None:
    network = tiny.huginn()
    model = compiled(network, 4)
    assert isinstance(model, CompiledModel)
    assert compiled(model, 4) is model
    assert (model.dims, model.dtype, model.device) == (network.dims, network.dtype, network.device)
    assert model.flops_per_token() == network.flops_per_token()
    assert model.weight_bytes() == network.weight_bytes()
    assert model.weight_map() == network.weight_map()
    assert model.parameter_count() == network.parameter_count()
    keys = torch.arange(3)
    assert model.random_state(keys).equal(network.random_state(keys))


def test_no_compiler_is_found_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UsageError, match=r"C\+\+ compiler .* no-such-compiler .*, or use false"):
        make_plan(planned(True))


def test_a_compiler_that_fails_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("ld: no such library\nand much more")

    monkeypatch.setattr(module, "_compile", lambda stage: fails)
    with pytest.raises(UsageError) as caught:
        Engine(tiny.ouro(), replace(CONFIG, compile=True))
    expected = "engine.compile: torch.compile failed (ld: no such library); use false"
    assert str(caught.value) == expected


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("compile", [False, True])
def test_results_and_stage_curves_say_so(compile: bool) -> None:
    plan = make_plan(planned(compile))
    assert model_facts(plan).compile_s is None
    Engine(plan.model.network, plan.settings(plan.subject(plan.modes[0])))
    assert (model_facts(plan).compile_s is not None) == compile
    assert stage_key(plan).compiled == compile
    assert ("stages are compiled with torch.compile" in plan.notes) == compile


@pytest.mark.usefixtures("uncompiled")
def test_a_run_compiles_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result has the seconds; where compiling fails there is no result, and no directory."""
    keys = ["work=equal", "modes=static,cdb", "stages=none", "workload.source=random"]
    keys += ["workload.requests=4", "workload.prompt_tokens=4", "workload.output=4"]
    keys += ["workload.depths=serial:0"]
    keys += ["weights=random:0", "repeats.blocks=1", "engine.compile=true"]
    command = ["run", "--model", str(tiny.FIXTURE), "--exit", "cdf@0.5"]
    command += [argument for key in keys for argument in ("--set", key)]
    assert main([*command, "--out", str(tmp_path / "one")]) == 3  # one block: INVALID, but whole
    model = read_result(tmp_path / "one").model
    assert model is not None
    assert (model.compile_s or 0.0) > 0.0

    def fails(*_: object) -> None:
        raise RuntimeError("no such library")

    monkeypatch.setattr(module, "_compile", lambda stage: fails)
    assert main([*command, "--out", str(tmp_path / "two")]) == 2
    assert not (tmp_path / "two").exists()


def planned(compile: bool):
    keys = {
        **{"model": str(tiny.FIXTURE), "dense": "", "modes": "static,cdb", "work": "equal"},
        **{"exit.rule": "cdf@0.5", "device": "cpu", "workload.source": "x.jsonl"},
    }
    return load_config(None, (), {**keys, "engine.compile": compile})

"""``dense:unrolled`` computes what the looped model computes at full depth, and costs R cores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cdbench.models.base import StagedModel
from cdbench.models.unrolled import Unrolled, core_parameters, unrolled
from cdbench.runtime.core import Request
from cdbench.runtime.engine_config import EngineConfig
from tests import tiny
from tests.staged import staged
from tests.test_engine_properties import configs, requests, serve

Build = Callable[[], StagedModel]

BUILDS: dict[str, Build] = {
    "ouro": tiny.ouro,
    "staged": staged,
    "huginn": tiny.huginn,
    "universal": tiny.universal,
    "looped-llama": lambda: tiny.looped_llama(norm_between_loops="own", injection="concat"),
    "looped-llama-shared-norm": lambda: tiny.looped_llama(norm_between_loops="shared"),
}
CORES: dict[str, tuple[str, ...]] = {
    "ouro": ("layers", "norm"),
    "staged": ("core_block", "adapter", "loop_embedding"),
    "huginn": ("core_layers", "adapter"),
    "universal": ("layers", "halting"),
    "looped-llama": ("layers", "own_norm", "adapter"),
    "looped-llama-shared-norm": ("layers", "norm"),
}
"""Modules that a loop reads. A gate is not among them: at full depth nothing asks it."""
MODELS = {name: build() for name, build in BUILDS.items()}
TWINS = {name: unrolled(model) for name, model in MODELS.items()}


@settings(max_examples=12)
@pytest.mark.parametrize("name", BUILDS)
@given(
    batch=requests(),
    looped=configs(("static",)),
    dense=configs(("dense:unrolled",)),
)
def test_an_unrolled_model_is_the_looped_one_at_full_depth(
    name: str, batch: list[Request], looped: EngineConfig, dense: EngineConfig
) -> None:
    loops = MODELS[name].dims.max_loops
    # Every copy has keys of its own, as every loop has in this layout alone.
    looped = dataclasses.replace(looped, kv_layout="per-loop")
    expected = serve(MODELS[name], looped, batch)
    for key, result in serve(TWINS[name], dense, batch).items():
        assert result.tokens == expected[key].tokens
        assert result.logprobs == pytest.approx(expected[key].logprobs, abs=1e-9)
        assert set(result.executed_depths) <= {1}
        assert set(expected[key].executed_depths) <= {loops}


def test_a_drawn_initial_state_is_the_looped_models() -> None:
    batch = [Request(str(i), [i + 1, 2, 7], 6) for i in range(3)]
    expected = serve(MODELS["huginn"], EngineConfig(mode="static", state_init="random"), batch)
    zero = serve(MODELS["huginn"], EngineConfig(mode="static"), batch)
    dense = EngineConfig(mode="dense:unrolled", state_init="random", width=2)
    for key, result in serve(TWINS["huginn"], dense, batch).items():
        assert result.tokens == expected[key].tokens
        assert result.logprobs == pytest.approx(expected[key].logprobs, abs=1e-9)
        assert result.logprobs != zero[key].logprobs


@given(loops=st.integers(1, 3), batch=requests())
@settings(max_examples=10)
def test_fewer_loops_unroll_into_fewer_copies(loops: int, batch: list[Request]) -> None:
    model = MODELS["staged"]
    expected = serve(model, EngineConfig(mode=f"static@{loops}"), batch)
    found = serve(unrolled(model, loops), EngineConfig(mode="dense:unrolled"), batch)
    for key, result in found.items():
        assert result.tokens == expected[key].tokens
        assert result.logprobs == pytest.approx(expected[key].logprobs, abs=1e-9)


@pytest.mark.parametrize("name", BUILDS)
def test_every_loop_has_weights_of_its_own_and_the_boundary_is_shared(name: str) -> None:
    model = BUILDS[name]()
    loops = model.dims.max_loops
    own = core_parameters(model, loops)
    named = {n: p for n, p in model.named_parameters() if n.split(".")[0] in CORES[name]}
    assert own == {id(p) for p in named.values()}
    core = sum(p.numel() for p in named.values())
    before = model.parameter_count()
    twin = unrolled(model)
    assert twin.parameter_count() == before + (loops - 1) * core
    assert model.parameter_count() == before
    weights = twin.stage_parameters()["core"]
    assert len({id(w) for w in weights}) == len(weights)
    # what only an exit gate read is gone, the rest is there once a loop
    gate = sum(w.numel() for w in model.stage_parameters()["core"] if id(w) not in own)
    for measure in (StagedModel.flops_per_token, StagedModel.weight_bytes):
        one, all_loops = measure(model), measure(twin)
        unit = one.core / sum(w.numel() for w in model.stage_parameters()["core"])
        assert all_loops.core == loops * (one.core - unit * gate)
        assert (all_loops.prelude, all_loops.coda) == (one.prelude, one.coda)


def test_one_copy_can_differ_from_the_others() -> None:
    """The weights are separate: changing the last copy's changes the result, the model's not."""
    model = tiny.ouro()
    twin = unrolled(model)
    batch = [Request("r", [3, 1, 4], 6)]
    before = serve(twin, EngineConfig(mode="dense:unrolled"), batch)["r"]
    assert isinstance(twin, Unrolled)
    with torch.no_grad():
        twin.copies[-1].get_parameter("layers.0.mlp.down.weight").mul_(3.0)
    after = serve(twin, EngineConfig(mode="dense:unrolled"), batch)["r"]
    assert after.logprobs != before.logprobs
    static = serve(model, EngineConfig(mode="static"), batch)["r"]
    assert static.logprobs == pytest.approx(before.logprobs, abs=1e-9)


def test_dimensions_are_a_dense_models() -> None:
    for name, twin in TWINS.items():
        looped = MODELS[name].dims
        dims = twin.dims
        assert dims.max_loops == 1
        assert dims.core_layers == looped.max_loops * looped.core_layers
        assert (dims.prelude_layers, dims.coda_layers) == (
            looped.prelude_layers,
            looped.coda_layers,
        )
        assert not dims.has_exit_gate
        assert not dims.has_halting
        assert dims.has_injection == looped.has_injection
        with pytest.raises(TypeError, match="load the looped model"):
            twin.weight_map()


def test_position_tables_are_not_copied() -> None:
    model = tiny.ouro()
    twin = unrolled(model)
    assert isinstance(twin, Unrolled)
    assert all(other.rotary is model.rotary for other in twin.copies)

"""The Triton kernels against the reference backend, in Triton's interpreter; which backend runs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cdbench.bench.plan import make_plan
from cdbench.bench.summary import model_facts
from cdbench.config import load_config
from cdbench.errors import UsageError
from cdbench.models.base import ModelDims
from cdbench.runtime.attention import backends
from cdbench.runtime.attention.backends import choose_backend, plan_class
from cdbench.runtime.attention.captured import Reads, captured_attention
from cdbench.runtime.attention.sdpa import SdpaPlan, Segment
from cdbench.runtime.core import ExitPolicy, IntArray, Request
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.stage_cache import StageCache
from cdbench.stages.key import stage_key
from tests import tiny
from tests.staged import DIMS

pytest.importorskip("triton")
from cdbench.runtime.attention import triton_plan
from cdbench.runtime.attention.triton_kernels import IS_INTERPRETED
from cdbench.runtime.attention.triton_plan import TritonPlan

CPU = torch.device("cpu")
LONGEST = 200
Where = tuple[IntArray, IntArray, IntArray]
"""Residents, slots and positions of queries."""
TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def dims_of(heads: int, groups: int, head_dim: int) -> ModelDims:
    return replace(DIMS, heads=heads, kv_heads=groups, head_dim=head_dim)


def filled(
    dims: ModelDims, slots: int, dtype: torch.dtype = torch.float64, residents: int = 6
) -> StageCache:
    """A cache of two layers in which every entry of every line names a random row."""
    cache = StageCache(2, slots, residents, dims, dtype, CPU)
    rows = 300
    cache.pool.grow(rows)
    cache.hold_positions(LONGEST)
    for layer in cache.pool.layers:
        layer[1:] = torch.randn(layer[1:].shape, dtype=torch.float64).to(dtype)
    cache.table.host[...] = np.random.default_rng(1).integers(1, rows + 1, cache.table.host.shape)
    return cache


def queries(
    dims: ModelDims, tokens: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and value rows as a layer has them: cuts of one tensor."""
    heads = dims.heads + 2 * dims.kv_heads
    fused = torch.randn(tokens, heads, dims.head_dim, dtype=torch.float64).to(dtype)
    kept = dims.heads + dims.kv_heads
    return fused[:, : dims.heads], fused[:, dims.heads : kept], fused[:, kept:]


def drawn(tokens: int, slots: int) -> Where:
    """Some queries, one at the first position and one at the last."""
    rng = np.random.default_rng(tokens)
    residents, at = np.arange(tokens), rng.integers(0, slots, tokens)
    positions = rng.integers(0, LONGEST, tokens)
    positions[0], positions[-1] = 0, LONGEST - 1
    return residents, at, positions


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == theirs.dtype
    tolerance = TOLERANCE[theirs.dtype]
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    assert IS_INTERPRETED, "triton was imported before TRITON_INTERPRET was set"
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "groups", "head_dim"), [(2, 2, 4), (4, 2, 6), (3, 1, 5)])
@pytest.mark.parametrize("parts", [1, 4])
def test_decode_equals_the_reference(
    dtype: torch.dtype, heads: int, groups: int, head_dim: int, parts: int
) -> None:
    """Mixed slots and positions, grouped heads, sizes that are no powers of two."""
    dims = dims_of(heads, groups, head_dim)
    cache = filled(dims, slots=3, dtype=dtype)
    where = drawn(5, slots=3)
    q, k, v = queries(dims, 5, dtype)
    plan = TritonPlan(cache, *where, [], dtype)
    plan.parts = parts
    close(plan.attend(1, q, k, v), SdpaPlan(cache, *where, [], dtype).attend(1, q, k, v))


@pytest.mark.parametrize("context", [1, 2, 63, 64, 65, 128, 129, 200])
@pytest.mark.parametrize("parts", [1, 2, 8])
def test_any_context_may_be_cut_into_any_number_of_parts(context: int, parts: int) -> None:
    """Also into more parts than it has blocks: an empty part counts for nothing."""
    dims = dims_of(2, 1, 4)
    cache = filled(dims, slots=1)
    where = np.array([3]), np.array([0]), np.array([context - 1])
    q, k, v = queries(dims, 1, torch.float64)
    plan = TritonPlan(cache, *where, [], torch.float64)
    plan.parts = parts
    close(plan.attend(0, q, k, v), SdpaPlan(cache, *where, [], torch.float64).attend(0, q, k, v))


def test_nothing_behind_a_querys_position_is_read() -> None:
    dims = dims_of(2, 2, 4)
    cache = filled(dims, slots=2)
    where = np.array([0, 1]), np.array([1, 0]), np.array([70, 3])
    q, k, v = queries(dims, 2, torch.float64)
    before = TritonPlan(cache, *where, [], torch.float64).attend(0, q, k, v)
    spoiled = cache.pool.layers[0].shape[0]
    cache.pool.grow(spoiled)
    cache.pool.layers[0][spoiled:] = torch.nan
    cache.table.host[0, 1, 71:] = cache.table.host[1, 0, 4:] = spoiled
    assert TritonPlan(cache, *where, [], torch.float64).attend(0, q, k, v).equal(before)


def test_equal_scores_weigh_equally() -> None:
    """By hand: keys of zero give every position the same weight, so the answer is the mean."""
    dims = dims_of(1, 1, 4)
    cache = filled(dims, slots=1)
    cache.pool.layers[0][:, 0] = 0.0
    q, k, v = queries(dims, 1, torch.float64)
    plan = TritonPlan(cache, np.array([2]), np.array([0]), np.array([149]), [], torch.float64)
    rows = torch.from_numpy(cache.table.host[2, 0, :150].astype(np.int64))
    close(plan.attend(0, q, k, v)[0], cache.pool.layers[0][rows, 1].mean(0))


def test_prompts_beside_decode_rows_go_as_in_the_reference() -> None:
    dims = dims_of(4, 2, 4)
    cache = filled(dims, slots=2)
    where = drawn(3, slots=2)
    segments = [Segment(4, 0, 3), Segment(5, 0, 3), Segment(3, 2, 4)]
    q, k, v = queries(dims, 13, torch.float64)
    ours = TritonPlan(cache, *where, segments, torch.float64, 2).attend(0, q, k, v)
    theirs = SdpaPlan(cache, *where, segments, torch.float64, 2).attend(0, q, k, v)
    close(ours, theirs)
    assert ours[3:].equal(theirs[3:])


def test_a_captured_launch_reads_anew_what_its_tensors_say() -> None:
    """As a graph is replayed: the same plan, made before its inputs were written."""
    dims = dims_of(2, 2, 4)
    cache = filled(dims, slots=2)
    inputs = torch.zeros((3, 4), dtype=torch.int64)
    attention = captured_attention("triton")
    assert not attention.pads
    q, k, v = queries(dims, 4, torch.float64)
    moved: Where = (np.arange(4) + 1, np.array([1, 1, 0, 0]), np.arange(4) * 9)
    for where in (drawn(4, slots=2), moved):
        inputs.copy_(torch.from_numpy(np.stack(where)))
        plan = attention.make_plan(cache, Reads(*inputs), 0)
        expected = TritonPlan(cache, *where, [], torch.float64)
        assert plan.attend(0, q, k, v).equal(expected.attend(0, q, k, v))


def test_few_rows_are_cut_into_parts_whatever_their_contexts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton_plan, "_processors", lambda device: 128)
    gpu = torch.device("cuda")
    found = [triton_plan.parts_for(programs, gpu) for programs in (1, 16, 64, 128, 511, 512, 4096)]
    assert found == [16, 16, 8, 4, 2, 1, 1]
    assert triton_plan.parts_for(1, CPU) == 1


@pytest.mark.parametrize(
    ("name", "layout", "graphs"), [("ouro", "per-loop", False), ("huginn", "shared", True)]
)
def test_a_run_has_the_tokens_and_depths_of_the_reference(
    name: str, layout: str, graphs: bool
) -> None:
    model = {"ouro": tiny.ouro, "huginn": tiny.huginn}[name]()
    policy = ExitPolicy("cdf", 0.6) if name == "ouro" else ExitPolicy("latent-diff", 0.6)
    batch = [Request("a", [3, 5, 7], 3, policy), Request("b", [2, 9, 4, 1], 4, policy)]
    config = EngineConfig(max_residents=2, prefill_tokens=3, kv_layout=layout, ride=True)
    engine = Engine(model, replace(config, attention="triton", graphs=graphs))
    assert engine.attention == "triton"
    assert engine.runner.contexts.plan_class is TritonPlan
    ours = {r.id: r for r in engine.run(batch)}
    theirs = {r.id: r for r in Engine(model, replace(config, attention="sdpa")).run(batch)}
    assert {d for r in ours.values() for d in r.executed_depths[1:]} != {model.dims.max_loops}
    for name, result in theirs.items():
        assert ours[name].tokens == result.tokens
        assert ours[name].executed_depths == result.executed_depths
        assert ours[name].logprobs == pytest.approx(result.logprobs, abs=1e-9)


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import triton.language as tl
from cdbench.runtime.attention import triton_kernels as kernels

assert not kernels.IS_INTERPRETED
def made(kernel, pointers, values, constants):
    names = kernel.arg_names
    signature = {name: pointers.get(name) or values.get(name) or "constexpr" for name in names}
    source = ASTSource(kernel, signature, {(names.index(n),): v for n, v in constants.items()})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]

for number, precise, name, parts, heads, size, block in (
    ("bf16", "fp32", tl.float32, 4, 2, 48, 16),
    ("fp64", "fp64", tl.float64, 1, 2, 48, 16),
    # One query head a key/value head, as the published models have it.
    ("bf16", "fp32", tl.float32, 1, 1, 128, 64),
    ("bf16", "fp32", tl.float32, 16, 1, 96, 64),
    ("fp64", "fp64", tl.float64, 8, 1, 12, 64),
):
    out = number if parts == 1 else precise
    text = made(
        kernels._attend_part,
        {"queries": "*" + number, "pool": "*" + number, "table": "*i32", "reads": "*i64",
         "out": "*" + out, "sums": "*" + out},
        {"token_stride": "i32", "head_stride": "i32"},
        {"GROUPS": 2, "PER_GROUP": heads, "HEAD": size, "M": heads,
         "E": triton.next_power_of_2(size), "N": block, "PARTS": parts, "PRECISE": name},
    )
    assert "ld.global" in text
text = made(
    kernels._join_parts,
    {"parts": "*fp32", "sums": "*fp32", "out": "*bf16"},
    {},
    {"HEAD": 48, "E": 64, "PARTS": 4},
)
assert "st.global" in text
"""


def test_the_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """Their types and shapes are those a compiler takes, not the interpreter alone."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_auto_takes_triton_on_a_gpu_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    assert [choose_backend("auto", device) for device in (CPU, gpu)] == ["sdpa", "triton"]
    assert [choose_backend("sdpa", device) for device in (CPU, gpu)] == ["sdpa", "sdpa"]
    monkeypatch.setattr(backends, "has_triton", lambda: False)
    assert choose_backend("auto", gpu) == "sdpa"
    assert plan_class("sdpa") is SdpaPlan
    with pytest.raises(UsageError, match=r"needs the package triton.*; install it, or use auto"):
        choose_backend("triton", gpu)


def test_triton_on_a_cpu_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "is_interpreted", lambda: False)
    with pytest.raises(UsageError, match="runs on a GPU, and this is cpu; use auto or sdpa"):
        make_plan(planned("triton"))
    with pytest.raises(UsageError, match="unknown; use auto, sdpa or triton"):
        Engine(tiny.ouro(), EngineConfig(attention="flash"))


@pytest.mark.parametrize(("asked", "ran"), [("auto", "sdpa"), ("triton", "triton")])
def test_results_and_stage_curves_say_what_ran(asked: str, ran: str) -> None:
    plan = make_plan(planned(asked))
    assert model_facts(plan).attention == ran
    assert stage_key(plan).attention == ran
    said = [note for note in plan.notes if "interpreter" in note]
    assert len(said) == (ran == "triton")


def planned(attention: str):
    keys = {
        **{"model": str(tiny.FIXTURE), "dense": "", "modes": "static,cdb", "work": "equal"},
        **{"exit.rule": "cdf@0.5", "device": "cpu", "workload.source": "x.jsonl"},
    }
    return load_config(None, (), {**keys, "engine.attention": attention})

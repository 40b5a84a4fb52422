"""Captured launches: on a CPU the same buckets, padding, buffers and replays as on a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cdbench.runtime.attention.captured import PaddedPlan, Reads, captured_attention
from cdbench.runtime.attention.sdpa import SdpaPlan
from cdbench.runtime.core import ExitPolicy, LaunchLog, Request, Stage
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.graphs import StageGraphs, context_bucket, row_bucket, row_buckets
from cdbench.runtime.recorders import WARM_UPS, HostRecorder, Outputs, pool_bytes, recorder_of
from tests import tiny
from tests.late import LateDevice
from tests.pressure import (
    LAYOUTS,
    MODELS,
    draw_batch,
    draw_config,
    model_of,
    oracle_of,
    palette_of,
    serve,
)

randoms = st.randoms(use_true_random=False)


def batch_of(count: int, tokens: int, policy: ExitPolicy, prompt: int = 3) -> list[Request]:
    rng = random.Random(count)
    return [
        Request(
            str(i),
            [rng.randrange(23) for _ in range(prompt)],
            max_new_tokens=tokens + i % 3,
            exit=policy,
        )
        for i in range(count)
    ]


def graphs_of(engine: Engine) -> StageGraphs:
    assert engine.runner.graphs is not None
    return engine.runner.graphs


# Buckets.


def test_rows_are_captured_in_powers_of_two_up_to_the_width() -> None:
    assert row_buckets(1) == [1]
    assert row_buckets(8) == [1, 2, 4, 8]
    assert row_buckets(11) == [1, 2, 4, 8, 11]


@given(width=st.integers(1, 300), data=st.data())
def test_a_launch_takes_the_least_bucket_that_holds_it(width: int, data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, width))
    held = [bucket for bucket in row_buckets(width) if bucket >= rows]
    assert row_bucket(rows, width) == held[0]


def test_contexts_are_padded_by_less_than_half() -> None:
    known = {1: 64, 64: 64, 65: 96, 97: 128, 129: 192, 193: 256, 300: 384, 385: 512}
    assert {n: context_bucket(n, 4096) for n in known} == known
    assert context_bucket(3900, 4032) == 4032, "no longer than the table"
    for positions in range(64, 5000):
        assert positions <= context_bucket(positions, 10**6) < 1.5 * positions + 1


# Recording.


def test_a_graph_on_a_cpu_reads_its_inputs_anew_and_writes_the_same_results() -> None:
    x = torch.tensor([1.0, 2.0])
    recorder = HostRecorder()
    graph = recorder.record(lambda: (x * 2, x.sum()[None]))
    first = graph.replay()
    assert [values.tolist() for values in first] == [[2.0, 4.0], [3.0]]
    x.copy_(torch.tensor([5.0, 7.0]))
    again = graph.replay()
    assert all(a is b for a, b in zip(first, again, strict=True))
    assert [values.tolist() for values in again] == [[10.0, 14.0], [12.0]]
    assert recorder.bytes == 12
    del graph
    assert recorder.bytes == 0, "a graph that was dropped holds nothing"
    assert isinstance(recorder_of(torch.device("cpu")), HostRecorder)


def test_the_memory_of_a_pool_is_that_of_its_segments() -> None:
    segments: list[dict[str, Any]] = [
        {"segment_pool_id": (0, 0), "total_size": 5},
        {"segment_pool_id": (0, 3), "total_size": 7},
        {"segment_pool_id": (0, 3), "total_size": 11},
        {"total_size": 13},
    ]
    assert pool_bytes(segments, (0, 3)) == 18


class FakeCuda:
    """The calls that a CUDA recorder makes, in order; captured functions run at once."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.inside = "default"

    def __getattr__(self, name: str) -> Any:
        if name == "Stream":
            return lambda device: FakeStream(self, "side", device)
        if name == "current_stream":
            return lambda device: FakeStream(self, "default", device)
        if name == "graph_pool_handle":
            return lambda: (0, 7)
        if name == "CUDAGraph":
            return lambda: self
        if name == "memory_snapshot":
            return lambda: [{"segment_pool_id": (0, 7), "total_size": 4096}]
        raise AttributeError(name)

    def replay(self) -> None:
        self.calls.append("replay")

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.inside = stream.name
        yield
        self.inside = "default"

    @contextlib.contextmanager
    def graph(self, graph: Any, **how: Any) -> Iterator[None]:
        assert how["pool"] == (0, 7)
        assert how["capture_error_mode"] == "thread_local"
        self.inside = f"capture on {how['stream'].name}"
        yield
        self.inside = "default"


@dataclasses.dataclass
class FakeStream:
    cuda: FakeCuda
    name: str
    device: torch.device

    def wait_stream(self, other: FakeStream) -> None:
        self.cuda.calls.append(f"{self.name} waits for {other.name}")


def test_cuda_graphs_are_captured_after_warming_up_on_a_stream_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = FakeCuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    recorder = recorder_of(torch.device("cuda"))
    made: list[Outputs] = []

    def function() -> Outputs:
        cuda.calls.append(cuda.inside)
        made.append((torch.zeros(1),))
        return made[-1]

    graph = recorder.record(function)
    assert cuda.calls == [
        "side waits for default",
        *["side"] * WARM_UPS,
        "default waits for side",
        "capture on side",
    ]
    assert graph.replay() is made[-1], "the results are those of the capture"
    assert cuda.calls[-1] == "replay"
    assert len(made) == WARM_UPS + 1, "a replay does not run the function"
    assert recorder.bytes == 4096


# The attention of captured launches.


@pytest.mark.parametrize("context", [9, 12, 64])
@torch.inference_mode()
def test_padded_attention_equals_sdpa_whatever_the_padding_reads(context: int) -> None:
    """Rows beyond a query's position weigh nothing, and rows that fill up a launch harm nobody."""
    engine = Engine(model_of("staged"), EngineConfig(max_residents=4))
    list(engine.run(batch_of(4, 5, ExitPolicy())))
    cache = engine.cache.stages[Stage.CORE]
    generator = torch.Generator().manual_seed(3)
    for layer in cache.pool.layers:
        layer[1:] = torch.randn(layer[1:].shape, generator=generator, dtype=torch.float64)
    cache.table.host[:, :, :9] = np.random.default_rng(1).integers(1, cache.pool.rows, (4, 4, 9))
    residents, slots, positions = np.array([2, 0, 3]), np.array([1, 3, 0]), np.array([8, 0, 5])
    plain = SdpaPlan(cache, residents, slots, positions, [], torch.float64)
    padded = [np.append(x, [0, 0]) for x in (residents, slots, positions)]
    plan = PaddedPlan(cache, Reads(*map(torch.from_numpy, padded)), context)
    q = torch.randn(5, 4, 4, generator=generator, dtype=torch.float64)
    unused = torch.empty(0)
    for number in range(2):
        wanted = plain.attend(number, q[:3], unused, unused)
        found = plan.attend(number, q, unused, unused)
        assert found.isfinite().all()
        torch.testing.assert_close(found[:3], wanted, rtol=0, atol=1e-12)
    assert captured_attention("sdpa").pads
    assert not captured_attention("triton").pads


# Serving.


def test_a_launch_is_captured_once_for_its_rows_and_replayed_after() -> None:
    log = LaunchLog()
    config = EngineConfig(max_residents=6, graphs=True)
    engine = Engine(model_of("staged"), config, observer=log)
    batch = batch_of(6, 8, ExitPolicy("cdf", 0.5))
    list(engine.run(batch))
    captures = engine.captures
    widths = {(r.stage, row_bucket(r.decode_rows, 6)) for r in log.records if r.decode_rows}
    assert captures == len(widths), "one context, so one graph for each number of rows"
    list(engine.run([dataclasses.replace(r, id=f"again {r.id}") for r in batch]))
    assert engine.captures == captures
    assert graphs_of(engine).seconds > 0
    assert graphs_of(engine).recorder.bytes > 0


def test_capturing_ahead_leaves_nothing_to_capture_and_touches_nothing() -> None:
    # With a budget the pools have their sizes from the start.
    config = EngineConfig(max_residents=5, graphs=True, kv_budget_bytes=200_000)
    engine = Engine(model_of("staged"), config)
    batch = batch_of(5, 8, ExitPolicy("cdf", 0.5))
    first = {r.id: r.tokens for r in engine.run(batch[:1])}
    engine.capture()
    captures = engine.captures
    assert captures == 3 * len(row_buckets(5))
    engine.capture()
    assert engine.captures == captures
    for request in batch:
        engine.submit(dataclasses.replace(request, id=f"{request.id} again"))
    for _ in range(7):
        engine.tick()
    held = [t.clone() for c in engine.cache.stages.values() for t in c.pool.layers]
    state = engine.runner.carried.state.clone()
    graphs_of(engine)._stages[Stage.CORE].graphs.clear()
    engine.capture()
    assert engine.captures == captures + len(row_buckets(5))
    now = [t for c in engine.cache.stages.values() for t in c.pool.layers]
    for before, after in zip(held, now, strict=True):
        assert torch.equal(before[:-1], after[:-1]), "a row that somebody holds was written"
    assert torch.equal(state, engine.runner.carried.state)
    tokens = {r.id: r.tokens for r in engine.run()}
    assert tokens["0 again"] == first["0"]
    assert engine.captures == captures + len(row_buckets(5))


def test_a_new_context_is_captured_and_growing_memory_captures_anew() -> None:
    engine = Engine(model_of("staged"), EngineConfig(max_residents=2, graphs=True))
    (small,) = batch_of(1, 4, ExitPolicy())
    list(engine.run([small]))
    captures = engine.captures
    assert captures == 3
    # A longer table and a larger pool have other addresses.
    model = model_of("staged")
    longest = model.dims.max_positions
    tall = dataclasses.replace(small, id="tall", max_new_tokens=longest - 3)
    assert longest == 64, "no second context fits this model"
    list(engine.run([tall]))
    assert engine.captures == 2 * captures
    assert {len(of.graphs) for of in graphs_of(engine)._stages.values()} == {1}


class Capturing(HostRecorder):
    """A recorder whose graphs break where something outside moves what they were captured on."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine, self.replays = engine, Counter[str]()

    def record(self, function: Any) -> Any:
        graph = super().record(function)
        places = self.places()
        replay = graph.replay

        def checked() -> Outputs:
            self.replays["all"] += 1
            assert self.places() == places, "a captured address moved"
            return replay()

        graph.replay = checked  # type: ignore[method-assign]
        return graph

    def places(self) -> list[int]:
        runner = self.engine.runner
        carried: list[Tensor | None] = [
            runner.carried.state,
            runner.carried.injection,
            runner.carried.readout,
            runner.tokens,
            runner.residents.halt_at,
            graphs_of(self.engine)._inputs,
        ]
        return [t.data_ptr() for t in carried if t is not None]


def with_graphs(config: EngineConfig, rng: random.Random) -> EngineConfig:
    return dataclasses.replace(config, graphs=True, ride=rng.random() < 0.5)


@settings(max_examples=20)
@given(rng=randoms, name=st.sampled_from(list(MODELS)))
def test_captured_launches_change_no_result(rng: random.Random, name: str) -> None:
    """Any rule, lag, floor, layout, mode, memory pressure and cancellation; chunks that ride.

    Half of them on a device that runs behind as well.
    """
    model = model_of(name)
    batch = draw_batch(rng, palette_of(name, rng.randint(0, 3)), most=7)
    config = with_graphs(draw_config(rng, model, batch), rng)
    late = rng.random() < 0.5

    def prepare(engine: Engine) -> None:
        graphs_of(engine).recorder = Capturing(engine)
        if late:
            LateDevice().take(engine)

    served = serve(model, config, batch, rng, rng.choice([0.0, 0.1]), prepare=prepare)
    oracle_of(name).check(served, batch)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["cdb", "lockstep", "static", "static@2"])
def test_tokens_depths_and_launches_are_the_same_with_and_without(mode: str, layout: str) -> None:
    """The very launches, of as many live rows; chunks ride without a graph beside captured ones."""
    policy = ExitPolicy("latent-diff", 0.6, lag=1)
    batch = [
        dataclasses.replace(r, arrival_s=9.0 * (int(r.id) // 2))
        for r in batch_of(7, 6, policy, prompt=5)
    ]
    found = []
    for graphs in (False, True):
        log = LaunchLog()
        config = EngineConfig(
            mode=mode,
            max_residents=5,
            width=3,
            kv_layout=layout,
            prefill_tokens=3,
            min_free_residents=1,
            ride=True,
            graphs=graphs,
        )
        engine = Engine(model_of("huginn"), config, clock=tiny.StepClock(), observer=log)
        results = {r.id: r for r in engine.run(batch)}
        found.append((results, [(r.stage, r.decode_rows, r.prefill_rows) for r in log.records]))
    (plain, launches), (captured, same) = found
    assert launches == same
    assert any(decode and prompt for _, decode, prompt in launches), "no chunk rode"
    for name, result in plain.items():
        assert captured[name].tokens == result.tokens
        assert captured[name].executed_depths == result.executed_depths
        assert captured[name].requested_depths == result.requested_depths
        assert captured[name].logprobs == pytest.approx(result.logprobs, abs=1e-6)


def test_a_pack_of_prompts_wider_than_a_launch_is_read_out_without_a_graph() -> None:
    policy = ExitPolicy("entropy-diff", 0.3)
    results = []
    for graphs in (False, True):
        config = EngineConfig(max_residents=6, width=2, first_token="select", graphs=graphs)
        engine = Engine(model_of("ouro"), config)
        results.append(
            {r.id: (r.tokens, r.executed_depths) for r in engine.run(batch_of(6, 3, policy))}
        )
    assert results[0] == results[1]


def test_rows_that_fill_up_a_launch_write_the_scratch_row_alone() -> None:
    """With poison there nobody's result changes."""
    model = model_of("staged")
    batch = batch_of(5, 6, ExitPolicy("cdf", 0.5))
    wanted = {r.id: r.tokens for r in Engine(model, EngineConfig(max_residents=5)).run(batch)}
    engine = Engine(model, EngineConfig(max_residents=5, graphs=True, kv_budget_bytes=200_000))
    for request in batch:
        engine.submit(request)
    while engine.tick():
        for cache in engine.cache.stages.values():
            for layer in cache.pool.layers:
                assert not layer[0].any(), "row 0 was written"
                layer[cache.pool.scratch_row] = torch.nan
    found = {r.id: r.tokens for r in engine.run()}
    assert found == wanted
    assert engine.captures

"""Work of the engine, counted: flat in the queue, flat or linear in the width, flat over time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cdbench.models.base import StagedModel
from cdbench.runtime.core import BoolArray, ExitPolicy, IntArray, Request
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.residents import Residents
from scripts.counting import Work, counted
from scripts.null_model import NullModel
from scripts.work_per_tick import small_model, stretch
from tests import tiny

MODES = ["cdb", "lockstep", "static"]


@contextmanager
def no_collection() -> Iterator[None]:
    """A collection may call code whenever it comes."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def network() -> StagedModel:
    return small_model()


def test_ten_thousand_waiting_requests_cost_a_tick_what_ten_do(network: StagedModel) -> None:
    few, many = (stretch(network, "cdb", width=4, waiting=n, ticks=24) for n in (10, 10_000))
    assert few.work.operations > 0
    assert few.admitted == many.admitted
    assert few.work == many.work


GATE, STATES = ExitPolicy("cdf", 0.5), ExitPolicy("latent-diff", 0.01)


def staggered(number: int, loops: int, tokens: int, policy: ExitPolicy) -> Request:
    """Full depth but for the first later token, so that of R residents one exits at every loop."""
    return Request(
        id=str(number),
        prompt=[1, 2, 3],
        exit=policy,
        force=[number % 7] * tokens,
        replay_depths=[loops, 1 + number % loops, *[loops] * (tokens - 2)],
    )


def decode_work(
    model: StagedModel, policy: ExitPolicy, mode: str, width: int, ticks: int = 24
) -> Work:
    """Counts of ticks in which no request comes or ends, and some token exits at every loop."""
    engine, loops = (
        Engine(model, EngineConfig(mode=mode, max_residents=width)),
        model.dims.max_loops,
    )
    for number in range(width):
        engine.submit(staggered(number, loops, tokens=40, policy=policy))
    while engine.schedule.in_flight < width:
        engine.tick()
    for _ in range(4 * loops):
        engine.tick()
    with no_collection(), counted() as work:
        for _ in range(ticks):
            engine.tick()
    assert engine.residents.occupied_count == width, "none has ended"
    return work


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("model", "policy"),
    [(NullModel(), GATE), (tiny.universal(), ExitPolicy("act", 0.9)), (tiny.huginn(), STATES)],
    ids=["null", "universal", "huginn"],
)
def test_a_tick_runs_the_same_code_at_every_width_over_elements_in_proportion(
    model: StagedModel, policy: ExitPolicy, mode: str
) -> None:
    narrow, wide = (decode_work(model, policy, mode, width) for width in (4, 64))
    assert (wide.operations, wide.calls, wide.lines) == (
        narrow.operations,
        narrow.calls,
        narrow.lines,
    )
    assert narrow.elements < wide.elements <= 16 * narrow.elements


def test_a_loop_over_rows_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property above can fail: here, where a launch looks at its rows one by one."""
    right = Residents.exited

    def row_by_row(self: Residents, residents: IntArray) -> BoolArray:
        for resident in residents:
            self.request(int(resident))
        return right(self, residents)

    monkeypatch.setattr(Residents, "exited", row_by_row)
    narrow, wide = (decode_work(NullModel(), GATE, "cdb", width) for width in (4, 64))
    assert wide.calls > narrow.calls


def short_requests(begin: int, count: int) -> Iterator[Request]:
    for number in range(begin, begin + count):
        yield Request(
            id=str(number),
            prompt=[1 + number % 7, number % 11, 3][: 1 + number % 3],
            max_new_tokens=1 + number % 4,
            exit=ExitPolicy("fixed", depth=1 + number % 4),
        )


def held(engine: Engine) -> dict[str, int]:
    """Bytes and entries of all that could grow as requests come and go."""
    cache, res = engine.cache, engine.residents
    tables = [t for c in cache.stages.values() for t in (c.table, c.by_loop) if t is not None]
    return {
        "rows": sum(c.pool.rows for c in cache.stages.values()),
        "rows in use": cache.rows_in_use if cache.prefixes is None else 0,
        "free list": sum(c.pool._free.size for c in cache.stages.values()),
        "tables": sum(t.host.nbytes for t in tables),
        "outputs": res.outputs.tokens.nbytes + res.forced.nbytes + res.scripted_depth.nbytes,
        "rule memory": sum(t.numel() for t in res.memories.by_rule.values()),
        "ids": len(engine._known),
        "pins": len(cache._pinned),
    }


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(max_residents=8, kv_layout="first-shared"),
        EngineConfig(max_residents=8, kv_budget_bytes=40_000, prefix_cache=True),
    ],
    ids=["plain", "prefixes"],
)
def test_nothing_grows_over_thousands_of_requests(config: EngineConfig) -> None:
    engine = Engine(NullModel(), config)
    # Pools grow to what the longest requests need together, and no further.
    longest = [Request(f"long {i}", [1, 2, 3], max_new_tokens=4) for i in range(8)]
    assert all(result.error is None for result in engine.run(longest))
    sizes, objects = [], []
    for part in range(3):
        for result in engine.run(short_requests(500 * part, 500)):
            assert result.error is None
        del result
        gc.collect()
        sizes.append(held(engine))
        objects.append(len(gc.get_objects()))
    assert sizes[0] == sizes[1] == sizes[2]
    # What the garbage collector knows of, of anything; the first part also made what stays.
    assert objects[2] - objects[1] < 50

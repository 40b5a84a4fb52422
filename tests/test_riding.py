"""Prompt chunks that share core launches with decode rows: nothing changes but the launches."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdbench.metrics.curves import CurveStage
from cdbench.metrics.launches import ms_per_loop
from cdbench.metrics.rates import decode_wall_s
from cdbench.metrics.riding import mixed, with_prefill_shares
from cdbench.metrics.trace import RunTrace
from cdbench.metrics.work import ModelWork
from cdbench.runtime.core import (
    ExitPolicy,
    IntArray,
    LaunchLog,
    LaunchRecord,
    Request,
    Stage,
)
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.schedules.base import Verdict, Work
from cdbench.runtime.schedules.cdb import ContinuousDepth
from cdbench.runtime.schedules.lockstep import Lockstep
from tests import tiny
from tests.curve_fakes import Line, measured
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
from tests.reference import assert_equals_alone
from tests.test_schedules import answer, ids, take

LINES: dict[CurveStage, Line] = {
    "core": Line(1.0, 0.1),
    "coda": Line(0.9, 0.1),
    "prelude": Line(0.3, 0.0),
    "prefill": Line(2.0, 1.0),
}
CURVES = measured(LINES, widest=16)


@settings(max_examples=25)
@given(rng=st.randoms(use_true_random=False), name=st.sampled_from(list(MODELS)))
def test_riding_an_automatic_minimum_and_a_limit_change_no_result(
    rng: random.Random, name: str
) -> None:
    """Any model, rule, layout, budget and order: what each request yields alone, in float64."""
    model = model_of(name)
    batch = draw_batch(rng, palette_of(name, rng.randint(0, 3)), most=7)
    config = replace(
        draw_config(rng, model, batch),
        ride=rng.random() < 0.8,
        coda_min_rows=rng.choice(["auto", "auto", 1, 3]),
        max_itl_s=rng.choice([None, None, 0.1, 12.0, 40.0]),
    )
    prepared = rng.random() < 0.8
    loops = model.dims.max_loops
    served = serve(
        model,
        config,
        batch,
        rng,
        cancel_rate=rng.choice([0.0, 0.0, 0.05]),
        prepare=lambda engine: engine.use_curves(CURVES, loops) if prepared else None,
    )
    oracle_of(name).check(served, batch)


EXIT = ExitPolicy("cdf", 0.6)


def arriving(count: int = 6) -> list[Request]:
    """Requests that arrive while others decode."""
    return [
        Request(str(i), [(3 * i + j) % 23 for j in range(3 + i)], 6, EXIT, arrival_s=20.0 * i)
        for i in range(count)
    ]


def launches(model: str, **config: object) -> list[LaunchRecord]:
    """The launches of ``arriving``, all of whose results are those of each request alone."""
    log = LaunchLog()
    sizes = {"max_residents": 4, "min_free_residents": 1, "prefill_tokens": 3, "ride": True}
    settings = EngineConfig(**{**sizes, **config})  # type: ignore[arg-type]
    engine = Engine(model_of(model), settings, clock=tiny.StepClock(), observer=log)
    results = {r.id: r for r in engine.run(arriving())}
    if settings.mode != "static" and settings.first_token == "full":
        for request in arriving():
            assert_equals_alone(model_of(model), request, results[request.id], settings.kv_layout)
    core = [r for r in log.records if r.stage is Stage.CORE]
    assert sum(r.decode_rows for r in core) == sum(r.token_loops for r in results.values())
    prompts = sum(len(request.prompt) for request in arriving())
    assert sum(r.prefill_rows for r in core) == prompts * model_of(model).dims.max_loops
    return log.records


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["cdb", "lockstep", "static"])
def test_chunks_ride_in_core_launches_alone_in_every_mode(mode: str, layout: str) -> None:
    records = launches("ouro", mode=mode, kv_layout=layout)
    riding = [r for r in records if r.prefill_rows and r.decode_rows]
    assert len(riding) > 5
    assert {r.stage for r in riding} == {Stage.CORE}
    assert all(r.decode_loops is not None and r.decode_loops.size == r.decode_rows for r in riding)
    assert not [
        r for r in launches("ouro", mode=mode, ride=False) if r.prefill_rows and r.decode_rows
    ]


@pytest.mark.parametrize("model", ["staged", "huginn", "universal"])
def test_models_with_injections_boundary_layers_and_readouts_take_chunks_along(model: str) -> None:
    rule = "act" if model == "universal" else "latent-diff"
    log = LaunchLog()
    config = EngineConfig(
        max_residents=4, min_free_residents=1, prefill_tokens=3, ride=True, coda_min_rows=2
    )
    engine = Engine(model_of(model), config, clock=tiny.StepClock(), observer=log)
    batch = [replace(r, exit=ExitPolicy(rule, 0.6)) for r in arriving()]
    results = {r.id: r for r in engine.run(batch)}
    for request in batch:
        assert_equals_alone(model_of(model), request, results[request.id], config.kv_layout)
    assert sum(r.prefill_rows > 0 and r.decode_rows > 0 for r in log.records) > 5


def test_a_selected_first_token_is_the_same_where_its_chunk_rides() -> None:
    def tokens(ride: bool) -> dict[str, tuple[list[int], list[int]]]:
        config = EngineConfig(
            max_residents=4, min_free_residents=1, first_token="select", ride=ride
        )
        engine = Engine(model_of("ouro"), config, clock=tiny.StepClock())
        return {r.id: (r.tokens, r.requested_depths) for r in engine.run(arriving())}

    assert tokens(True) == tokens(False)


# The schedules.


def test_cdb_takes_a_chunk_along_in_place_of_a_prefill_and_after_a_coda_that_is_due() -> None:
    schedule = ContinuousDepth(width=4)
    schedule.enter(ids(0, 1, 2))
    launch = schedule.next_launch(prefill_offered=True, may_ride=True)
    assert launch is not None
    assert (launch.work, launch.rides, launch.residents.tolist()) == (Work.CORE, True, [0, 1, 2])
    answer(schedule, launch, Verdict.EXIT, Verdict.LOOP, Verdict.LOOP)
    due = schedule.next_launch(prefill_offered=True, may_ride=True)
    assert due is not None
    assert (due.work, due.rides) == (Work.CODA, False)


@pytest.mark.parametrize("schedule", [ContinuousDepth(4, 4), Lockstep(4)])
def test_a_chunk_with_no_core_rows_to_ride_with_runs_alone(
    schedule: ContinuousDepth | Lockstep,
) -> None:
    alone = schedule.next_launch(prefill_offered=True, may_ride=True)
    assert alone is not None
    assert alone.work is Work.PREFILL


def test_lockstep_takes_a_chunk_along_in_the_middle_of_a_batch() -> None:
    schedule = Lockstep(width=2)
    schedule.enter(ids(0, 1))
    answer(schedule, take(schedule, Work.CORE), Verdict.LOOP, Verdict.EXIT)
    shrunk = schedule.next_launch(prefill_offered=True, may_ride=True)
    assert shrunk is not None
    assert (shrunk.work, shrunk.rides, shrunk.residents.tolist()) == (Work.CORE, True, [0])


# What a mixed launch costs whom.


WORK = ModelWork(
    prelude=2.0,
    core=10.0,
    coda_body=8.0,
    head=99.0,
    prelude_layers=1,
    core_layers=2,
    coda_layers=1,
    attention=0.5,
    max_loops=4,
)


def trace(*records: LaunchRecord) -> RunTrace:
    return RunTrace(
        mode="cdb",
        requests=(),
        launches=records,
        wall_s=100.0,
        width=16,
        max_residents=16,
        max_loops=4,
    )


def core(decode: int, prompt: int, took_s: float, loops: IntArray | None = None) -> LaunchRecord:
    rows = ids(*[1] * decode) if loops is None else loops
    return LaunchRecord(Stage.CORE, decode, prompt, rows if decode else None, 20, 9, 1.0, took_s)


def test_a_mixed_launch_is_split_as_its_parts_would_have_taken_apart() -> None:
    # A chunk of 8 takes 2 + 8 = 10 in all; a loop is 10 of its 2 + 4·10 + 8 = 50 FLOPs: 2 s.
    # A core launch of 10 decode rows takes 1 + 10·0.1 = 2 s as well: half of 6 s is the prompt's.
    split = with_prefill_shares(trace(core(10, 8, 6.0)), CURVES, WORK, 4, rule_computes=False)
    assert decode_wall_s(split) == pytest.approx(100 - 3)
    assert ms_per_loop(split) == pytest.approx(3000)
    assert decode_wall_s(trace(core(10, 8, 6.0))) is None


def test_the_rule_is_paid_for_by_decode_rows() -> None:
    dear = measured({**LINES, "core_with_exit": Line(5.0, 0.1)}, widest=16)
    split = with_prefill_shares(trace(core(10, 8, 8.0)), dear, WORK, 4, rule_computes=True)
    assert decode_wall_s(split) == pytest.approx(100 - 8 * 2 / (2 + 6))


def test_a_chunk_beyond_those_measured_goes_on_in_proportion() -> None:
    split = with_prefill_shares(trace(core(10, 128, 8.0)), CURVES, WORK, 4, rule_computes=False)
    assert split.prefill_share is not None
    whole_s = 2 * (2.0 + 64)
    assert split.prefill_share(split.launches[0]) == pytest.approx(
        0.2 * whole_s / (0.2 * whole_s + 2)
    )


def test_decode_rows_beyond_the_curves_leave_the_launch_whole() -> None:
    assert (
        decode_wall_s(with_prefill_shares(trace(core(17, 8, 6.0)), CURVES, WORK, 4, False)) is None
    )


def test_only_launches_of_both_kinds_of_rows_are_mixed() -> None:
    made = trace(core(10, 0, 1.0), core(0, 8, 1.0), core(1, 1, 1.0))
    assert mixed(made) == [made.launches[2]]

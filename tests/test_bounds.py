"""Bounds on the gain, worked out by hand, and the one division that makes a share of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from cdbench.bench.beyond import measuring_errors
from cdbench.bench.bounds import bounds_of, with_other_requests
from cdbench.bench.compared import compare
from cdbench.bench.equal import RecordedRequest, TimedRun
from cdbench.bench.facts import facts_of, model_work
from cdbench.bench.plan import Plan, make_plan
from cdbench.bench.waterfall import NOTHING_REDRAWN, Redrawn
from cdbench.config import load_config
from cdbench.grammar import parse_mode
from cdbench.metrics.bounds import (
    Bound,
    MismatchError,
    Residents,
    Scope,
    Speedup,
    Work,
    above_one,
    cost_ratio,
    flop_bound,
    realised,
    time_bound,
)
from cdbench.metrics.curves import Curves
from cdbench.metrics.ideal import LaterTokens, Packing, later_tokens, prefill_s
from cdbench.metrics.launches import floor_ms_per_loop, ms_per_loop, with_floors
from cdbench.metrics.rates import steady_decode_throughput, steady_window
from cdbench.metrics.steady import SteadyRun, steady_run, steady_share, window_tokens
from cdbench.metrics.trace import RunTrace
from cdbench.metrics.work import ModelWork, decode_flops, prompt_flops, work_bound
from cdbench.models.base import StagedModel
from cdbench.render.bounds import bounds_table
from cdbench.render.markdown import to_markdown
from cdbench.render.verdict import sentences
from cdbench.runtime.core import (
    ExitPolicy,
    FinishReason,
    LaunchRecord,
    Request,
    RequestResult,
    Stage,
)
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.schema import BoundRecord, IntervalRecord, Waterfall, WaterfallRow
from cdbench.schema.repeats import ModeFacts
from cdbench.stats.interval import Interval
from tests.curve_fakes import Line, LinearCurves
from tests.test_huginn_model import PUBLISHED, PUBLISHED_OURO, on_meta
from tests.test_verdict import make_result
from tests.tiny import huginn, ouro

R = 4
CURVES = LinearCurves()

# --- the paper's figures, from the published dimensions ---


def published(name: str) -> StagedModel:
    if name == "huginn":
        return on_meta(PUBLISHED)
    layers = {"ouro-1.4b": 24, "ouro-2.6b": 48}[name]
    return on_meta({**PUBLISHED_OURO, "num_hidden_layers": layers})


@pytest.mark.parametrize(
    ("name", "ratio"), [("ouro-1.4b", 0.08), ("ouro-2.6b", 0.04), ("huginn", 1.18)]
)
def test_cost_ratios_of_the_published_models(name: str, ratio: float) -> None:
    assert round(cost_ratio(published(name).flops_per_token()), 2) == ratio


@pytest.mark.parametrize(
    ("name", "loops", "depth", "bound"),
    [
        # Boundary stages over one loop: 100,663,296 / 1,233,127,424 = 0.081632 (half FLOPs);
        # (4 + 0.081632) / (2.5 + 0.081632)
        ("ouro-1.4b", 4, 2.5, 1.5810),
        # 100,663,296 / 2,466,252,800 = 0.040816
        ("ouro-2.6b", 4, 2.5, 1.5904),
        # layer 395,366,400: (4 layers + 346,030,080) / (4 layers + 55,756,800) = 1.177288
        ("huginn", 16, 8.0, 1.8717),
        ("huginn", 32, 8.0, 3.6151),
    ],
)
def test_flop_bounds_of_the_published_models(
    name: str, loops: int, depth: float, bound: float
) -> None:
    costs = published(name).flops_per_token()
    assert flop_bound(costs, loops, depth).value == pytest.approx(bound, abs=5e-5)


# --- work_bound ---

# Two layers in the core, one in prelude and coda; 10 FLOPs for each query, layer and position.
WORK = ModelWork(
    prelude=100.0,
    core=1000.0,
    coda_body=200.0,
    head=50.0,
    prelude_layers=1,
    core_layers=2,
    coda_layers=1,
    attention=10.0,
    max_loops=R,
)


def test_work_by_hand() -> None:
    # A prompt of 3: 3 · (100 + 4·1000 + 200) + 50; 6 query-position pairs · (1 + 4·2 + 1) layers.
    assert prompt_flops(WORK, [3]) == 3 * 4300 + 50 + 10 * 6 * 10
    # Later tokens at contexts 4 and 5 with 1 and 3 loops.
    tokens = later_tokens([(3, [4, 1, 3])])
    assert tokens.contexts.tolist() == [4, 5]
    matrices = 2 * (100 + 250) + 4 * 1000
    assert decode_flops(WORK, tokens) == matrices + 10 * (4 * (2 + 2) + 5 * (2 + 6))
    # With a readout at every loop, coda and head run 1 and 3 times, and the coda's layer with them.
    read = 2 * 100 + 4 * (1000 + 250)
    assert decode_flops(WORK, tokens, readout_every_loop=True) == read + 10 * (
        4 * (1 + 2 + 1) + 5 * (1 + 6 + 3)
    )


def test_work_bound_by_hand() -> None:
    static, adaptive = later_tokens([(3, [4, 4, 4])]), later_tokens([(3, [4, 1, 3])])
    bound = work_bound(WORK, [3], static, adaptive)
    full = 13_550 + 2 * 350 + 8 * 1000 + 10 * (4 + 5) * 10
    less = 13_550 + 2 * 350 + 4 * 1000 + 10 * (4 * 4 + 5 * 8)
    assert bound.value == pytest.approx(full / less)
    assert (bound.name, bound.scope, bound.note) == ("work_bound", Scope.E2E, None)
    read = work_bound(WORK, [3], static, static, readout_every_loop=True)
    assert read.value < 1
    assert "below 1" in (read.note or "")


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, R), min_size=1, max_size=5), min_size=1, max_size=4))
def test_prompts_and_attention_only_lower_the_flop_bound(depths: list[list[int]]) -> None:
    """With neither, work_bound is flop_bound; prompts run in full on both sides."""
    asked = later_tokens([(3, [R, *one]) for one in depths])
    full = later_tokens([(3, [R] * (1 + len(one))) for one in depths])

    class Costs:
        prelude, core, coda = WORK.prelude, WORK.core, WORK.coda_body + WORK.head

    plain = flop_bound(Costs(), R, float(asked.loops.mean()))
    bare = replace(WORK, attention=0.0)
    assert work_bound(bare, [], full, asked).value == pytest.approx(plain.value)
    assert 1 <= work_bound(bare, [3], full, asked).value <= plain.value + 1e-12


@pytest.mark.parametrize("mode", ["static", "cdb"])
@pytest.mark.parametrize("family", ["ouro", "huginn"])
def test_the_engine_does_the_work_that_is_counted(family: str, mode: str) -> None:
    """Matrix products counted by PyTorch in a run of the engine, attention and gate aside."""
    model = {"ouro": ouro, "huginn": huginn}[family]()
    prompts, depths = [[5, 7, 9, 3, 2], [1, 2, 3]], [[4, 1, 3, 2], [4, 2, 2]]
    engine = Engine(model, EngineConfig(mode=mode, max_residents=2))
    requests = [
        Request(
            str(i),
            prompt,
            exit=ExitPolicy("latent-diff", 0.1),
            force=[1] * len(asked),
            replay_depths=asked if mode == "cdb" else None,
        )
        for i, (prompt, asked) in enumerate(zip(prompts, depths, strict=True))
    ]
    with FlopCounterMode(display=False) as counter:
        results = list(engine.run(requests))
    counted = sum(
        count
        for op, count in counter.get_flop_counts()["Global"].items()
        if op in (torch.ops.aten.mm, torch.ops.aten.addmm)
    )
    gate = 2.0 * model.dims.hidden_size if model.dims.has_exit_gate else 0.0  # not run here
    work = replace(model_work(model, R), attention=0.0)
    work = replace(work, core=work.core - gate)
    tokens = later_tokens((r.prompt_tokens, r.executed_depths) for r in results)
    assert counted == prompt_flops(work, map(len, prompts)) + decode_flops(work, tokens)


# --- time_bound ---


def test_time_bound_by_hand() -> None:
    # Width 2, contexts 10 and 11: t̂_prelude 0.15, t̂_coda 0.5, t̂_core 1.0 and 1.1.
    static, adaptive = later_tokens([(9, [4, 4, 4])]), later_tokens([(9, [4, 1, 3])])
    packing = Packing(CURVES, 2)
    static_s, adaptive_s = packing.ideal_s(static), packing.ideal_s(adaptive)
    assert static_s == pytest.approx((0.3, 4 * 1.0 + 4 * 1.1, 1.0))
    assert adaptive_s == pytest.approx((0.3, 1.0 + 3.3, 1.0))
    bound = time_bound(static_s.total, adaptive_s.total)
    assert bound.value == pytest.approx(9.7 / 5.6)
    assert bound.scope == Scope.DECODE
    # Nine prompt tokens in chunks of up to 4: 1/4 + 0.25 s each, on both sides.
    prompts_s = prefill_s([9], CURVES, 4)
    assert prompts_s == pytest.approx(4.5)
    e2e = time_bound(static_s.total, adaptive_s.total, prompts_s)
    assert e2e.value == pytest.approx(14.2 / 10.1)
    assert e2e.scope == Scope.E2E
    reading = replace(packing, readout_every_loop=True).ideal_s(adaptive)
    assert reading.coda == pytest.approx(4 * 0.5)
    with pytest.raises(ValueError, match="above 0"):
        time_bound(0.0, 1.0)


def test_tokens_by_context_add_up_to_the_tokens() -> None:
    tokens = later_tokens([(9, [4, 4, 2, 1]), (10, [4, 3]), (9, [4])])
    contexts, counts, loops = tokens.by_context
    # Contexts 10, 11, 12 of the first request, 11 of the second; the third has first tokens alone.
    assert contexts.tolist() == [10, 11, 12]
    assert counts.tolist() == [1, 2, 1]
    assert loops.tolist() == [4, 2 + 3, 1]
    assert [part.size for part in later_tokens([(9, [4])]).by_context] == [0, 0, 0]


# --- the division ---

SPEEDUP = Speedup(Interval(1.2, 1.1, 1.3, 8), "cdb", "static", Scope.DECODE)
TIME = Bound("time_bound", 1.5, Scope.DECODE)
WHOLE = Bound("work_bound", 1.25, Scope.E2E)


def test_where_static_held_fewer_requests_only_time_has_a_share() -> None:
    """Its bound costs each side at its own width; FLOPs do not see what width is worth."""
    held = replace(SPEEDUP, residents=Residents(over=3, mode=5))
    assert realised(held, TIME).estimate == pytest.approx(1.2 / 1.5)
    for bound in (replace(TIME, name="flop_bound"), WHOLE):
        other = replace(held, scope=bound.scope)
        with pytest.raises(MismatchError, match="cdb held 5 requests at once and static 3"):
            realised(other, bound)
        assert realised(replace(other, residents=None), bound).estimate > 0


def test_a_share_is_the_speedup_scaled() -> None:
    share = realised(SPEEDUP, TIME)
    assert (share.estimate, share.low, share.high, share.n) == pytest.approx(
        (1.2 / 1.5, 1.1 / 1.5, 1.3 / 1.5, 8)
    )
    e2e = realised(replace(SPEEDUP, scope=Scope.E2E), WHOLE)
    assert e2e.estimate == pytest.approx(1.2 / 1.25)


@pytest.mark.parametrize(
    ("speedup", "bound", "words"),
    [
        (SPEEDUP, WHOLE, "only equal scopes"),
        (replace(SPEEDUP, scope=Scope.E2E), TIME, "only equal scopes"),
        (replace(SPEEDUP, work=Work.LIVE), TIME, "live"),
        (replace(SPEEDUP, over="lockstep"), TIME, "over static"),
        (SPEEDUP, replace(TIME, name="flop_bound_paper"), "no speed-up has the scope"),
    ],
)
def test_a_mismatch_is_refused(speedup: Speedup, bound: Bound, words: str) -> None:
    with pytest.raises(MismatchError, match=words):
        realised(speedup, bound)


def test_above_one_is_an_error_of_measuring_for_time_and_possible_for_flops() -> None:
    beyond, within = Interval(1.1, 1.05, 1.15, 6), Interval(1.1, 0.95, 1.15, 6)
    assert "a measuring error" in (above_one(TIME, beyond) or "")
    assert above_one(TIME, within) is None
    assert above_one(TIME, Interval(1.1, None, None, 3)) is None
    assert "static's own losses" in (above_one(WHOLE, within) or "")
    assert "attention" in (above_one(replace(TIME, name="flop_bound"), within) or "")
    assert above_one(WHOLE, Interval(0.9, 0.8, 1.0, 6)) is None


# --- the steady window ---


def request(id: str, depths: list[int], token_s: list[float], admitted_s: float) -> RequestResult:
    count = len(depths)
    return RequestResult(
        id=id,
        prompt_tokens=9,
        tokens=[0] * count,
        executed_depths=depths,
        requested_depths=depths,
        logprobs=[0.0] * count,
        text=None,
        stop_depth=None,
        finish_reason=FinishReason.LENGTH,
        error=None,
        arrival_s=0.0,
        admitted_s=admitted_s,
        token_s=token_s,
        finish_s=token_s[-1],
    )


# Two residents; b is the second to finish, at 4, while e waits; e is admitted at 7.
STEADY = RunTrace(
    "cdb",
    [
        request("a", [4, 1], [1.0, 3.0], 0.0),
        request("b", [4, 2], [1.0, 4.0], 0.0),
        request("c", [4, 1, 3], [3.5, 5.0, 7.0], 3.0),
        request("d", [4, 2], [6.0, 9.0], 4.5),
        request("e", [4, 1], [8.0, 9.5], 7.0),
    ],
    # Prefill from 3 to 4.5 (half a second within the window) and from 5.5 to 6.
    [
        LaunchRecord(Stage.CORE, 0, 9, None, 9, 3, 3.0, 1.5),
        LaunchRecord(Stage.CORE, 0, 9, None, 9, 3, 5.5, 0.5),
        LaunchRecord(Stage.CORE, 2, 0, None, 9, 3, 6.0, 1.0),
    ],
    wall_s=10.0,
    width=2,
    max_residents=2,
    max_loops=R,
)


def test_the_steady_window_takes_its_prefill_out_by_hand() -> None:
    window = steady_window(STEADY)
    assert window is not None
    assert (window.opened_s, window.closed_s, window.length_s) == (4.0, 7.0, 3.0)
    assert window.decode_s == pytest.approx(3.0 - 0.5 - 0.5)
    # Later tokens within: those of c at 5 and 7; d's at 6 is its first.
    assert steady_decode_throughput(STEADY) == pytest.approx(2 / 2.0)
    requested = {r.id: r.executed_depths for r in STEADY.requests}
    tokens = window_tokens(STEADY, window, requested)
    assert (tokens.contexts.tolist(), tokens.loops.tolist()) == ([10, 11], [1, 3])
    run = steady_run(0, STEADY, requested, Packing(CURVES, 2))
    # t̂: 0.65 + 1.0 and 0.65 + 3 · 1.1
    assert run is not None
    assert (run.block, run.mode) == (0, "cdb")
    assert (run.measured_s, run.ideal_s) == pytest.approx((1.0, (1.65 + 3.95) / 2))


def test_a_mixed_launch_in_the_window_needs_a_split() -> None:
    mixed = LaunchRecord(Stage.CORE, 1, 3, None, 9, 3, 4.5, 1.0)
    trace = replace(STEADY, launches=(*STEADY.launches, mixed))
    assert steady_decode_throughput(trace) is None
    split = replace(trace, prefill_share=lambda _: 0.25)
    assert steady_decode_throughput(split) == pytest.approx(2 / (2.0 - 0.25))


def test_steady_share_is_the_ratio_of_rates_over_the_bound_of_those_tokens() -> None:
    # At context 10 a token of so many loops costs 0.65 + loops · 1.0: 2.4 and 1.5 s.
    runs = [
        SteadyRun(block, mode, measured, tokens_at_10(loops), Packing(CURVES, 2))
        for block in range(6)
        for mode, measured, loops in (("static", 3.0, 1.75), ("cdb", 2.0, 0.85))
        for _ in range(2)
    ]
    share = steady_share(runs, "cdb", "static")
    assert share is not None
    assert share.speedup.estimate == pytest.approx(1.5)
    assert share.bound.estimate == pytest.approx(1.6)
    assert share.realised.estimate == pytest.approx(1.5 / 1.6)
    assert steady_share(runs[:3], "cdb", "static") is None
    # Where the boundary stages cost nothing, the same windows leave only loops to save.
    loops_alone = {**CURVES.lines, "prelude": Line(0, 0), "coda": Line(0, 0)}
    other = steady_share([r.on(LinearCurves(loops_alone)) for r in runs], "cdb", "static")
    assert other is not None
    assert other.speedup == share.speedup
    assert other.bound.estimate == pytest.approx(1.75 / 0.85)


def tokens_at_10(loops: float) -> LaterTokens:
    return LaterTokens(np.array([10.0]), np.array([loops]))


# --- of a run ---

PREFILL_TOKENS = 100

WORKLOAD = [
    RecordedRequest("a", None, None, (1,) * 9, (0, 0, 0), (4, 1, 3), (4, 1, 3)),
    RecordedRequest("b", None, None, (1,) * 9, (0, 0), (4, 2), (4, 2)),
]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return demo_plan()


def demo_plan(**changes: object) -> Plan:
    keys = {"model": "demo-ouro", "dense": "", "limit": 1, "device": "cpu", "exit": "cdf@0.5"}
    return make_plan(load_config(None, (), {**keys, "modes": "static,cdb", **changes}))


def timed(plan: Plan, cdb_wall_s: float = 10.5) -> list[TimedRun]:
    """Six blocks of walls: static 15 s, of which 3 s are prefill, as in cdb."""
    runs = []
    for block in range(6):
        for order, label in enumerate(("static", "cdb", "cdb", "static")):
            subject = plan.subject(parse_mode(label))
            trace = RunTrace(
                label,
                [
                    request("a", [4, 4, 4] if label == "static" else [4, 1, 3], [1.0, 2.0, 3.0], 0),
                    request("b", [4, 4] if label == "static" else [4, 2], [1.0, 2.0], 0),
                ],
                [
                    LaunchRecord(Stage.CORE, 0, 18, None, 9, 2, 0.0, 3.0),
                    LaunchRecord(Stage.CORE, 2, 0, None, 11, 2, 3.0, 1.0),
                ],
                15.0 if label == "static" else cdb_wall_s,
                width=2,
                max_residents=2,
                max_loops=R,
            )
            runs.append(TimedRun(block, order, subject, trace, ()))
    return runs


def facts(runs: list[TimedRun]) -> dict[str, ModeFacts]:
    return {run.subject.label: facts_of(run.subject) for run in runs}


def bounds(
    runs: list[TimedRun], curves: Curves | None = CURVES, redrawn: Redrawn = NOTHING_REDRAWN
) -> dict[str, BoundRecord]:
    found = bounds_of(
        runs, facts(runs), WORKLOAD, compare(runs), curves, PREFILL_TOKENS, redrawn=redrawn
    )
    assert set(found) == {"cdb"}
    return found["cdb"]


def test_time_bounds_and_their_shares_say_how_other_passes_would_move_them(plan: Plan) -> None:
    cheap = {**CURVES.lines, "coda": Line(0.0, 0.1)}
    dear = {**CURVES.lines, "coda": Line(0.0, 2.0)}
    runs = timed(plan)
    curves = [LinearCurves(lines) for lines in [cheap] * 50 + [dear] * 50]
    plain, found = bounds(runs), bounds(runs, redrawn=Redrawn(curves, 7))
    assert {name for name, record in found.items() if record.over_passes is not None} == {
        "time_bound",
        "time_bound_e2e",
    }
    # The dearer a coda, the less there is to save; the bound on those curves is further off.
    moved = found["time_bound"].over_passes
    assert moved is not None
    low, _, high = (
        bounds(runs, LinearCurves(lines))["time_bound"].value or 0
        for lines in (dear, CURVES.lines, cheap)
    )
    assert (moved.estimate or 0) / low > high / (moved.estimate or 0)
    assert [moved.low, moved.high] == pytest.approx([low, (moved.estimate or 0) ** 2 / low])
    assert (moved.estimate, moved.n) == (plain["time_bound"].value, 7)
    # Blocks are all alike here, so that the share is as unsure as its bound.
    share = found["time_bound"].realised
    assert share is not None
    assert plain["time_bound"].realised == IntervalRecord(
        estimate=share.estimate, low=share.estimate, high=share.estimate, n=6
    )
    assert moved.estimate is not None
    assert share.estimate is not None
    assert share.low == pytest.approx(share.estimate * low / moved.estimate)
    assert found["flop_bound"] == plain["flop_bound"]


def test_the_bounds_of_a_run_and_their_shares(plan: Plan) -> None:
    found = bounds(timed(plan))
    assert list(found) == [
        "flop_bound",
        "flop_bound_paper",
        "work_bound",
        "time_bound",
        "time_bound_e2e",
    ]
    costs = plan.model.network.flops_per_token()
    assert found["flop_bound"].value == pytest.approx(flop_bound(costs, R, 2.0).value)
    # With first tokens at 4: (1 + 3 + 2 + 4 + 4) / 5.
    assert found["flop_bound_paper"].value == pytest.approx(flop_bound(costs, R, 2.8).value)
    # Later tokens at contexts 10, 11, 10; t̂ 1.0, 1.1, 1.0 a loop, 0.65 beside.
    static_s, cdb_s = 1.95 + 4 * 3.1, 1.95 + 1.0 + 3.3 + 2.0
    assert found["time_bound"].value == pytest.approx(static_s / cdb_s)
    prompts_s = 18 * (1 / PREFILL_TOKENS + 0.25)
    assert found["time_bound_e2e"].value == pytest.approx(
        (static_s + prompts_s) / (cdb_s + prompts_s)
    )
    measured = {"decode": 12 / 7.5, "e2e": 15 / 10.5}
    for name, record in found.items():
        if name == "flop_bound_paper":
            assert record.realised is None
            continue
        assert record.realised is not None
        assert record.value is not None
        assert record.realised.estimate == pytest.approx(measured[record.scope] / record.value)
    assert 1 < (found["work_bound"].value or 0) < (found["flop_bound"].value or 0)


def test_beyond_the_time_bound_is_flagged_as_a_measuring_error(plan: Plan) -> None:
    assert measuring_errors({"cdb": bounds(timed(plan))}, {}) == []
    found = bounds(timed(plan, cdb_wall_s=6.0))
    assert "a measuring error" in (found["time_bound"].note or "")
    errors = measuring_errors({"cdb": found}, {})
    assert len(errors) == 2
    assert errors[0].startswith("cdb: time_bound realised 2")
    assert errors[0].endswith("a measuring error (stage curves or clock)")
    factor = IntervalRecord(estimate=1.2, n=6)
    rows = [
        WaterfallRow(effect=effect, speedup=factor, factor=factor, over_t=1.0, mode_t=1.0)
        for effect in ("boundary_stages", "host_time", "stage_curves")
    ]
    explained = measuring_errors({"cdb": found}, {"cdb": Waterfall(rows=rows)})
    assert "static loses more to host_time (×1.200), or" in explained[0]
    # What blocks or passes can make of no effect at all is not named.
    unsure = IntervalRecord(estimate=1.2, low=0.9, high=1.6, n=6)
    rows[1] = rows[1].model_copy(update={"factor": unsure})
    nameless = measuring_errors({"cdb": found}, {"cdb": Waterfall(rows=rows)})
    assert nameless[0].endswith("a measuring error (stage curves or clock)")
    # FLOPs leave out what static loses, so passing their bound is no error.
    assert "possible" in (found["flop_bound"].note or "")


def test_unequal_residents_leave_no_share_of_flops_and_no_blame_on_attention(plan: Plan) -> None:
    """A speed-up beyond the FLOP bound then comes of wider launches, and says so."""
    runs = [
        replace(run, trace=replace(run.trace, width=3, max_residents=3))
        if run.subject.label == "cdb"
        else run
        for run in timed(plan, cdb_wall_s=6.0)
    ]
    comparisons = compare(runs)
    found = bounds_of(runs, facts(runs), WORKLOAD, comparisons, CURVES, PREFILL_TOKENS)
    for name in ("flop_bound", "work_bound"):
        record = found["cdb"][name]
        assert record.value is not None
        assert record.realised is None
        assert "cdb held 3 requests at once and static 2" in (record.note or "")
        assert "attention" not in (record.note or "")
    # Static at width 2 as before; cdb at width 3, seconds a row 0.1/3 + 0.1, 0.2/3 + 0.4 and
    # 1/3 - 0.5 + context / 10.
    static_s = 1.95 + 4 * 3.1
    cdb_s = 3 * (0.3 / 3 + 0.5) + (5 / 6) * 1 + (5 / 6 + 0.1) * 3 + (5 / 6) * 2
    time = found["cdb"]["time_bound"]
    assert time.value == pytest.approx(static_s / cdb_s)
    assert time.realised is not None
    assert "so the speed-up is that of the width of launches as well" in (time.note or "")
    # Nothing is held of a share that there is not.
    moved = with_other_requests(comparisons, found)
    assert all(c.over_requests is None for c in moved)
    shown = make_result({}).model_copy(update={"bounds": found, "comparisons": comparisons})
    assert not any("attention" in sentence for sentence in sentences(shown))


def test_end_to_end_static_can_honestly_lose_more_to_its_prompts(plan: Plan) -> None:
    found = bounds(timed(plan, cdb_wall_s=6.0))
    factor = IntervalRecord(estimate=1.3, n=6)
    row = WaterfallRow(
        effect="prefill_and_first_tokens", speedup=factor, factor=factor, over_t=1.0, mode_t=1.0
    )
    decode, e2e = measuring_errors({"cdb": found}, {"cdb": Waterfall(rows=[row])})
    assert decode.endswith("a measuring error (stage curves or clock)")
    assert "static loses more to prefill_and_first_tokens (×1.300)" in e2e


def test_without_curves_or_beyond_them_the_flop_bounds_stay(plan: Plan) -> None:
    runs = timed(plan)
    assert set(bounds(runs, None)) == {"flop_bound", "flop_bound_paper", "work_bound"}
    narrow = bounds(runs, LinearCurves(widest=1))
    assert narrow["time_bound"].value is None
    assert "measured up to 1" in (narrow["time_bound"].note or "")
    assert narrow["work_bound"].realised is not None
    first_only = [replace(r, tokens=(0,), requested_depths=(4,)) for r in WORKLOAD]
    assert bounds_of(runs, facts(runs), first_only, compare(runs), CURVES, PREFILL_TOKENS) == {}


def test_the_steady_window_has_a_bound_of_its_own(plan: Plan) -> None:
    workload = [
        RecordedRequest(
            r.id,
            None,
            None,
            (1,) * 9,
            (0,) * len(r.tokens),
            tuple(r.executed_depths),
            tuple(r.executed_depths),
        )
        for r in STEADY.requests
    ]
    runs = []
    for block in range(6):
        for order, label in enumerate(("static", "cdb", "cdb", "static")):
            full = [
                replace(
                    r, executed_depths=[4] * len(r.tokens), requested_depths=[4] * len(r.tokens)
                )
                for r in STEADY.requests
                if isinstance(r, RequestResult)
            ]
            own = replace(STEADY, mode="static", requests=full) if label == "static" else STEADY
            runs.append(TimedRun(block, order, plan.subject(parse_mode(label)), own, ()))
    found = bounds_of(runs, facts(runs), workload, compare(runs), CURVES, PREFILL_TOKENS)["cdb"][
        "time_bound_steady"
    ]
    # The same window in both: the rates are equal, and its tokens are worth 2·0.65 + 4·2.1 in
    # static, 2·0.65 + 1.0 + 3·1.1 in cdb.
    assert found.value == pytest.approx((1.3 + 8.4) / (1.3 + 4.3))
    assert found.realised is not None
    assert found.realised.estimate == pytest.approx(1 / (9.7 / 5.6))
    assert "steady window" in (found.note or "")


def test_a_rule_that_reads_logits_pays_its_readouts_in_every_bound() -> None:
    made = demo_plan(exit="confidence@0.9")
    found = bounds(timed(made))
    costs = made.model.network.flops_per_token()
    assert found["flop_bound"].value == pytest.approx(
        flop_bound(costs, R, 2.0, readout_every_loop=True).value
    )
    # Six loops, six codas.
    assert found["time_bound"].value == pytest.approx((1.95 + 12.4) / (0.45 + 6.3 + 6 * 0.5))


def test_loops_are_shown_beside_their_floor(plan: Plan) -> None:
    run = timed(plan)[0]
    assert floor_ms_per_loop(run.trace) is None
    floored = with_floors(run.trace, lambda stage, rows, context: 0.001 * rows * context)
    assert floor_ms_per_loop(floored) == pytest.approx(2 * 11)
    assert ms_per_loop(floored) == pytest.approx(1000.0)


def test_the_table_has_every_bound_with_its_scope_and_share(plan: Plan) -> None:
    runs = timed(plan)
    shown = make_result({}).model_copy(update={"bounds": {"cdb": bounds(runs)}})
    text = to_markdown(bounds_table(shown))
    assert text.count("time_bound") >= 2
    assert "decode" in text
    assert "e2e" in text

"""Every formula against a trace small enough to work out by hand, and the identities on any trace.

The trace: three requests on two residents, R = 4, a clock in whole seconds, wall 20 s.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdbench.bench.derived import EqualWork, equal_sections
from cdbench.bench.figures import mode_figures
from cdbench.metrics.bounds import (
    Bound,
    MismatchError,
    Scope,
    Speedup,
    Work,
    cost_ratio,
    flop_bound,
    flop_bound_paper,
    realised_flop,
)
from cdbench.metrics.depth import (
    depth_histogram,
    depth_histogram_by_position,
    depth_histogram_by_request,
    depth_histogram_by_task,
    mean_depth_by_position,
    mean_output_depth,
    token_loops,
)
from cdbench.metrics.identities import broken_identities
from cdbench.metrics.launches import core_decode_rows
from cdbench.metrics.percentiles import minimum_samples, percentile
from cdbench.metrics.rates import SteadyWindow, decode_wall_s
from cdbench.metrics.registry import COMPARED, METRICS, evaluate, sample_percentiles
from cdbench.metrics.steady import window_tokens
from cdbench.metrics.trace import Arrivals, KvFigures, KvShape, RunTrace, Slo
from cdbench.runtime.core import FinishReason, LaunchRecord, RequestResult, Stage
from cdbench.stats.interval import Interval
from tests.recorded import FACTS, scripted_blocks, scripted_stages, scripted_workload

R = 4


@dataclass(frozen=True)
class Costs:
    prelude: float = 1.0
    core: float = 10.0
    coda: float = 4.0


def request(
    id: str,
    executed: list[int],
    token_s: list[float],
    *,
    requested: list[int] | None = None,
    stop_depth: int | None = None,
    reason: FinishReason = FinishReason.LENGTH,
    error: str | None = None,
    arrival_s: float = 0.0,
    admitted_s: float | None = 0.0,
    finish_s: float | None = None,
    prompt_tokens: int = 5,
    task: str | None = None,
) -> RequestResult:
    return RequestResult(
        id=id,
        prompt_tokens=prompt_tokens,
        tokens=list(range(len(executed))),
        executed_depths=executed,
        requested_depths=executed if requested is None else requested,
        logprobs=[0.0] * len(executed),
        text=None,
        stop_depth=stop_depth,
        finish_reason=reason,
        error=error,
        arrival_s=arrival_s,
        admitted_s=admitted_s,
        token_s=token_s,
        finish_s=finish_s if finish_s is not None else (token_s[-1] if token_s else arrival_s),
        task=task,
    )


def launch(
    stage: Stage,
    start_s: float,
    duration_s: float,
    *,
    depths: tuple[int, ...] = (),
    decode: int | None = None,
    prefill: int = 0,
) -> LaunchRecord:
    rows = sum(depths) if decode is None else decode
    loops = np.repeat(np.arange(1, len(depths) + 1), depths) if depths else None
    return LaunchRecord(stage, rows, prefill, loops, 1, 2, start_s, duration_s)


# later tokens: a: 2, 3 (asked 1, 3); b: 4 then a stop token of 1 loop; c: none.
REQUESTS = (
    request("a", [4, 2, 3], [2.0, 5.0, 9.0], requested=[4, 1, 3], task="add"),
    request(
        "b",
        [4, 4],
        [2.0, 8.0],
        stop_depth=1,
        reason=FinishReason.STOP,
        finish_s=10.0,
        task="copy",
        prompt_tokens=3,
    ),
    request("c", [4], [12.0], admitted_s=9.0, task="add", prompt_tokens=2),
)
# 10 decode rows of core launches: 2 + 3 + 4 + 1. Prefill launches take 3 s, all launches 15 s.
LAUNCHES = (
    launch(Stage.PRELUDE, 0.0, 0.5, prefill=8),
    launch(Stage.CORE, 0.5, 1.5, prefill=8),
    launch(Stage.PRELUDE, 2.0, 1.0, decode=2),
    launch(Stage.CORE, 3.0, 2.0, depths=(2, 0, 0, 0)),
    launch(Stage.CORE, 5.0, 2.0, depths=(0, 2, 0, 0)),
    launch(Stage.CODA, 7.0, 1.0, decode=1),
    launch(Stage.CORE, 8.0, 1.0, depths=(1, 0, 1, 0)),
    launch(Stage.CORE, 9.0, 1.0, depths=(1, 0, 0, 1)),
    launch(Stage.CORE, 10.0, 1.0, depths=(0, 1, 0, 0)),
    launch(Stage.CORE, 11.0, 1.0, depths=(0, 0, 1, 0)),
    launch(Stage.CODA, 12.0, 2.0, decode=3),
    launch(Stage.CORE, 15.0, 1.0, prefill=2),
)
SHAPE = KvShape(
    prelude_layers=1,
    core_layers=2,
    coda_layers=1,
    kv_heads=2,
    head_dim=8,
    element_bytes=2,
    slots=3,
)
TRACE = RunTrace(
    mode="cdb",
    requests=REQUESTS,
    launches=LAUNCHES,
    wall_s=20.0,
    width=2,
    max_residents=2,
    max_loops=R,
    kv=KvFigures(40, 64, SHAPE, preemptions=3, prefix_hit_rate=0.25),
    costs=Costs(),
    arrivals=Arrivals.OPEN_LOOP,
    slo=Slo(ttft_s=3.0, e2e_s=9.5),
    price_per_hour=1.8,
    energy_j=3.0,
    peak_device_bytes=7000,
)

BY_HAND = {
    "ttft": (2 + 2 + 12) / 3,
    "tpot": ((9 - 2) / 2 + (10 - 2) / 1) / 2,
    "itl": (3 + 4 + 6) / 3,
    "e2e": (9 + 10 + 12) / 3,
    "normalized_latency": (9 / 3 + 10 / 2 + 12 / 1) / 3,
    "queue_time": (0 + 0 + 9) / 3,
    "output_throughput": 6 / 20,
    "decode_throughput": 3 / (20 - 3),
    "request_throughput": 3 / 20,
    "goodput": 1 / 20,
    "ms_per_loop": (2 + 2 + 1 + 1 + 1 + 1) / 6 * 1e3,
    "host_share": (20 - 15) / 20,
    "cost_per_million_tokens": 1.8 / 3600 * 20 / 6 * 1e6,
    "energy_per_token": 3 / 6,
    "peak_device_bytes": 7000,
    "peak_kv_bytes": 40 * 64,
    "preemptions": 3,
    "prefix_hit_rate": 0.25,
    "mean_depth": (2 + 3 + 4) / 3,
    "requested_depth": (1 + 3 + 4) / 3,
    "wasted_loops": 1,
    "short_loops": 0,
    "token_loops": 2 + 3 + 4 + 1,
    "core_launches": 6,
    "coda_launches": 2,
    "prelude_launches": 1,
    "prefill_launches": 3,
    "core_occupancy": 10 / (6 * 2),
    "coda_width": (1 + 3) / 2,
    "refills": 2,
    # 64 bytes per layer and slot; prompts 10 tokens at 1+3·2+1 = 8 layers; later: 6, 8, 8.
    "kv_bytes_per_token": 64 * (10 * 8 + 6 + 8 + 8) / 13,
}


def static_wall(trace: RunTrace, **changes: object) -> RunTrace:
    return replace(trace, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BY_HAND)
def test_formula_by_hand(name: str) -> None:
    assert METRICS[name].compute(TRACE) == pytest.approx(BY_HAND[name], rel=1e-12)


def test_every_metric_has_a_hand_computed_case() -> None:
    # These have tests of their own (in test_bounds.py, and of a gate's in test_predictor.py).
    elsewhere = {"steady_throughput", "steady_decode_throughput", "floor_ms_per_loop"}
    elsewhere |= {"predictor_precision", "predictor_recall"}
    elsewhere |= {"predictor_exact", "predictor_depth_error"}
    assert set(METRICS) - set(BY_HAND) == elsewhere


def test_every_metric_describes_itself() -> None:
    for name, metric in {**METRICS, **COMPARED}.items():
        assert metric.name == name
        assert metric.unit
        assert metric.formula
        assert metric.needs
        assert metric.direction in ("up", "down", "none")


def test_short_loops_and_cancelled_loops() -> None:
    early = request("a", [4, 1, 3], [1.0, 2.0, 3.0], requested=[4, 3, 1])
    trace = RunTrace("cdb", [early], [], 5.0, 2, 2, R, cancelled_loops=3)
    assert METRICS["short_loops"].compute(trace) == 2
    assert METRICS["wasted_loops"].compute(trace) == 2 + 3
    assert METRICS["token_loops"].compute(trace) == 1 + 3 + 3


def test_depth_histogram_leaves_out_first_and_stop_tokens() -> None:
    assert depth_histogram(TRACE) == (0, 1, 1, 1)
    assert depth_histogram_by_task(TRACE) == {"add": (0, 1, 1, 0), "copy": (0, 0, 0, 1)}
    none = (0, 0, 0, 0)
    by_request = {"a": (0, 1, 1, 0), "b": (0, 0, 0, 1), "c": none}
    assert depth_histogram_by_request(TRACE) == by_request
    # Later token 1: a at depth 2, b at 4; later token 2: a at 3.
    assert depth_histogram_by_position(TRACE.requests, 4) == ((0, 1, 0, 1), (0, 0, 1, 0))
    assert mean_depth_by_position(TRACE.requests, 4) == (3.0, 3.0)


def test_undefined_is_none_and_never_zero() -> None:
    nothing = RunTrace("cdb", [], [], 5.0, 2, 2, R)
    values = evaluate(nothing)
    counts = {"wasted_loops", "short_loops", "token_loops"}
    assert {name for name, value in values.items() if value is not None} == counts


def test_ttft_is_undefined_under_all_at_once() -> None:
    trace = static_wall(TRACE, arrivals=Arrivals.ALL_AT_ONCE)
    assert METRICS["ttft"].compute(trace) is None
    assert sample_percentiles(METRICS["ttft"], trace, (50,)) == (None,)


def test_a_one_token_request_has_no_time_per_token() -> None:
    trace = RunTrace("cdb", [REQUESTS[2]], [], 20.0, 2, 2, R)
    for name in ("tpot", "itl", "decode_throughput", "mean_depth", "requested_depth"):
        assert METRICS[name].compute(trace) is None


def test_failed_and_cancelled_requests_stay_out_of_the_rates() -> None:
    refused = request("d", [], [], error="never fits", reason=FinishReason.ERROR, admitted_s=None)
    cancelled = request("e", [4, 2], [1.0, 2.0], reason=FinishReason.CANCELLED)
    trace = static_wall(TRACE, requests=(*REQUESTS, refused, cancelled))
    for name in ("output_throughput", "request_throughput", "decode_throughput", "e2e", "tpot"):
        assert METRICS[name].compute(trace) == pytest.approx(BY_HAND[name])
    # the loops it ran are counted all the same
    assert METRICS["token_loops"].compute(trace) == BY_HAND["token_loops"] + 2


def test_decode_wall_needs_a_split_for_mixed_launches() -> None:
    mixed = launch(Stage.CORE, 17.0, 2.0, depths=(1, 0, 0, 0), prefill=3)
    trace = static_wall(TRACE, launches=(*LAUNCHES, mixed))
    assert decode_wall_s(trace) is None
    assert METRICS["ms_per_loop"].compute(trace) is None
    split = static_wall(trace, prefill_share=lambda _: 0.75)
    assert decode_wall_s(split) == pytest.approx(20 - 3 - 1.5)
    assert METRICS["ms_per_loop"].compute(split) == pytest.approx((8 + 0.5) / 7 * 1e3)
    assert METRICS["prefill_launches"].compute(split) == 4
    assert METRICS["core_launches"].compute(split) == 7


def test_host_share_counts_overlapping_launches_once() -> None:
    overlapping = (launch(Stage.CORE, 1, 4, decode=1), launch(Stage.CODA, 2, 2, decode=1))
    trace = RunTrace("cdb", [], overlapping, 10.0, 2, 2, R)
    assert METRICS["host_share"].compute(trace) == pytest.approx(0.6)


def test_steady_window_opens_with_requests_waiting_and_closes_with_the_queue() -> None:
    # Two residents; the second finishes at 4 while e still waits; e is admitted at 7.
    requests = [
        request("a", [4, 1], [1.0, 3.0]),
        request("b", [4, 1], [1.0, 4.0]),
        request("c", [4, 1, 1], [3.5, 5.0, 7.0], admitted_s=3.0),
        request("d", [4, 1], [6.0, 9.0], admitted_s=4.5),
        request("e", [4, 1], [8.0, 9.5], admitted_s=7.0),
    ]
    trace = RunTrace("cdb", requests, [], 10.0, 2, 2, R)
    # window 4 … 7: tokens at 5, 6, 7
    assert METRICS["steady_throughput"].compute(trace) == pytest.approx(3 / 3)
    assert METRICS["steady_throughput"].compute(static_wall(trace, max_residents=5)) is None
    assert METRICS["steady_throughput"].compute(static_wall(trace, max_residents=6)) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"wall_s": 0.0}, "above 0"),
        ({"wall_s": 14.0}, "timed region only"),
        ({"max_loops": 3}, "outside 1…3"),
    ],
)
def test_an_impossible_trace_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        static_wall(TRACE, **change)


def test_misaligned_lists_are_refused() -> None:
    broken = request("a", [4, 2], [1.0])
    with pytest.raises(ValueError, match="token_s has 1 entries for 2 tokens"):
        RunTrace("cdb", [broken], [], 5.0, 2, 2, R)


# --- percentiles ---


@pytest.mark.parametrize(("q", "n"), [(50, 11), (90, 64), (95, 130), (99, 662), (99.9, 6636)])
def test_minimum_samples(q: float, n: int) -> None:
    assert minimum_samples(q) == n
    values = list(np.arange(n, dtype=float))
    assert percentile(values[:-1], q) is None
    assert percentile(values, q) == pytest.approx(np.percentile(values, q))


def test_percentile_counts_distinct_requests() -> None:
    gaps = [1.0] * 100
    assert percentile(gaps, 50, distinct=10) is None
    assert percentile(gaps, 50, distinct=11) == 1.0
    assert sample_percentiles(METRICS["itl"], TRACE, (50, 90)) == (None, None)
    with pytest.raises(ValueError, match="no single values"):
        sample_percentiles(METRICS["mean_depth"], TRACE, (50,))
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile(gaps, 100)


# --- bounds ---


def test_flop_bound_by_hand() -> None:
    bound = flop_bound(Costs(), R, 2.5)
    assert bound.value == pytest.approx((1 + 40 + 4) / (1 + 25 + 4))
    assert (bound.name, bound.scope, bound.note) == ("flop_bound", Scope.DECODE, None)
    assert flop_bound(Costs(), R, R).value == 1.0
    assert cost_ratio(Costs()) == pytest.approx(0.5)


def test_flop_bound_with_a_readout_at_every_loop_can_be_below_one() -> None:
    bound = flop_bound(Costs(), R, 3.5, readout_every_loop=True)
    assert bound.value == pytest.approx(45 / (1 + 3.5 * 14))
    assert bound.note is not None
    assert "below 1" in bound.note


def test_flop_bound_of_the_paper_counts_first_tokens_at_full_depth() -> None:
    depth = mean_output_depth(TRACE)
    assert depth == pytest.approx((3 * 4 + 1 + 3 + 4) / 6)
    assert flop_bound_paper(Costs(), R, depth or 0).value == pytest.approx(45 / (5 + 10 * 20 / 6))


@pytest.mark.parametrize("depth", [0.5, 4.5, math.nan])
def test_flop_bound_refuses_an_impossible_depth(depth: float) -> None:
    with pytest.raises(ValueError, match="between 1 and 4"):
        flop_bound(Costs(), R, depth)


SPEEDUP = Speedup(Interval(1.2, 1.1, 1.3, 8), "cdb", "static", Scope.DECODE)


def test_realised_flop_scales_the_interval() -> None:
    share = realised_flop(SPEEDUP, flop_bound(Costs(), R, 2.5))
    assert share.estimate == pytest.approx(1.2 / 1.5)
    assert share.low == pytest.approx(1.1 / 1.5)
    assert share.high == pytest.approx(1.3 / 1.5)
    assert share.n == 8


@pytest.mark.parametrize(
    ("speedup", "words"),
    [
        (replace(SPEEDUP, scope=Scope.E2E), "only equal scopes"),
        (replace(SPEEDUP, work=Work.LIVE), "live"),
        (replace(SPEEDUP, over="lockstep"), "over static"),
    ],
)
def test_realised_flop_refuses_a_mismatch(speedup: Speedup, words: str) -> None:
    with pytest.raises(MismatchError, match=words):
        realised_flop(speedup, flop_bound(Costs(), R, 2.5))


def test_realised_flop_refuses_another_bound() -> None:
    with pytest.raises(MismatchError, match="not by work_bound"):
        realised_flop(SPEEDUP, Bound("work_bound", 1.5, Scope.DECODE))


# --- identities, on any trace ---

DEPTHS = st.lists(st.integers(1, R), max_size=8)


@st.composite
def scheduled(draw: st.DrawFn) -> RunTrace:
    """Requests with any depths, and core launches that ran exactly their loops, in any packing."""
    width = draw(st.integers(1, 4))
    requests, rows = [], []
    for index in range(draw(st.integers(0, 5))):
        later, stop = draw(DEPTHS), draw(st.none() | st.integers(1, R))
        asked = draw(st.lists(st.integers(1, R), min_size=len(later), max_size=len(later)))
        times = [float(i) for i in range(len(later) + 1)]
        requests.append(
            request(
                str(index),
                [R, *later],
                times,
                requested=[R, *asked],
                stop_depth=stop,
                task=draw(st.sampled_from([None, "x", "y"])),
            )
        )
        for depth in [*later, *([stop] if stop else [])]:
            rows += list(range(1, depth + 1))
    rows = draw(st.permutations(rows))
    packs = [rows[i : i + width] for i in range(0, len(rows), width)]
    launches = [
        launch(Stage.CORE, float(i), 0.5, depths=tuple(pack.count(k) for k in range(1, R + 1)))
        for i, pack in enumerate(packs)
    ]
    wall_s = max(1.0, float(len(launches)))
    return RunTrace("cdb", requests, launches, wall_s, width, width, R)


@settings(deadline=None)
@given(scheduled())
def test_identities(trace: RunTrace) -> None:
    later = sum(len(r.tokens) - 1 for r in trace.requests)
    assert sum(depth_histogram(trace)) == later
    by_task = depth_histogram_by_task(trace).values()
    assert [sum(column) for column in zip(*by_task, strict=True)] == (
        list(depth_histogram(trace)) if trace.requests else []
    )
    assert token_loops(trace) == core_decode_rows(trace)
    assert broken_identities(trace) == ()
    values = evaluate(trace)
    if values["mean_depth"] is not None and values["requested_depth"] is not None:
        gap = (values["mean_depth"] - values["requested_depth"]) * later
        assert (values["wasted_loops"] or 0) - (values["short_loops"] or 0) == pytest.approx(gap)
    occupancy = values["core_occupancy"]
    assert occupancy is None or 0 < occupancy <= 1


def test_broken_identities_are_named() -> None:
    lost_row = static_wall(TRACE, launches=LAUNCHES[:-3])
    (reason,) = broken_identities(lost_row)
    assert reason == "mode cdb: token_loops 10 differs from decode rows of core launches 9"


def test_metrics_can_be_made_from_stored_requests() -> None:
    from cdbench.schema import RequestRecord, to_json

    lines = [
        to_json(RequestRecord.of(r, doc_id=None, mode="cdb", work="equal", block=0), indent=None)
        for r in REQUESTS
    ]
    stored = [RequestRecord.model_validate(json.loads(line)) for line in lines]
    assert evaluate(static_wall(TRACE, requests=stored)) == evaluate(TRACE)


def test_the_metrics_of_a_run_are_computed_once_for_all_summaries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def counted(trace: RunTrace) -> dict[str, float | None]:
        seen.append(id(trace))
        return evaluate(trace)

    monkeypatch.setattr("cdbench.bench.repeats.evaluate", counted)
    runs = scripted_blocks(["static", "cdb"], 2)
    work = EqualWork.of(runs, FACTS, scripted_workload(), 64, scripted_stages())
    blocks = equal_sections(work).blocks
    figures = mode_figures("cdb", work.runs, {}, R)
    assert len(seen) == len(set(seen)) == len(runs)
    own = [block.metrics["e2e"] for block in blocks if block.mode == "cdb"]
    assert figures.metrics["e2e"] == sum(value or 0 for value in own) / len(own)


@given(
    st.lists(
        st.lists(st.floats(0, 10), min_size=1, max_size=5).map(sorted), min_size=1, max_size=4
    ),
    st.floats(0, 10),
    st.floats(0, 10),
)
def test_tokens_of_a_window_are_those_that_came_out_within_it(
    times: list[list[float]], one: float, other: float
) -> None:
    window = SteadyWindow(min(one, other), max(one, other), None)
    asked = {str(i): [1 + (i + k) % R for k in range(len(t))] for i, t in enumerate(times)}
    requests = [
        replace(
            REQUESTS[0],
            id=name,
            tokens=[0] * len(token_s),
            token_s=token_s,
            executed_depths=asked[name],
            requested_depths=asked[name],
        )
        for name, token_s in zip(asked, times, strict=True)
    ]
    found = window_tokens(static_wall(TRACE, requests=requests, launches=[]), window, asked)
    wanted = [
        (r.prompt_tokens + i, asked[r.id][i])
        for r in requests
        for i, when_s in enumerate(r.token_s)
        if i > 0 and window.holds(when_s)
    ]
    assert list(zip(found.contexts, found.loops, strict=True)) == wanted

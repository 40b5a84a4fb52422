"""The waterfall: a trace worked out by hand, and what must hold of any."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdbench.bench.compared import compare
from cdbench.bench.equal import RecordedRequest, TimedRun, TimedSubject, record, run_block
from cdbench.bench.facts import facts_of
from cdbench.bench.plan import Plan, make_plan
from cdbench.bench.waterfall import Redrawn, waterfalls_of
from cdbench.bench.workload import prepare
from cdbench.config import load_config
from cdbench.grammar import parse_mode
from cdbench.metrics.curves import CurveStage
from cdbench.metrics.ideal import LaterTokens, Packing, later_tokens
from cdbench.metrics.trace import RunTrace
from cdbench.metrics.waterfall import (
    EFFECTS,
    WIDER_LAUNCHES,
    NoWaterfallError,
    RunTimes,
    RunWork,
    Side,
    curve_error,
    effect_times,
    waterfall,
)
from cdbench.render.formats import ratio
from cdbench.render.markdown import to_markdown
from cdbench.render.waterfall import waterfall_table, where_the_rest_went
from cdbench.runtime.core import FinishReason, LaunchRecord, RequestResult, Stage
from cdbench.schema import IntervalRecord, Waterfall, WaterfallRow
from cdbench.schema.repeats import ModeFacts
from tests.curve_fakes import Line, LinearCurves

R = 4
CURVES = LinearCurves()


def request(id: str, depths: Sequence[int], prompt_tokens: int = 9) -> RequestResult:
    count = len(depths)
    return RequestResult(
        id=id,
        prompt_tokens=prompt_tokens,
        tokens=[0] * count,
        executed_depths=list(depths),
        requested_depths=list(depths),
        logprobs=[0.0] * count,
        text=None,
        stop_depth=None,
        finish_reason=FinishReason.LENGTH,
        error=None,
        arrival_s=0.0,
        admitted_s=0.0,
        token_s=[0.0] * count,
        finish_s=0.0,
    )


def launches(rows: Sequence[tuple[Stage, int, int, int, float]]) -> list[LaunchRecord]:
    """Decode launches (stage, rows, context, runnable, seconds), after a prefill of 2 s."""
    found = [LaunchRecord(Stage.CORE, 0, 18, None, 9, 2, 0.0, 2.0)]
    for stage, width, context, runnable, took_s in rows:
        start_s = found[-1].start_s + found[-1].duration_s
        found.append(LaunchRecord(stage, width, 0, None, context, runnable, start_s, took_s))
    return found


def trace(
    mode: str, requests: Sequence[RequestResult], records: Sequence[LaunchRecord], wall_s: float
) -> RunTrace:
    return RunTrace(mode, requests, records, wall_s, width=2, max_residents=2, max_loops=R)


PRELUDE, CORE, CODA = Stage.PRELUDE, Stage.CORE, Stage.CODA

# By hand. Width and cap 2. A (prompt 9) has later tokens at contexts 10 and 11, B at context 10.
# Lines at width 2, seconds a row: t̂_prelude 0.15, t̂_coda 0.5, t̂_core 1.0 at context 10 and 1.1
# at 11; with the exit rule 0.2, 0.55, and 1.1 and 1.2. The rule asked for 1, 2 (A) and 3 (B); with
# lag 1 they ran 2, 3 and 4. Launch durations are the curves', but for one: 0.3 s more in static,
# 0.2 s in cdb.
STATIC = trace(
    "static",
    [request("a", [4, 4, 4]), request("b", [4, 4])],
    launches(
        [
            (PRELUDE, 2, 10, 2, 0.3),
            *[(CORE, 2, 10, 2, 2.0)] * 4,
            (CODA, 2, 10, 2, 1.0 + 0.3),
            (PRELUDE, 1, 11, 2, 0.2),
            *[(CORE, 1, 11, 1, 1.6)] * 4,
            (CODA, 1, 11, 1, 0.6),
        ]
    ),
    wall_s=20.0,
)
CDB = trace(
    "cdb",
    [request("a", [4, 2, 3]), request("b", [4, 4])],
    launches(
        [
            (PRELUDE, 2, 10, 2, 0.4),
            (CORE, 1, 10, 2, 1.7),
            (CORE, 1, 10, 2, 1.7),
            (CORE, 2, 10, 2, 2.2),
            (CODA, 1, 10, 2, 0.7),
            (PRELUDE, 1, 11, 2, 0.3),
            (CORE, 2, 11, 2, 2.4),
            (CORE, 2, 11, 2, 2.4 + 0.2),
            (CODA, 1, 10, 2, 0.7),
            (CORE, 1, 11, 1, 1.8),
            (CODA, 1, 11, 1, 0.7),
        ]
    ),
    wall_s=18.0,
)
STATIC_ASKED = later_tokens([(9, [4, 4, 4]), (9, [4, 4])])
CDB_ASKED = later_tokens([(9, [4, 1, 2]), (9, [4, 3])])
PLAIN = Packing(CURVES, 2)

STATIC_TIMES = (
    12.0,  # 3 tokens · 4 loops
    3 * 0.65 + 4 * 1.0 + 4 * 1.1 + 4 * 1.0,  # 14.35
    14.35,  # no exit rule
    14.35,  # no wasted loop
    # The drain (4 core launches and 1 coda of one row) at its own width: 4 · 1.6 + 0.6; the rest at
    # ideal cost: 8 core rows at context 10, 3 preludes, 2 codas.
    4 * 1.6 + 0.6 + 8 * 1.0 + 3 * 0.15 + 2 * 0.5,  # 16.45
    16.45,  # the other core launches are full: 4 · 2.0 = 8 · 1.0
    7.0 + 4 * 2.0 + (0.3 + 0.2) + 1.0,  # 16.5: a prelude of one row
    16.8,  # measured: 0.3 more than the curves
    20.0 - 2.0,  # the wall without the prefill launch
    20.0,
)
# The ideal cost of cdb's 9 core rows is 2 · 1.1 + 3 · 1.2 + 4 · 1.1 = 10.2, handed out in
# proportion to rows · t̂(context of the launch): 1.1, 1.1, 2.2, 2.4, 2.4 and, in the drain, 1.2.
CDB_TIMES = (
    6.0,  # 1 + 2 + 3 loops asked for
    3 * 0.65 + 1 * 1.0 + 2 * 1.1 + 3 * 1.0,  # 8.15
    3 * 0.75 + 1 * 1.1 + 2 * 1.2 + 3 * 1.1,  # 9.05
    3 * 0.75 + 10.2,  # 12.45
    # The drain: a core launch of 1.8 and a coda of 0.7.
    2.5 + 10.2 * 9.2 / 10.4 + 3 * 0.2 + 2 * 0.55,
    2.5 + (1.7 + 1.7 + 2.2 + 2.4 + 2.4) + 0.6 + 1.1,  # 14.6
    2.5 + 10.4 + (0.4 + 0.3) + 2 * 0.7,  # 15.0
    15.2,
    18.0 - 2.0,
    18.0,
)


def side(run: RunTrace, requested: LaterTokens, actual: Packing = PLAIN) -> Side:
    return Side(
        RunWork.of(run),
        requested,
        replace(actual, prelude="prelude", core="core", coda="coda"),
        actual,
    )


BOTH = [
    RunTimes(block, mode, times)
    for block in range(6)
    for mode, times in (("static", STATIC_TIMES), ("cdb", CDB_TIMES))
    for _ in range(2)
]


def test_the_times_of_both_sides_by_hand() -> None:
    assert effect_times(side(STATIC, STATIC_ASKED)) == pytest.approx(STATIC_TIMES)
    assert effect_times(side(CDB, CDB_ASKED, PLAIN.with_exit())) == pytest.approx(CDB_TIMES)


def test_every_row_by_hand() -> None:
    steps = waterfall(BOTH, "cdb", "static")
    assert tuple(step.effect for step in steps) == EFFECTS
    before = 1.0
    for step, static_t, cdb_t in zip(steps, STATIC_TIMES, CDB_TIMES, strict=True):
        assert step.speedup.estimate == pytest.approx(static_t / cdb_t)
        assert step.factor.estimate == pytest.approx(static_t / cdb_t / before)
        assert abs(step.factor.estimate - 1) > 0.001, f"{step.effect} tells nothing here"
        assert [step.over_t, step.mode_t] == pytest.approx([static_t, cdb_t])
        before = static_t / cdb_t
    assert steps[0].speedup.estimate == pytest.approx(2.0)  # R / mean requested depth
    assert steps[-1].speedup.estimate == pytest.approx(20 / 18.0)
    for mode, share in (("cdb", 0.2 / 15.0), ("static", 0.3 / 16.5)):
        error = curve_error(BOTH, mode)
        assert error is not None
        assert error.estimate == pytest.approx(share)


def test_wider_launches_have_a_row_of_their_own_by_hand() -> None:
    """Cdb at width 4: seconds a row 0.125, 0.45, and 0.75 and 0.85 at contexts 10 and 11."""
    own_s = 3 * (0.125 + 0.45) + 1 * 0.75 + 2 * 0.85 + 3 * 0.75
    assert Packing(CURVES, 4).ideal_s(CDB_ASKED).total == pytest.approx(own_s)
    wide = [
        replace(run, times=(run.times[0], own_s, *run.times[2:])) if run.mode == "cdb" else run
        for run in BOTH
    ]
    narrow_s = {"static": STATIC_TIMES[1], "cdb": CDB_TIMES[1]}
    steps = waterfall(wide, "cdb", "static", narrow_s=narrow_s)
    assert [s.effect for s in steps] == [*EFFECTS[:2], WIDER_LAUNCHES, *EFFECTS[2:]]
    _, boundary, wider, exit_rule = steps[:4]
    assert boundary.factor.estimate == pytest.approx(14.35 / 8.15 / 2.0)
    assert wider.factor.estimate == pytest.approx(8.15 / own_s)
    assert wider.speedup.estimate == pytest.approx(14.35 / own_s)
    assert (wider.over_t, wider.mode_t) == pytest.approx((14.35, own_s))
    assert exit_rule.factor.estimate == pytest.approx(14.35 / CDB_TIMES[2] / (14.35 / own_s))
    assert math.prod(s.factor.estimate for s in steps) == pytest.approx(20 / 18.0)


def test_a_rule_that_reads_out_pays_a_coda_at_every_loop() -> None:
    # A and B at depths 1 and 2: 3 loops, 3 codas. One row: core 1.2 + 0.5, coda 0.3 + 0.4.
    packing = replace(PLAIN, readout_every_loop=True)
    run = trace(
        "cdb",
        [request("a", [4, 1]), request("b", [4, 2])],
        launches(
            [
                (PRELUDE, 2, 10, 2, 0.4),
                (CORE, 2, 10, 2, 2.2),
                (CODA, 2, 10, 2, 1.1),
                (CORE, 1, 10, 1, 1.7),
                (CODA, 1, 10, 1, 0.7),
            ]
        ),
        9.0,
    )
    requested = later_tokens([(9, [4, 1]), (9, [4, 2])])
    times = effect_times(side(run, requested, packing.with_exit()))
    assert times[:2] == pytest.approx((3.0, 2 * 0.15 + 3 * (1.0 + 0.5)))
    assert times[2] == pytest.approx(2 * 0.2 + 3 * (1.1 + 0.55))
    assert times[6] == pytest.approx(0.4 + 2.2 + 1.1 + 1.7 + 0.7)


def test_a_mixed_launch_needs_a_split() -> None:
    mixed = LaunchRecord(CORE, 0, 4, None, 9, 2, 19.0, 0.5)
    riding = replace(STATIC, launches=[*STATIC.launches, mixed])
    assert effect_times(side(riding, STATIC_ASKED))[8] == pytest.approx(20 - 2.0 - 0.5)
    # One row of decode rides along with four prompt tokens.
    first = STATIC.launches[-1]
    shared = LaunchRecord(CODA, 1, 4, None, 11, 1, first.start_s, first.duration_s)
    riding = replace(STATIC, launches=[*STATIC.launches[:-1], shared])
    with pytest.raises(NoWaterfallError, match="cannot be split"):
        effect_times(side(riding, STATIC_ASKED))
    split = replace(riding, prefill_share=lambda _: 0.5)
    measured, decode_s = effect_times(side(split, STATIC_ASKED))[7:9]
    assert measured == pytest.approx(16.8 - 0.3)
    assert decode_s == pytest.approx(18.0 - 0.3)


def test_what_cannot_be_told_is_refused_with_its_reason() -> None:
    narrow = Packing(LinearCurves(widest=1), 2)
    with pytest.raises(NoWaterfallError, match="static: curve: asked for 2 rows"):
        effect_times(side(STATIC, STATIC_ASKED, narrow))
    lost = replace(STATIC, launches=STATIC.launches[:-1])
    with pytest.raises(NoWaterfallError, match=r"coda launches held 2 decode rows.*need 3"):
        effect_times(side(lost, STATIC_ASKED))
    one_token = trace("cdb", [request("a", [4])], [], 5.0)
    with pytest.raises(NoWaterfallError, match="no later token"):
        effect_times(side(one_token, later_tokens([(9, [4])])))


def test_a_torn_block_is_left_out_and_none_gives_no_rows() -> None:
    whole = waterfall([*BOTH, RunTimes(6, "cdb", CDB_TIMES)], "cdb", "static")
    assert whole[0].speedup.n == 6
    assert waterfall(BOTH[:2], "cdb", "static") == ()


# --- on any trace ---

TIME_S = st.floats(1e-3, 10.0)
LINE = st.builds(Line, TIME_S, TIME_S, st.floats(0.0, 0.1))
PLAIN_STAGES: tuple[CurveStage, ...] = ("prelude", "core", "core_with_exit", "coda")
STAGES: tuple[CurveStage, ...] = (*PLAIN_STAGES, "prelude_with_exit", "coda_with_exit")


@st.composite
def curves(draw: st.DrawFn) -> LinearCurves:
    return LinearCurves({stage: draw(LINE) for stage in STAGES})


@st.composite
def packed(draw: st.DrawFn) -> tuple[RunTrace, LaterTokens]:
    """Any requests, run in launches of any width, context, place in the run, and duration."""
    width = draw(st.integers(1, 4))
    depths = draw(
        st.lists(st.lists(st.integers(1, R), min_size=1, max_size=4), min_size=1, max_size=4)
    )
    prompts = [draw(st.integers(1, 20)) for _ in depths]
    asked = [[R, *(draw(st.integers(1, d)) for d in one)] for one in depths]
    count, loops = sum(map(len, depths)), sum(map(sum, depths))
    records: list[tuple[Stage, int, int, int, float]] = []
    for stage, rows in ((PRELUDE, count), (CORE, loops), (CODA, count)):
        while rows:
            taken = draw(st.integers(1, min(width, rows)))
            rows -= taken
            records.append(
                (stage, taken, draw(st.integers(1, 24)), draw(st.integers(1, 6)), draw(TIME_S))
            )
    found = launches(records)
    busy_s = found[-1].start_s + found[-1].duration_s
    run = RunTrace(
        "cdb",
        [request(str(i), [R, *one], prompts[i]) for i, one in enumerate(depths)],
        found,
        busy_s * draw(st.floats(1.0, 2.0)),
        width=width,
        max_residents=4,
        max_loops=R,
    )
    return run, later_tokens(zip(prompts, asked, strict=True))


@settings(deadline=None, max_examples=60)
@given(packed(), packed(), curves(), st.lists(st.floats(0.8, 1.25), min_size=4, max_size=4))
def test_factors_multiply_out_to_the_measured_speedup(
    mode: tuple[RunTrace, LaterTokens],
    static: tuple[RunTrace, LaterTokens],
    any_curves: LinearCurves,
    noise: list[float],
) -> None:
    runs: list[RunTimes] = []
    walls: dict[str, list[float]] = {}
    for place, stretch in enumerate(noise):
        for label, (run, asked) in (("cdb", mode), ("static", static)):
            packing = Packing(any_curves, run.width)
            actual = packing.with_exit() if label == "cdb" else packing
            # Another machine's pace in every run: launches and wall alike, or the wall alone.
            slower = replace(run, wall_s=run.wall_s * (1 + place * stretch))
            runs.append(
                RunTimes(
                    place // 2,
                    label,
                    effect_times(Side(RunWork.of(slower), asked, packing, actual)),
                )
            )
            walls.setdefault(label, []).append(slower.wall_s)
    steps = waterfall(runs, "cdb", "static")
    product = math.prod(step.factor.estimate for step in steps)
    blocks = [
        sum(walls["static"][b : b + 2]) / sum(walls["cdb"][b : b + 2]) for b in range(0, 4, 2)
    ]
    assert product == pytest.approx(math.prod(blocks) ** (1 / len(blocks)), rel=1e-9)
    for before, step in pairwise(steps):
        assert step.speedup.estimate == pytest.approx(
            before.speedup.estimate * step.factor.estimate, rel=1e-9
        )


@settings(deadline=None, max_examples=30)
@given(packed(), curves())
def test_a_mode_against_itself_has_factors_of_one(
    run: tuple[RunTrace, LaterTokens], any_curves: LinearCurves
) -> None:
    packing = Packing(any_curves, run[0].width)
    times = effect_times(Side(RunWork.of(run[0]), run[1], packing, packing.with_exit()))
    runs = [RunTimes(0, label, times) for label in ("cdb", "static") for _ in range(2)]
    for step in waterfall(runs, "cdb", "static"):
        assert step.factor.estimate == pytest.approx(1.0, rel=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, R), min_size=1, max_size=6), curves(), st.booleans())
def test_full_launches_on_their_curves_lose_nothing(
    depths: list[int], any_curves: LinearCurves, reads_out: bool
) -> None:
    """Three requests side by side, each token at one depth: every launch is full."""
    width = 3
    packing = Packing(any_curves, width, readout_every_loop=reads_out).with_exit()
    records: list[tuple[Stage, int, int, int, float]] = []
    for i, depth in enumerate(depths, start=1):
        loop: list[tuple[Stage, CurveStage]] = [(CORE, packing.core)]
        last: list[tuple[Stage, CurveStage]] = [(CODA, packing.coda)]
        course = [(PRELUDE, packing.prelude), *(loop + last if reads_out else loop) * depth]
        for stage, curve in course if reads_out else [*course, *last]:
            took_s = any_curves.launch_s(curve, width, 9 + i)
            records.append((stage, width, 9 + i, 4, took_s))
    found = launches(records)
    wall_s = found[-1].start_s + found[-1].duration_s
    requests = [request(str(i), [R, *depths]) for i in range(width)]
    run = RunTrace("cdb", requests, found, wall_s, width, max_residents=4, max_loops=R)
    asked = later_tokens([(9, [R, *depths])] * width)
    times = effect_times(side(run, asked, packing))
    first = EFFECTS.index("wasted_loops")
    assert times[first : EFFECTS.index("host_time") + 1] == pytest.approx([times[first]] * 6)


# --- of timed runs of the engine ---


LENGTHS = (6, 3, 8, 5)
"""Output tokens of the requests, so that they end at different times."""


@pytest.fixture(scope="module")
def timed() -> tuple[Plan, list[RecordedRequest], list[TimedRun]]:
    """Two blocks of the demo, four requests on two residents."""
    return timed_runs("static,static@2,lockstep,cdb", exit="cdf@0.5")


def timed_runs(
    modes: str, blocks: int = 2, **changes: object
) -> tuple[Plan, list[RecordedRequest], list[TimedRun]]:
    keys = {"model": "demo-ouro", "dense": "", "limit": 1, "device": "cpu", "work": "equal"}
    extra = {"engine.max_residents": 2, "modes": modes, "workload.requests": 4}
    made = make_plan(load_config(None, (), {**keys, **extra, **changes}))
    work = prepare(made)
    assert work is not None
    requests = [
        replace(r, max_new_tokens=tokens) for r, tokens in zip(work.requests, LENGTHS, strict=True)
    ]
    live = {r.id: r for r in made.engine(made.subject(parse_mode("cdb"))).run(requests)}
    recorded = [r for request in requests if (r := record(request, live[request.id])) is not None]
    subjects = [TimedSubject(made, made.subject(mode), recorded) for mode in made.modes]
    return made, recorded, [run for block in range(blocks) for run in run_block(subjects, block)]


def facts(runs: Sequence[TimedRun]) -> dict[str, ModeFacts]:
    return {run.subject.label: facts_of(run.subject) for run in runs}


def test_each_mode_multiplies_out_to_its_measured_speedups(
    timed: tuple[Plan, list[RecordedRequest], list[TimedRun]],
) -> None:
    _, workload, runs = timed
    found = waterfalls_of(runs, facts(runs), workload, CURVES)
    assert set(found) == {"static@2", "lockstep", "cdb"}
    measured = {(c.mode, c.scope): c.speedup for c in compare(runs) if c.over == "static"}
    for mode, made in found.items():
        assert made.reason is None
        rows = {row.effect: row for row in made.rows}
        assert tuple(rows) == EFFECTS
        assert rows["host_time"].speedup.estimate == pytest.approx(
            measured[mode, "decode"].estimate, rel=1e-12
        )
        assert rows["prefill_and_first_tokens"].speedup.estimate == pytest.approx(
            measured[mode, "e2e"].estimate, rel=1e-12
        )
        assert math.prod(row.factor.estimate or 0 for row in made.rows) == pytest.approx(
            measured[mode, "e2e"].estimate, rel=1e-9
        )
        # These curves are of another machine.
        assert any("curves" in note for note in made.notes)
    assert found["static@2"].rows[0].speedup.estimate == pytest.approx(2.0)
    later = [d for r in workload for d in r.requested_depths[1:]]
    assert found["cdb"].rows[0].speedup.estimate == pytest.approx(R * len(later) / sum(later))
    # A gate that computes is paid for; a fixed depth has none.
    gates = {mode: made.rows[2].factor.estimate or 0 for mode, made in found.items()}
    assert gates["cdb"] < 0.99
    assert gates["static@2"] == pytest.approx(1.0)
    # At lag 0 nothing is wasted.
    assert found["cdb"].rows[3].factor.estimate == pytest.approx(1.0)


def test_rows_from_curves_say_how_other_passes_would_move_them(
    timed: tuple[Plan, list[RecordedRequest], list[TimedRun]],
) -> None:
    _, workload, runs = timed
    dearer = {**CURVES.lines, "core_with_exit": Line(1.8, -0.5, 0.1)}
    curves = [LinearCurves(lines) for lines in [CURVES.lines] * 50 + [dearer] * 50]
    redrawn = Redrawn(curves, 7)
    found = waterfalls_of(runs, facts(runs), workload, CURVES, redrawn=redrawn)["cdb"]
    on_dearer = waterfalls_of(runs, facts(runs), workload, LinearCurves(dearer))["cdb"]
    rows = {row.effect: row for row in found.rows}
    assert [name for name, row in rows.items() if row.over_passes is None] == [
        "loops_saved",
        "host_time",
        "prefill_and_first_tokens",
    ]
    spread, own = rows["exit_rule"].over_passes, rows["exit_rule"].factor.estimate
    assert spread is not None
    (least,) = [r.factor.estimate for r in on_dearer.rows if r.effect == "exit_rule"]
    assert (spread.estimate, spread.n) == (own, 7)
    assert own is not None
    assert least is not None
    assert [spread.low, spread.high] == pytest.approx([least, own * own / least])
    # The bound knows nothing of the rule, so other passes of the rule's launches leave it alone.
    bound = rows["boundary_stages"].over_passes
    assert bound is not None
    assert [bound.low, bound.high] == pytest.approx([bound.estimate] * 2)


def test_without_static_there_is_none_and_beyond_the_curves_there_is_a_reason(
    timed: tuple[Plan, list[RecordedRequest], list[TimedRun]],
) -> None:
    _, workload, runs = timed
    others = [run for run in runs if run.subject.label != "static"]
    assert waterfalls_of(others, facts(others), workload, CURVES) == {}
    refused = waterfalls_of(runs, facts(runs), workload, LinearCurves(widest=1))
    assert all(not w.rows and "measured up to 1" in (w.reason or "") for w in refused.values())


def test_a_rule_that_reads_logits_is_costed_as_the_engine_runs_it() -> None:
    _, workload, runs = timed_runs("static,cdb", 1, exit="confidence@0.9")
    (found,) = waterfalls_of(runs, facts(runs), workload, CURVES).values()
    assert found.reason is None
    assert len(found.rows) == len(EFFECTS)


def test_where_memory_is_equal_the_width_of_launches_is_told_from_depth() -> None:
    """Two requests of static and three of cdb fit the same memory."""
    changes = {"equal": "memory", "kv.budget_bytes": 880_000, "exit": "cdf@0.3"}
    _, workload, runs = timed_runs("static,static@4,cdb", 1, **changes)
    held = {run.subject.label: run.trace.max_residents for run in runs}
    assert held == {"static": 2, "static@4": 2, "cdb": 3}
    assert held == {run.subject.label: run.trace.width for run in runs}
    found = waterfalls_of(runs, facts(runs), workload, CURVES)
    assert WIDER_LAUNCHES not in [row.effect for row in found["static@4"].rows]
    rows = {row.effect: row.factor.estimate or 0 for row in found["cdb"].rows}
    assert list(rows)[:4] == ["loops_saved", "boundary_stages", WIDER_LAUNCHES, "exit_rule"]
    (measured,) = [
        c.speedup.estimate for c in compare(runs) if (c.mode, c.over, c.scope) == CDB_OVER_STATIC
    ]
    assert math.prod(rows.values()) == pytest.approx(measured, rel=1e-9)
    again = waterfalls_of(runs, facts(runs), workload, CURVES, redrawn=Redrawn([CURVES] * 9, 9))
    assert {r.effect for r in again["cdb"].rows if r.over_passes is None} == {
        "loops_saved",
        "host_time",
        "prefill_and_first_tokens",
    }
    for row in again["cdb"].rows:
        if row.over_passes is not None:
            assert row.over_passes.low == pytest.approx(rows[row.effect])
    # The same tokens at the width of both give the row before; at their own, this one.
    later = later_tokens((len(r.prompt), r.requested_depths) for r in workload)
    own, narrow = (Packing(CURVES, held[m]).ideal_s(later).total for m in ("cdb", "static"))
    assert rows[WIDER_LAUNCHES] == pytest.approx(narrow / own)
    assert rows[WIDER_LAUNCHES] > 1
    said = where_the_rest_went(found["cdb"], "cdb")
    assert f"({ratio(rows[WIDER_LAUNCHES])} of it by wider launches)" in said
    shown = to_markdown(waterfall_table(found["cdb"], "cdb"))
    assert "'wider launches: more requests held' ends at the decode time_bound" in shown


CDB_OVER_STATIC = ("cdb", "static", "e2e")

# --- what is shown ---


def curve_errors(static: float, cdb: float, reach: float = 0.01) -> dict[str, IntervalRecord]:
    return {
        name: IntervalRecord(estimate=error, low=error - reach, high=error + reach, n=6)
        for name, error in (("static", static), ("cdb", cdb))
    }


def record_of(*factors: float, spread: float = 0.0) -> Waterfall:
    rows, so_far = [], 1.0
    for effect, factor in zip(EFFECTS, factors, strict=True):
        so_far *= factor
        ends = {"low": factor * (1 - spread), "high": factor * (1 + spread)}
        rows.append(
            WaterfallRow(
                effect=effect,
                speedup=IntervalRecord(estimate=so_far, n=6),
                factor=IntervalRecord(estimate=factor, n=6, **ends),
                over_t=1.0,
                mode_t=1.0,
            )
        )
    return Waterfall(rows=rows, curve_error=curve_errors(0.012, -0.003))


FACTORS = (2.0, 0.9, 0.98, 1.0, 0.9, 0.95, 0.999, 1.001, 0.8, 0.85)


def curves_off(record: Waterfall, factor: float, reach: float) -> Waterfall:
    """The record with the curves' row at this factor; the others stay as they are."""
    found = IntervalRecord(estimate=factor, low=factor - reach, high=factor + reach, n=6)
    rows = [
        row.model_copy(update={"factor": found}) if row.effect == "stage_curves" else row
        for row in record.rows
    ]
    return record.model_copy(update={"rows": rows})


def test_the_table_names_every_effect_and_the_sentence_the_biggest_losses() -> None:
    record = record_of(*FACTORS)
    shown = to_markdown(waterfall_table(record, "cdb"))
    for words in (
        "host time",
        "loses 20.0%",
        "static +1.2% [0.2, 2.2], cdb -0.3% [-1.3, 0.7]",
        "decode time_bound",
    ):
        assert words in shown
    said = where_the_rest_went(record, "cdb")
    assert "of the 1.80× over static" in said
    assert "host time (20.0%), fill and drain (10.0%) and empty rows and padding (5.0%)" in said
    assert "prefill" not in said
    assert "unsure" not in said
    assert "the split is unsure" in where_the_rest_went(curves_off(record, 0.94, 0.02), "cdb")
    assert "unsure" not in where_the_rest_went(curves_off(record, 0.94, 0.1), "cdb")
    assert "unsure" not in where_the_rest_went(curves_off(record, 0.96, 0.02), "cdb")


def test_a_loss_that_the_blocks_cannot_tell_is_not_named() -> None:
    unsure = record_of(*FACTORS, spread=0.15)
    said = where_the_rest_went(unsure, "cdb")
    assert "went to host time (20.0%);" in said
    assert "cannot be told from none" in to_markdown(waterfall_table(unsure, "cdb"))
    even = where_the_rest_went(record_of(*[1.0] * len(EFFECTS)), "cdb")
    assert "no single loss stands out" in even


def test_a_missing_waterfall_says_why() -> None:
    refused = Waterfall(reason="cdb: launches mix prompt and decode rows")
    assert "no waterfall: cdb: launches mix" in to_markdown(waterfall_table(refused, "cdb"))
    assert where_the_rest_went(refused, "cdb") == ""


def test_what_passes_differ_by_is_part_of_a_shown_factor_and_of_what_is_named() -> None:
    record = record_of(2.0, 0.9, 0.8, *FACTORS[3:])

    def with_rule(spread: IntervalRecord | None) -> Waterfall:
        rows = [
            row.model_copy(update={"over_passes": spread}) if row.effect == "exit_rule" else row
            for row in record.rows
        ]
        return record.model_copy(update={"rows": rows})

    sure, unsure = (
        with_rule(IntervalRecord(estimate=0.8, low=0.8 / by, high=0.8 * by, n=7))
        for by in (1.01, 1.3)
    )
    assert "exit rule: signal, test, readback (20.0%)" in where_the_rest_went(sure, "cdb")
    assert "exit rule" not in where_the_rest_went(unsure, "cdb")
    none = with_rule(IntervalRecord(estimate=0.8, low=0.79, high=0.81, n=7))
    tiny = IntervalRecord(estimate=0.9993, low=0.9991, high=0.9995, n=7)
    rows = [r.model_copy(update={"factor": tiny, "over_passes": tiny}) for r in none.rows]
    said = to_markdown(waterfall_table(none.model_copy(update={"rows": rows}), "cdb"))
    assert "cannot be told" not in said
    assert len(re.findall(r"\| (?:none|\*\*none\*\*) \|", said)) == len(rows) - 1
    shown = to_markdown(waterfall_table(unsure, "cdb"))
    assert "0.80× [0.62, 1.04]" in shown
    assert "what others than these 7 passes over the stages would change" in shown
    assert "passes over the stages" not in to_markdown(waterfall_table(record, "cdb"))


def row_of(effect: str, factor: IntervalRecord, spread: IntervalRecord | None) -> WaterfallRow:
    return WaterfallRow(
        effect=effect, speedup=factor, factor=factor, over_passes=spread, over_t=1.0, mode_t=1.0
    )


def test_with_few_blocks_what_passes_differ_by_is_known_all_the_same() -> None:
    """Blocks hardly move a row of the curves; the curves' own row is moved by little else."""
    few = IntervalRecord(estimate=0.9, n=4)
    spread = IntervalRecord(estimate=0.9, low=0.8, high=1.01, n=5)
    known = row_of("exit_rule", few, spread).known_factor
    assert (known.estimate, known.low, known.high) == (0.9, 0.8, 1.01)
    assert row_of("stage_curves", few, spread).known_factor == few
    assert row_of("exit_rule", few, None).known_factor == few


@pytest.mark.parametrize(
    ("low", "high"), [(-1.0, 1.0), (0.0, 1.0), (None, 1.0), (1e-300, 1e308), (math.nan, 1.0)]
)
def test_ends_that_no_measurement_has_leave_a_factor_as_it_is(
    low: float | None, high: float
) -> None:
    factor = IntervalRecord(estimate=1e300, low=1e299, high=1e301, n=6)
    spread = IntervalRecord(estimate=0.9, low=low, high=high, n=7)
    assert row_of("exit_rule", factor, spread).known_factor == factor

"""``max_itl_s``: prompts give way in time, none starves, and no token changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from cdbench.metrics.curves import CurveStage, MeasuredCurves
from cdbench.models.base import StagedModel
from cdbench.runtime.core import ExitPolicy, LaunchRecord, Request, RequestResult, Stage
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.pacing import CurveTimes, Pacing, SeenTimes
from cdbench.runtime.schedules.base import NOBODY, PREFILL, Launch, Work
from tests import tiny
from tests.curve_fakes import Line, measured

LOOPS = 4
CORE_S, CODA_S, PRELUDE_S = 1.0, 0.5, 0.25
TOKEN_S = LOOPS * CORE_S + CODA_S + PRELUDE_S
"""A later token of full depth where nobody's coda comes between its loops."""
MIXED_S = LOOPS * (CORE_S + CODA_S + PRELUDE_S)
"""The most where every loop may be followed by the coda of others."""


def chunk_s(tokens: int) -> float:
    """One core launch over so many prompt tokens."""
    return 0.5 + 0.25 * tokens


def curves(widest: int = 8) -> MeasuredCurves:
    lines: dict[CurveStage, Line] = {
        "core": Line(CORE_S, 0.0),
        "coda": Line(CODA_S, 0.0),
        "prelude": Line(PRELUDE_S, 0.0),
        "prefill": Line(LOOPS * 0.5, LOOPS * 0.25),
    }
    return measured(lines, widest)


class CurveClock:
    """Time that moves by what each launch takes on these curves; an observer of launches."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.chunks_s: list[float] = []
        """When launches with prompt tokens ended."""

    def now(self) -> float:
        return self.time_s

    def wait_until(self, when_s: float) -> None:
        self.time_s = max(self.time_s, when_s)

    def launched(self, record: LaunchRecord) -> None:
        if record.stage is Stage.CORE:
            self.time_s += CORE_S if record.decode_rows else 0.0
            self.time_s += chunk_s(record.prefill_rows) if record.prefill_rows else 0.0
        elif record.stage is Stage.CODA:
            self.time_s += CODA_S
        else:
            self.time_s += PRELUDE_S
        if record.prefill_rows:
            self.chunks_s.append(self.time_s)


def batch(count: int = 6) -> list[Request]:
    """One request with many tokens, and long prompts that arrive while it decodes."""
    exits = ExitPolicy("cdf", 0.6)
    first = Request("first", [3, 1], 20, exits)
    later = [
        Request(str(i), [(i + 3 * j) % 23 for j in range(40)], 4, exits, arrival_s=8.0 + 6 * i)
        for i in range(count)
    ]
    return [first, *later]


def serve(
    model: StagedModel, with_curves: bool = True, **settings: Any
) -> tuple[dict[str, RequestResult], CurveClock]:
    clock = CurveClock()
    config = EngineConfig(**{"max_residents": 8, "min_free_residents": 1, **settings})
    engine = Engine(model, config, clock=clock, observer=clock)
    if with_curves:
        engine.use_curves(curves(), LOOPS)
    results = {result.id: result for result in engine.run(batch())}
    assert engine.idle
    return results, clock


def gaps(results: dict[str, RequestResult]) -> list[float]:
    return [float(gap) for r in results.values() for gap in np.diff(r.token_s)]


LIMITS = {"static": TOKEN_S + 3.0, "lockstep": TOKEN_S + 3.0, "cdb": MIXED_S + 3.0}


@pytest.mark.parametrize("ride", [False, True])
@pytest.mark.parametrize("mode", LIMITS)
def test_no_gap_is_longer_than_the_limit_where_decode_leaves_room(
    tiny_ouro: StagedModel, mode: str, ride: bool
) -> None:
    free, _ = serve(tiny_ouro, mode=mode, ride=ride)
    assert max(gaps(free)) > 1.5 * LIMITS[mode], "prompts do not disturb in this example"
    paced, _ = serve(tiny_ouro, mode=mode, ride=ride, max_itl_s=LIMITS[mode])
    assert max(gaps(paced)) <= LIMITS[mode] + 1e-9
    for name, result in paced.items():
        assert result.error is None
        assert result.tokens == free[name].tokens
        assert result.executed_depths == free[name].executed_depths


@pytest.mark.parametrize("with_curves", [True, False])
@pytest.mark.parametrize("mode", LIMITS)
def test_a_limit_that_cannot_be_kept_lets_one_launch_into_each_gap(
    tiny_ouro: StagedModel, mode: str, with_curves: bool
) -> None:
    """No prompt starves: all requests end, and decode waits for one launch at a time."""
    results, clock = serve(tiny_ouro, with_curves, mode=mode, max_itl_s=0.5)
    assert all(result.error is None for result in results.values())
    ends = np.array(clock.chunks_s)
    first = results["first"].token_s
    within = [np.count_nonzero((ends > a) & (ends <= b)) for a, b in pairwise(first)]
    assert max(within) == 1, within


def test_without_curves_the_launches_of_the_run_are_what_is_known(tiny_ouro: StagedModel) -> None:
    """The first chunk is not cut, since nothing is known; its launches come one in a gap."""
    paced, _ = serve(tiny_ouro, False, mode="static", max_itl_s=LIMITS["static"])
    free, _ = serve(tiny_ouro, False, mode="static")
    assert max(gaps(free)) > TOKEN_S + LOOPS * chunk_s(40)
    assert max(gaps(paced)) <= TOKEN_S + chunk_s(40) + PRELUDE_S
    assert {k: r.tokens for k, r in paced.items()} == {k: r.tokens for k, r in free.items()}


def test_curves_that_do_not_reach_the_width_are_refused(tiny_ouro: StagedModel) -> None:
    engine = Engine(tiny_ouro, EngineConfig(max_residents=9, max_itl_s=1.0))
    with pytest.raises(ValueError, match="measured up to 8"):
        engine.use_curves(curves(), LOOPS)


# The decision by hand.


def pacing(model: StagedModel, max_itl_s: float, *, prefill_tokens: int = 64) -> Pacing:
    """Of a batch mode with two residents: one token each, at 10 s and at 12 s, two loops done."""
    engine = Engine(model, EngineConfig(mode="static", max_residents=2))
    res = engine.residents
    for name in "ab":
        res.admit(Request(name, [1], 8), 0.0)
    both = np.array([0, 1])
    res.outputs.count[both] = 1
    res.outputs.token_s[both, 0] = (10.0, 12.0)
    res.loop[both] = 2
    found = Pacing(max_itl_s, res, 2, prefill_tokens, mixes_depths=False)
    found.use_curves(curves(), LOOPS)
    return found


BOTH = np.array([0, 1])


def test_the_oldest_token_decides(tiny_ouro: StagedModel) -> None:
    # At 13 s it is 3 s old and needs two loops, coda and prelude: 2.75. Eight tokens take 2.5.
    paced = pacing(tiny_ouro, 8.25)
    paced.saw(PREFILL, 8, 11.0, 12.5)
    assert paced.allows(BOTH, 8, 1, 13.0)
    assert not paced.allows(BOTH, 9, 1, 13.0)
    assert not paced.allows(BOTH, 8, 1, 13.01)
    assert paced.allows(np.array([1]), 9, 1, 13.01), "the younger one has time"
    # The last launch of a job reads its prompts out: coda and prelude, 0.75.
    assert paced.allows(BOTH, 0, 1, 14.75)
    assert not paced.allows(BOTH, 0, 1, 14.76)


def test_one_launch_is_always_allowed_once_all_have_come(tiny_ouro: StagedModel) -> None:
    paced = pacing(tiny_ouro, 0.1)
    assert paced.allows(BOTH, 64, 1, 100.0), "none has run"
    paced.saw(PREFILL, 8, 8.0, 9.0)
    assert paced.allows(BOTH, 64, 1, 100.0), "both have come since"
    paced.saw(PREFILL, 8, 10.5, 11.0)
    assert not paced.allows(BOTH, 1, 1, 12.0), "one has not"
    assert paced.allows(np.array([1]), 64, 1, 100.0)


def test_a_chunk_that_rides_counts_as_one_that_held_decode_up(tiny_ouro: StagedModel) -> None:
    paced = pacing(tiny_ouro, 0.1)
    paced.saw(Launch(Work.CORE, BOTH, rides=True), 8, 10.5, 11.0)
    assert not paced.allows(BOTH, 1, 1, 12.0)
    paced.start_afresh()
    assert paced.allows(BOTH, 1, 1, 12.0)


def test_nothing_holds_a_prompt_up_while_nothing_decodes(tiny_ouro: StagedModel) -> None:
    paced = pacing(tiny_ouro, 1e-9)
    paced.saw(PREFILL, 8, 20.0, 21.0)
    assert paced.allows(NOBODY, 64, 1, 100.0)
    assert paced.chunk_tokens(0) == 64


@pytest.mark.parametrize(
    ("max_itl_s", "tokens"),
    [
        (TOKEN_S + chunk_s(5), 5),  # what fits beside a token
        (TOKEN_S + chunk_s(5) + 0.24, 5),
        (1000.0, 64),  # never more than prefill_tokens
        (4 * chunk_s(3), 3),  # decode leaves no room: a quarter of the limit
        (0.1, 1),  # one token at least
    ],
)
def test_chunks_fit_beside_a_token_of_decode(
    tiny_ouro: StagedModel, max_itl_s: float, tokens: int
) -> None:
    assert pacing(tiny_ouro, max_itl_s).chunk_tokens(2) == tokens


def test_loops_followed_by_codas_of_others_take_longer(tiny_ouro: StagedModel) -> None:
    paced = pacing(tiny_ouro, MIXED_S + chunk_s(20))
    paced.mixes_depths = True
    assert paced.chunk_tokens(2) == 20


def test_times_from_curves() -> None:
    times = CurveTimes(curves(), LOOPS)
    assert times.chunk_s(6) == pytest.approx(chunk_s(6))
    assert times.chunk_s(128) == pytest.approx(2 * chunk_s(64)), "beyond what was measured"
    assert times.core_s(3) == pytest.approx(CORE_S)
    assert times.ending_s(3) == pytest.approx(CODA_S + PRELUDE_S)


def test_times_from_the_run_rise_at_once_fall_slowly_and_leave_mixed_launches_out() -> None:
    times = SeenTimes()
    assert (times.chunk_s(9), times.core_s(9), times.ending_s(9)) == (0.0, 0.0, 0.0)
    core, coda = Launch(Work.CORE, BOTH), Launch(Work.CODA, BOTH)
    times.saw(PREFILL, 4, 8.0)
    times.saw(core, 0, 1.0)
    times.saw(core, 0, 2.0)
    times.saw(core, 0, 1.0)
    times.saw(replace(core, rides=True), 4, 99.0)
    times.saw(coda, 0, 3.0)
    times.saw(PREFILL, 0, 99.0)
    assert times.chunk_s(3) == pytest.approx(6.0)
    assert times.core_s(1) == pytest.approx(0.8 * 2.0 + 0.2 * 1.0)
    assert times.ending_s(5) == pytest.approx(3.0)


def test_a_limit_of_a_step_clock_is_exact_too(tiny_ouro: StagedModel) -> None:
    """Any clock: tokens are those of an engine without a limit."""
    requests = batch()
    known = {r.id: r.tokens for r in Engine(tiny_ouro, clock=tiny.StepClock()).run(requests)}
    config = EngineConfig(max_residents=3, max_itl_s=40.0, prefill_tokens=16)
    found = Engine(tiny_ouro, config, clock=tiny.StepClock()).run(requests)
    assert {r.id: r.tokens for r in found} == known

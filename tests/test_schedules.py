"""The schedules as pure policies: no model, only resident numbers and verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdbench.metrics.curves import CurveStage
from cdbench.runtime.core import IntArray
from cdbench.runtime.schedules.base import Launch, Schedule, Verdict, Work
from cdbench.runtime.schedules.cdb import ContinuousDepth
from cdbench.runtime.schedules.coda_minimum import AutoMinimum
from cdbench.runtime.schedules.lockstep import Lockstep
from tests.curve_fakes import Line, measured

LOOP, READ_OUT, EXIT, DONE = Verdict.LOOP, Verdict.READ_OUT, Verdict.EXIT, Verdict.DONE


def ids(*residents: int) -> IntArray:
    return np.array(residents, dtype=np.int64)


def take(schedule: Schedule, work: Work, prefill: bool = False) -> Launch:
    launch = schedule.next_launch(prefill_offered=prefill)
    assert launch is not None
    assert launch.work is work
    return launch


def answer(schedule: Schedule, launch: Launch, *verdicts: np.int8) -> None:
    schedule.signals(launch, np.array(verdicts, dtype=np.int8))


def cdb_with_exited(width: int, coda_min_rows: int, exited: int, looping: int) -> Schedule:
    """A schedule whose coda queue holds residents 0 … and whose core queue holds 10 …"""
    schedule = ContinuousDepth(width, coda_min_rows)
    schedule.enter(ids(*range(exited)))
    answer(schedule, take(schedule, Work.CORE), *[EXIT] * exited)
    schedule.enter(ids(*range(10, 10 + looping)))
    return schedule


def test_cdb_runs_a_coda_at_its_minimum_before_anything_else() -> None:
    schedule = cdb_with_exited(width=4, coda_min_rows=2, exited=2, looping=3)
    assert take(schedule, Work.CODA, prefill=True).residents.tolist() == [0, 1]


def test_cdb_prefills_before_it_loops_and_before_an_undersized_coda() -> None:
    schedule = cdb_with_exited(width=4, coda_min_rows=3, exited=2, looping=3)
    assert take(schedule, Work.PREFILL, prefill=True).residents.size == 0
    assert take(schedule, Work.CORE).residents.tolist() == [10, 11, 12]


def test_cdb_flushes_an_undersized_coda_when_nothing_else_can_run() -> None:
    schedule = cdb_with_exited(width=4, coda_min_rows=3, exited=2, looping=0)
    assert take(schedule, Work.CODA).residents.tolist() == [0, 1]


def test_cdb_never_waits_for_a_coda_wider_than_a_launch() -> None:
    schedule = cdb_with_exited(width=2, coda_min_rows=9, exited=2, looping=3)
    assert take(schedule, Work.CODA).residents.tolist() == [0, 1]


def test_cdb_serves_the_oldest_first_survivors_at_the_head_and_refills_at_the_tail() -> None:
    schedule = ContinuousDepth(width=3)
    schedule.enter(ids(5, 1, 4, 2))
    launch = take(schedule, Work.CORE)
    assert launch.residents.tolist() == [5, 1, 4]
    answer(schedule, launch, LOOP, EXIT, LOOP)
    coda = take(schedule, Work.CODA)
    assert coda.residents.tolist() == [1]
    answer(schedule, coda, DONE)
    schedule.enter(ids(1))
    assert take(schedule, Work.CORE).residents.tolist() == [5, 4, 2]
    assert take(schedule, Work.CORE).residents.tolist() == [1]


def test_cdb_puts_a_readout_that_loops_on_back_at_the_head() -> None:
    schedule = ContinuousDepth(width=1)
    schedule.enter(ids(7, 8))
    answer(schedule, take(schedule, Work.CORE), READ_OUT)
    answer(schedule, take(schedule, Work.CODA), LOOP)
    assert take(schedule, Work.CORE).residents.tolist() == [7]


def test_lockstep_takes_no_refill_until_the_last_has_exited_and_runs_one_coda() -> None:
    schedule = Lockstep(width=3)
    schedule.enter(ids(0, 1, 2))
    answer(schedule, take(schedule, Work.CORE), EXIT, LOOP, LOOP)
    schedule.enter(ids(3))
    shrunk = take(schedule, Work.CORE, prefill=True)
    assert shrunk.residents.tolist() == [1, 2]
    answer(schedule, shrunk, LOOP, EXIT)
    answer(schedule, take(schedule, Work.CORE, prefill=True), EXIT)
    assert take(schedule, Work.CODA, prefill=True).residents.tolist() == [0, 2, 1]
    assert take(schedule, Work.PREFILL, prefill=True)
    assert take(schedule, Work.CORE).residents.tolist() == [3]


def test_lockstep_reads_out_before_it_loops_on() -> None:
    schedule = Lockstep(width=3)
    schedule.enter(ids(0, 1, 2))
    answer(schedule, take(schedule, Work.CORE), LOOP, READ_OUT, READ_OUT)
    readout = take(schedule, Work.CODA, prefill=True)
    assert readout.residents.tolist() == [1, 2]
    answer(schedule, readout, DONE, LOOP)
    assert take(schedule, Work.CORE).residents.tolist() == [0, 2]


def automatic(width: int) -> Schedule:
    """A minimum that follows the exits, on curves where waiting pays."""
    lines: dict[CurveStage, Line] = {
        "core": Line(1.0, 0.0),
        "coda": Line(2.0, 0.0),
        "prelude": Line(0.1, 0.0),
    }
    auto = AutoMinimum(width, 2 * width, max_loops=4)
    auto.use(measured(lines, widest=8))
    return ContinuousDepth(width, auto=auto)


SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    "cdb": ContinuousDepth,
    "lockstep": lambda width, _: Lockstep(width),
    "cdb-auto": lambda width, _: automatic(width),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_resident_that_leaves_is_forgotten_wherever_it_waits(name: str) -> None:
    schedule = SCHEDULES[name](4, 2)
    schedule.enter(ids(0, 1, 2, 3))
    answer(schedule, take(schedule, Work.CORE), LOOP, READ_OUT, EXIT, LOOP)
    schedule.enter(ids(4, 5))
    assert schedule.in_flight == 6
    schedule.leave(ids(0, 1, 2, 4))
    assert schedule.in_flight == 2
    seen = []
    while (launch := schedule.next_launch(prefill_offered=False)) is not None:
        seen += launch.residents.tolist()
    assert sorted(seen) == [3, 5]


# Leaving and coming back.


def in_every_place(name: str) -> Schedule:
    """Residents 0 and 4 before a loop, 1 before a readout, 2 exited, 3 at its second loop."""
    schedule = SCHEDULES[name](4, 3)
    schedule.enter(ids(0, 1, 2, 3))
    answer(schedule, take(schedule, Work.CORE), LOOP, READ_OUT, EXIT, LOOP)
    schedule.enter(ids(4))
    return schedule


@pytest.mark.parametrize("name", SCHEDULES)
def test_leaving_tells_where_each_was_in_the_order_asked(name: str) -> None:
    schedule = in_every_place(name)
    assert schedule.leave(ids(2, 0, 4, 1)).tolist() == [EXIT, LOOP, LOOP, EXIT]
    assert schedule.in_flight == 1
    assert schedule.leave(ids(3)).tolist() == [LOOP]
    assert schedule.in_flight == 0
    assert schedule.leave(ids()).tolist() == []


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 4, 1, 0, 3)])
def test_who_comes_back_goes_on_with_the_stage_it_was_at(name: str, order: list[int]) -> None:
    schedule = in_every_place(name)
    places = schedule.leave(ids(*order))
    assert schedule.next_launch(prefill_offered=False) is None
    for resident, place in zip(order, places, strict=True):
        schedule.enter(ids(resident), place)
    assert schedule.in_flight == 5
    seen: dict[Work, list[int]] = {Work.CORE: [], Work.CODA: []}
    while (launch := schedule.next_launch(prefill_offered=False)) is not None:
        seen[launch.work] += launch.residents.tolist()
    assert seen[Work.CODA] == [r for r in order if r in (1, 2)]
    assert seen[Work.CORE] == [r for r in order if r in (0, 3, 4)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_who_comes_back_is_last_in_its_queue(name: str) -> None:
    schedule = SCHEDULES[name](2, 1)
    schedule.enter(ids(0, 1, 2))
    (place,) = schedule.leave(ids(0))
    schedule.enter(ids(0), place)
    assert take(schedule, Work.CORE).residents.tolist() == [1, 2]
    assert take(schedule, Work.CORE).residents.tolist() == [0]


def test_lockstep_lets_who_comes_back_before_a_loop_wait_for_the_next_batch() -> None:
    schedule = Lockstep(width=3)
    schedule.enter(ids(0, 1, 2))
    answer(schedule, take(schedule, Work.CORE), LOOP, LOOP, LOOP)
    (place,) = schedule.leave(ids(1))
    schedule.enter(ids(1), place)
    shrunk = take(schedule, Work.CORE)
    assert shrunk.residents.tolist() == [0, 2]
    answer(schedule, shrunk, EXIT, EXIT)
    assert take(schedule, Work.CODA).residents.tolist() == [0, 2]
    assert take(schedule, Work.CORE).residents.tolist() == [1]


def test_lockstep_reads_out_who_comes_back_before_a_coda_with_the_batch_that_is_there() -> None:
    schedule = Lockstep(width=3)
    schedule.enter(ids(0, 1, 2))
    answer(schedule, take(schedule, Work.CORE), EXIT, LOOP, LOOP)
    (place,) = schedule.leave(ids(0))
    schedule.enter(ids(0), place)
    answer(schedule, take(schedule, Work.CORE), LOOP, EXIT)
    answer(schedule, take(schedule, Work.CORE), EXIT)
    coda = take(schedule, Work.CODA)
    assert coda.residents.tolist() == [0, 2, 1]
    # One of them was before a readout and loops on.
    answer(schedule, coda, LOOP, DONE, DONE)
    assert take(schedule, Work.CORE).residents.tolist() == [0]


def test_cdb_counts_who_comes_back_towards_the_least_coda() -> None:
    schedule = cdb_with_exited(width=4, coda_min_rows=2, exited=1, looping=2)
    schedule.enter(ids(9), EXIT)
    assert take(schedule, Work.CODA).residents.tolist() == [0, 9]


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_launch_is_wider_than_the_width_however_many_come_back(name: str) -> None:
    schedule = SCHEDULES[name](2, 1)
    schedule.enter(ids(0, 1))
    answer(schedule, take(schedule, Work.CORE), EXIT, EXIT)
    for resident in (2, 3, 4):
        schedule.enter(ids(resident), EXIT)
    sizes, looping = [], 0
    while (launch := schedule.next_launch(prefill_offered=False)) is not None:
        sizes.append(launch.residents.size)
        if launch.work is Work.CODA:
            # None of them has exited: they all loop on, and may be a batch of their own.
            answer(schedule, launch, *[LOOP] * launch.residents.size)
        looping += launch.residents.size if launch.work is Work.CORE else 0
    assert max(sizes) == 2
    assert looping == 5


@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    width=st.integers(1, 4),
    coda_min_rows=st.integers(1, 5),
    depths=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=6),
    reads_out=st.booleans(),
    data=st.data(),
)
def test_moving_residents_away_and_back_loses_no_loop_and_doubles_none(
    name: str,
    width: int,
    coda_min_rows: int,
    depths: list[list[int]],
    reads_out: bool,
    data: st.DataObject,
) -> None:
    """As an engine does it: out of the queues or out of a launch, back at the place named."""
    schedule = SCHEDULES[name](width, coda_min_rows)
    token, loop = [0] * len(depths), [0] * len(depths)
    loops: Counter[int] = Counter()
    away: list[tuple[int, np.int8]] = []
    here = set(range(len(depths)))
    schedule.enter(np.arange(len(depths)))
    moves = 0
    for _ in range(200):
        if away and (schedule.in_flight == 0 or data.draw(st.booleans())):
            resident, place = away.pop(0)
            schedule.enter(ids(resident), place)
            here.add(resident)
        launch = schedule.next_launch(prefill_offered=False)
        if launch is None:
            if not away:
                break
            continue
        rows = launch.residents.tolist()
        assert 1 <= len(rows) <= width
        if moves < 8 and data.draw(st.booleans()):
            moves += 1
            gone = data.draw(st.sampled_from(sorted(here)))
            here.remove(gone)
            if gone in rows:
                place = LOOP if launch.work is Work.CORE else EXIT
                launch = Launch(launch.work, launch.residents[launch.residents != gone])
            else:
                (place,) = schedule.leave(ids(gone))
            away.append((gone, place))
            if not launch.residents.size:
                continue
        verdicts, going = [], []
        for r in launch.residents.tolist():
            if launch.work is Work.CORE:
                assert loop[r] < depths[r][token[r]], "a token that has exited looped again"
                loop[r] += 1
                loops[r] += 1
            exits = loop[r] == depths[r][token[r]]
            if launch.work is Work.CORE:
                verdicts.append(READ_OUT if reads_out else EXIT if exits else LOOP)
                continue
            assert exits or reads_out, "a coda ran for a token that had not exited"
            verdicts.append(DONE if exits else LOOP)
            if exits:
                token[r], loop[r] = token[r] + 1, 0
                going += [r] if token[r] < len(depths[r]) else []
                here -= set() if token[r] < len(depths[r]) else {r}
        answer(schedule, launch, *verdicts)
        if going:
            schedule.enter(ids(*going))
        if not here and not away:
            break
    assert schedule.in_flight == 0
    assert token == [len(request) for request in depths]
    assert loops == {r: sum(request) for r, request in enumerate(depths)}


@pytest.mark.parametrize("name", SCHEDULES)
def test_nothing_to_do_is_none(name: str) -> None:
    schedule = SCHEDULES[name](4, 1)
    assert schedule.next_launch(prefill_offered=False) is None
    assert take(schedule, Work.PREFILL, prefill=True)


@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    width=st.integers(1, 5),
    coda_min_rows=st.integers(1, 9),
    depths=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=7),
    reads_out=st.booleans(),
)
def test_every_token_gets_its_loops_and_one_coda_whatever_the_sizes(
    name: str, width: int, coda_min_rows: int, depths: list[list[int]], reads_out: bool
) -> None:
    """No deadlock, no starvation, no lost or doubled work, never more rows than the width."""
    schedule = SCHEDULES[name](width, coda_min_rows)
    token, loop = [0] * len(depths), [0] * len(depths)
    loops: Counter[int] = Counter()
    schedule.enter(np.arange(len(depths)))
    total = sum(sum(request) for request in depths)
    for _ in range(3 * total + 1):
        launch = schedule.next_launch(prefill_offered=False)
        if launch is None:
            break
        assert 1 <= launch.residents.size <= width
        verdicts, going = [], []
        for r in launch.residents.tolist():
            if launch.work is Work.CORE:
                loop[r] += 1
                loops[r] += 1
            exits = loop[r] == depths[r][token[r]]
            if launch.work is Work.CORE:
                verdicts.append(READ_OUT if reads_out else EXIT if exits else LOOP)
            else:
                verdicts.append(DONE if exits else LOOP)
                if exits:
                    token[r], loop[r] = token[r] + 1, 0
                    going += [r] if token[r] < len(depths[r]) else []
        answer(schedule, launch, *verdicts)
        if going:
            schedule.enter(ids(*going))
    assert schedule.in_flight == 0
    assert token == [len(request) for request in depths]
    assert loops == {r: sum(request) for r, request in enumerate(depths)}

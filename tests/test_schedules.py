"""The schedules as pure policies: no model, only resident numbers and verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdbench.runtime.core import IntArray
from cdbench.runtime.schedules.base import Launch, Schedule, Verdict, Work
from cdbench.runtime.schedules.cdb import ContinuousDepth
from cdbench.runtime.schedules.lockstep import Lockstep

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


SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    "cdb": ContinuousDepth,
    "lockstep": lambda width, _: Lockstep(width),
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

"""Stage curves by hand: between the points, beyond them, and the ideal packing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdbench.metrics.curves import CurvePoint, Curves, CurveStage, MeasuredCurves


def grid(stage: CurveStage, table: dict[int, dict[int, float]]) -> list[CurvePoint]:
    """``{rows: {context: seconds}}`` as points."""
    return [CurvePoint(stage, b, c, t) for b, line in table.items() for c, t in line.items()]


CORE = grid("core", {1: {10: 2.0, 30: 4.0}, 4: {10: 5.0, 30: 13.0}, 8: {10: 7.0, 30: 15.0}})
CODA = grid("coda", {1: {10: 1.0}, 4: {10: 1.0}, 8: {10: 3.0}})
PREFILL = grid("prefill", {16: {20: 8.0}, 32: {20: 12.0}, 64: {20: 40.0}})
CURVES = MeasuredCurves([*CORE, *CODA, *PREFILL])


@pytest.mark.parametrize(
    ("contexts", "middle"), [((7,), 7.0), ((5, 31), 18.0), ((5, 21, 80), 21.0)]
)
def test_the_middle_of_contexts_lies_halfway_where_there_is_no_middle_one(
    contexts: tuple[int, ...], middle: float
) -> None:
    curves = MeasuredCurves(grid("core", {1: dict.fromkeys(contexts, 1.0)}))
    assert curves.middle_context("core") == middle


@pytest.mark.parametrize(
    ("rows", "context", "seconds"),
    [
        (4, 10, 5.0),  # a measured point
        (2, 10, 3.0),  # a third of the way from 2 to 5
        (6, 30, 14.0),  # half of the way from 13 to 15
        (4, 20, 9.0),  # half of the way from 5 to 13
        (2, 20, 5.0),  # 3 at context 10, 4 + (13 − 4)/3 = 7 at 30, half of the way
        (4, 3, 5.0),  # below the smallest context it stands
        (4, 50, 21.0),  # above the largest it goes on: 8 more per 20 positions
        (2, 40, 9.0),  # 3 and 7, and half of that step again
        (0.5, 10, 2.0),  # a launch of fewer rows than were measured costs as much
    ],
)
def test_a_launch_between_and_beyond_the_points(
    rows: float, context: float, seconds: float
) -> None:
    assert CURVES.launch_s("core", rows, context) == pytest.approx(seconds)


def test_one_context_stands_for_all() -> None:
    assert CURVES.launch_s("coda", 6, 1000) == pytest.approx(2.0)


def test_less_time_at_more_context_is_not_followed_below_zero() -> None:
    noisy = MeasuredCurves(grid("core", {1: {10: 5.0, 20: 4.0}}))
    assert noisy.launch_s("core", 1, 15) == pytest.approx(4.5)
    assert noisy.launch_s("core", 1, 1000) == pytest.approx(4.0)


def test_many_launches_at_once_are_the_same_launches() -> None:
    rows, contexts = [1, 2, 6, 8], [10, 20, 30, 100]
    one_by_one = [CURVES.launch_s("core", b, c) for b, c in zip(rows, contexts, strict=True)]
    assert CURVES.launches_s("core", rows, contexts).tolist() == pytest.approx(one_by_one)
    assert CURVES.launches_s("core", [], []).size == 0


@pytest.mark.parametrize("rows", [0, -1, 8.5, 16])
def test_widths_that_were_not_measured_are_refused(rows: float) -> None:
    with pytest.raises(ValueError, match="measured up to 8"):
        CURVES.launch_s("core", rows, 10)
    with pytest.raises(ValueError, match="measured up to 8"):
        CURVES.ideal_row_s("core", int(rows) if rows != 8.5 else 9, np.array([10.0]))


def test_ideal_packing_takes_the_cheapest_width() -> None:
    # Context 10: 2/1, 5/4, 7/8 → 0.875. Context 30: 4, 13/4, 15/8 → 1.875. Half of the way: 11/8.
    found = CURVES.ideal_row_s("core", 8, np.array([30.0, 10.0, 20.0, 10.0]))
    assert found.tolist() == pytest.approx([1.875, 0.875, 1.375, 0.875])
    # Up to 6 rows: t(6) = 6 at context 10, so 1.0 beats 5/4 and 2.
    assert CURVES.ideal_row_s("core", 6, np.array([10.0])).tolist() == pytest.approx([1.0])
    # The widest launch is not always the cheapest per row: 1/4 at 4 rows, 3/8 at 8.
    assert CURVES.ideal_row_s("coda", 8, np.array([10.0])).tolist() == pytest.approx([0.25])
    assert CURVES.ideal_row_s("coda", 8, np.array([])).size == 0


def test_a_prompt_token_takes_the_cheapest_chunk_there_may_be() -> None:
    assert CURVES.prefill_token_s(64) == pytest.approx(12 / 32)
    assert CURVES.prefill_token_s(10_000) == pytest.approx(12 / 32)
    # t(24) = 10, so 10/24 beats 8/16; below the smallest chunk the launch costs as much.
    assert CURVES.prefill_token_s(24) == pytest.approx(10 / 24)
    assert CURVES.prefill_token_s(8) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="prefill"):
        CURVES.prefill_token_s(0)


@given(
    times=st.lists(st.floats(0.1, 10.0), min_size=4, max_size=4),
    width=st.integers(1, 16),
    context=st.integers(1, 100),
)
def test_no_width_of_all_there_are_beats_the_ideal(
    times: list[float], width: int, context: int
) -> None:
    table = {b: {20: t, 60: 2 * t} for b, t in zip((1, 2, 8, 16), times, strict=True)}
    curves: Curves = MeasuredCurves(grid("core", table))
    every = [curves.launch_s("core", b, context) / b for b in range(1, width + 1)]
    ideal = curves.ideal_row_s("core", width, np.array([float(context)]))[0]
    assert ideal == pytest.approx(min(every))


def test_a_rule_that_computes_nothing_in_a_stage_costs_nothing_there() -> None:
    assert CURVES.launch_s("coda_with_exit", 6, 10) == CURVES.launch_s("coda", 6, 10)
    paid = MeasuredCurves([*CORE, *grid("core_with_exit", {8: {10: 9.0}})])
    assert paid.launch_s("core_with_exit", 8, 10) == pytest.approx(9.0)
    assert paid.launch_s("core", 8, 10) == pytest.approx(7.0)
    assert CURVES.widest("core_with_exit") == 8
    assert CURVES.stages == ("core", "coda", "prefill")
    with pytest.raises(ValueError, match="prelude: was not measured; there are core, coda"):
        CURVES.launch_s("prelude", 1, 1)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (grid("core", {1: {10: 1.0, 20: 1.0}, 2: {10: 1.0}}), "3 points are no grid"),
        ([*CORE, CORE[0]], "no grid"),
        (grid("core", {1: {10: 0.0}}), "above 0"),
        (grid("core", {1: {10: float("nan")}}), "above 0"),
        (grid("core", {0: {10: 1.0}}), "above 0"),
    ],
)
def test_points_that_are_no_curve_are_refused(points: list[CurvePoint], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MeasuredCurves(points)

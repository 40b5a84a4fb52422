"""The minimum of a coda launch, chosen from stage curves: the model, and what it is worth."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdbench.metrics.coda_minimum import (
    CODA,
    CORE,
    PRELUDE,
    Depths,
    best_minimum,
    minimums,
    seconds_per_token,
)
from cdbench.metrics.curves import CurveStage, MeasuredCurves
from cdbench.runtime.schedules.cdb import ContinuousDepth
from cdbench.runtime.schedules.coda_minimum import FIRST, AutoMinimum
from scripts.coda_minimum import (
    CONTEXT,
    HUGINN,
    OURO,
    SHAPES,
    compare,
    compare_on,
    curves_of,
    simulate,
)
from scripts.performance_page import BENCH as BENCH_RECORDS
from scripts.performance_page import RECORDS
from tests.curve_fakes import Line, measured

BENCH = sorted((RECORDS / BENCH_RECORDS).glob("*.json"))
"""Results of the bench set, with the stage curves that were measured beside them."""


def by_hand(core: Line, coda: Line, prelude: Line, widest: int = 16) -> MeasuredCurves:
    stages: dict[CurveStage, Line] = {"core": core, "coda": coda, "prelude": prelude}
    return measured(stages, widest)


FLAT = by_hand(Line(1.0, 0.0), Line(0.75, 0.0), Line(0.25, 0.0))
"""Every launch takes as long whatever its rows, and the boundary stages as long as a loop."""
LINEAR = by_hand(Line(0.0, 1.0), Line(0.0, 0.75), Line(0.0, 0.25))


def costs(
    curves: MeasuredCurves, depths: Depths, width: int, in_flight: int | None = None
) -> np.ndarray:
    """Seconds a token at context 10, for every minimum from 1 on."""
    held = in_flight or width
    every = list(range(1, min(width, held) + 1))
    return seconds_per_token(curves, depths, width, held, 10, every)


def geometric(mean: float, most: int = 60) -> Depths:
    """The same chance of an exit at every loop."""
    return Depths(tuple((1 / mean) * (1 - 1 / mean) ** loop for loop in range(most)))


# Depths for which the cost is known.


def chain(curves: MeasuredCurves, chance: float, width: int, in_flight: int) -> np.ndarray:
    """Seconds a token for every minimum, exactly, where every loop ends a token with ``chance``.

    Of w that wait, w only grows until a coda takes all. H(w), the core launches made while w wait,
    is the same for every minimum above w: H(w) = h(w) / (1 − P(no exit)), h(w + j) = Σ H(w) P(j).
    """
    most = min(width, in_flight)
    binomials = np.zeros((most + 1, most + 1))
    binomials[0, 0] = 1.0
    for n in range(1, most + 1):
        binomials[n] = (1 - chance) * binomials[n - 1]
        binomials[n, 1:] += chance * binomials[n - 1, :-1]

    def boundary_s(rows: int) -> float:
        within = min(rows, width)
        once = curves.launch_s(CODA, within, 10) + curves.launch_s(PRELUDE, within, 10)
        return once * max(1.0, rows / width)

    reached, found, core_s = np.zeros(in_flight + 1), [], 0.0
    reached[0] = 1.0
    for waiting in range(most):
        rows = min(width, in_flight - waiting)
        launches = reached[waiting] / (1 - binomials[rows, 0])
        core_s += launches * curves.launch_s(CORE, rows, 10)
        reached[waiting + 1 : waiting + 1 + rows] += launches * binomials[rows, 1 : rows + 1]
        ends = range(waiting + 1, in_flight + 1)
        tokens = sum(reached[x] * x for x in ends)
        found.append((core_s + sum(reached[x] * boundary_s(x) for x in ends)) / tokens)
    return np.array(found)


def test_the_exact_chain_by_hand() -> None:
    # Both loop with chance 1/2 of an exit each: 4/3 launches until one or both have. They are one
    # with 2/3 and two with 1/3: 4/3 tokens. The one left alone takes 2 launches more, if it is.
    once, twice = chain(FLAT, 0.5, 2, 2)
    assert once == pytest.approx((4 / 3 + 1) / (4 / 3))
    assert twice == pytest.approx((4 / 3 + 2 / 3 * 2 + 1) / 2)


@pytest.mark.parametrize(("width", "in_flight"), [(16, 16), (8, 12), (4, 16)])
@pytest.mark.parametrize("mean", [1.25, 2.5, 6.0])
def test_depths_without_memory_cost_what_the_exact_chain_says(
    width: int, in_flight: int, mean: float
) -> None:
    found = costs(FLAT, geometric(mean), width, in_flight)
    assert found == pytest.approx(chain(FLAT, 1 / mean, width, in_flight), rel=0.05)


def test_depth_one_leaves_after_every_loop_whatever_the_minimum() -> None:
    assert costs(FLAT, Depths((1.0,)), 8) == pytest.approx(np.full(8, 2 / 8))


def test_one_token_in_flight_waits_for_nobody() -> None:
    assert costs(FLAT, Depths((0.0, 0.0, 1.0)), 1) == pytest.approx([3 + 1])
    assert best_minimum(FLAT, Depths.even(4), 8, 1, 10) == 1


def test_tokens_of_one_depth_gather_in_one_coda_and_then_lose_nothing() -> None:
    """All waiting for all, they leave together ever after: three loops and one boundary for 8."""
    always_three = costs(FLAT, Depths((0.0, 0.0, 1.0)), 8)
    assert always_three[-1] == pytest.approx((3 + 1) / 8)
    # They were met at all loops: where none waits, each loop is followed by a boundary.
    assert always_three[0] == pytest.approx(3 / 8 + 3 / 8)
    assert best_minimum(FLAT, Depths((0.0, 0.0, 1.0)), 8, 8, 10) > 4


def test_launches_that_cost_by_the_row_need_no_minimum() -> None:
    assert costs(LINEAR, geometric(3.0), 8) == pytest.approx(np.full(8, 3 + 1), rel=0.05)
    assert best_minimum(LINEAR, Depths.even(5), 16, 16, 10) == 1


def test_context_counts() -> None:
    longer = by_hand(Line(0.0, 0.0, 0.1), Line(1.0, 0.0), Line(1.0, 0.0))
    depths = Depths((1.0,))
    near, far = (seconds_per_token(longer, depths, 4, 4, at, [1])[0] for at in (10, 30))
    assert (near, far) == (pytest.approx((4 + 2) / 4), pytest.approx((12 + 2) / 4))


def test_a_readout_at_every_loop_is_paid_for_at_every_loop() -> None:
    # Depth 4 on costs by the row: four loops, four readouts, one prelude a token.
    found = costs(LINEAR, Depths((0.0, 0.0, 0.0, 1.0), read_out=True), 4)
    assert found == pytest.approx(np.full(4, 4 + 4 * 0.75 + 0.25), rel=0.05)


def test_tokens_above_the_width_may_wait_at_no_cost() -> None:
    """With half as many again as a launch has room for, that half waits for nothing else."""
    assert best_minimum(FLAT, Depths.even(3), 8, 12, 10) >= 4


@pytest.mark.parametrize("depths", [Depths.even(4), geometric(2.5), geometric(6.0)])
def test_the_heavier_flat_boundary_stages_are_the_more_tokens_they_wait_for(
    depths: Depths,
) -> None:
    best = []
    for weight in (0.01, 0.1, 1.0, 10.0, 1000.0):
        curves = by_hand(Line(1.0, 0.0), Line(weight, 0.0), Line(0.0, 0.0001))
        best.append(best_minimum(curves, depths, 16, 16, 10))
    assert best == sorted(best)
    assert best[-1] >= 15, "if only codas cost anything, all wait for one"


def test_a_heavy_coda_is_worth_some_waiting_but_not_for_all() -> None:
    curves = curves_of(SHAPES["flat"], HUGINN, 16)
    assert 1 < best_minimum(curves, Depths.even(8), 16, 16, CONTEXT) < 16


@given(st.integers(1, 70_000))
def test_minimums_go_from_one_to_the_most_in_growing_steps(most: int) -> None:
    found = minimums(most)
    assert (found[0], found[-1]) == (1, most)
    assert found == sorted(set(found))
    assert len(found) <= 9 + 6 * most.bit_length(), "six for each doubling, after the first nine"


@pytest.mark.parametrize("shares", [(), (0.0, 0.0), (1.0, -0.1)])
def test_shares_that_are_none_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Depths(shares)


def test_how_far_depths_are_from_others() -> None:
    assert Depths((1.0, 1.0)).distance(Depths((3.0, 1.0))) == pytest.approx(0.25)
    assert Depths.even(4).distance(Depths((2.0, 2.0, 2.0, 2.0))) == pytest.approx(0.0)
    assert Depths((1.0, 2.0, 1.0)).mean == pytest.approx(2.0)


def test_curves_that_do_not_reach_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="measured up to 16"):
        best_minimum(FLAT, Depths.even(4), 17, 17, 10)
    with pytest.raises(ValueError, match="measured up to 16"):
        AutoMinimum(17, 17, 4).use(FLAT)


@pytest.mark.parametrize(("width", "residents"), [(16, 16), (8, 12)])
@pytest.mark.parametrize("share", [8, 4, 2, 1])
@pytest.mark.parametrize("depths", [(1, 1, 1, 1), (1, 0, 0, 0, 1), (0, 1, 2, 3, 1)])
def test_the_model_costs_what_the_schedule_takes(
    width: int, residents: int, share: int, depths: tuple[int, ...]
) -> None:
    """Its seconds a token are those of the schedule itself, served other depths of the kind."""
    curves, minimum = curves_of(SHAPES["between"], HUGINN, width), max(1, width // share)
    shares = Depths(tuple(map(float, depths)))

    def draw(stream: Random) -> int:
        return stream.choices(range(1, len(depths) + 1), depths)[0]

    schedule = ContinuousDepth(width, minimum)
    found = simulate(schedule, curves, residents, draw, tokens=6000, seed=1)
    (cost,) = seconds_per_token(curves, shares, width, residents, CONTEXT, [minimum])
    assert cost == pytest.approx(found.seconds_per_token, rel=0.05)


# What is chosen as a run goes on.


def auto(width: int = 8, curves: MeasuredCurves | None = FLAT, max_loops: int = 4) -> AutoMinimum:
    found = AutoMinimum(width, width, max_loops)
    if curves is not None:
        found.use(curves)
    return found


def serve(minimum: AutoMinimum, depth: int, tokens: int) -> None:
    """Rounds of eight tokens of one depth, up to so many tokens."""
    everyone = np.arange(8)
    for start in range(0, tokens, 8):
        who = everyone[: tokens - start]
        minimum.entered(who)
        for _ in range(depth):
            minimum.ran_core(who)
        minimum.ran_coda(who.size, who)


def test_without_curves_the_minimum_is_one_and_says_so() -> None:
    unknown = auto(curves=None)
    serve(unknown, 3, 4 * FIRST * 8)
    assert unknown.rows(8) == 1
    assert unknown.note() == (
        "coda_min_rows auto: 1, since there were no stage curves to choose from"
    )


def test_before_any_exit_depths_are_taken_to_be_all_alike() -> None:
    assert auto().rows(8) == best_minimum(FLAT, Depths.even(4), 8, 8, 30)


def test_what_was_served_before_the_curves_came_counts() -> None:
    minimum = auto(curves=None)
    # Some more than a count at which they are looked at.
    serve(minimum, 1, FIRST * 8 + 3)
    minimum.use(FLAT)
    assert minimum.rows(8) == 1 != auto().rows(8), "of tokens of depth 1 none need wait"


def test_the_minimum_follows_the_exits_seen_at_fixed_counts() -> None:
    minimum = auto()
    before = minimum.rows(8)
    serve(minimum, 1, FIRST * 8 - 1)
    assert minimum.rows(8) == before > 1
    serve(minimum, 1, 1)
    assert minimum.rows(8) == 1
    minimum.restart()
    assert minimum.rows(8) == before, "a repeat starts as the first one did"


def test_depths_as_they_were_chosen_for_change_nothing() -> None:
    minimum = auto()
    before = minimum.rows(8)
    for _ in range(FIRST):
        for depth in (1, 2, 3, 4):
            serve(minimum, depth, 8)
    assert minimum.rows(8) == before


def test_readouts_are_told_from_codas_that_end_tokens() -> None:
    minimum = auto()
    everyone, nobody = np.arange(8), np.arange(0)
    for _ in range(FIRST):
        minimum.entered(everyone)
        for loop in range(3):
            minimum.ran_core(everyone)
            minimum.ran_coda(8, everyone if loop == 2 else nobody)
    read_out = Depths((0.0, 0.0, 1.0, 0.0), read_out=True)
    assert minimum.rows(8) == best_minimum(FLAT, read_out, 8, 8, 30)


@given(
    width=st.integers(1, 16),
    residents=st.integers(1, 40),
    held=st.integers(0, 40),
    loops=st.integers(1, 4),
)
def test_a_minimum_is_never_more_than_a_launch_or_than_there_are(
    width: int, residents: int, held: int, loops: int
) -> None:
    minimum = AutoMinimum(min(width, residents), residents, loops)
    minimum.use(FLAT)
    rows = minimum.rows(min(held, residents))
    assert 1 <= rows <= max(1, min(width, held, residents))


def test_the_note_names_the_minimum_of_most_codas() -> None:
    minimum = auto()
    assert minimum.note() == "coda_min_rows auto: no coda ran"
    least = minimum.rows(8)
    serve(minimum, 2, 24)
    assert minimum.note() == f"coda_min_rows auto: mostly {least}, chosen from the stage curves"
    assert minimum.rows(1) == 1
    serve(minimum, 2, 1)
    assert minimum.note() == (
        f"coda_min_rows auto: mostly {least} (from 1 to {least}), chosen from the stage curves"
    )


# What it is worth.


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("boundary", "loops"), [(OURO, 4), (HUGINN, 8)])
@pytest.mark.parametrize("depths", ["uniform", "bimodal", "early", "late"])
def test_auto_is_within_two_percent_of_the_best_fixed_minimum(
    shape: str, boundary: float, loops: int, depths: str
) -> None:
    """A part of the grid of ``scripts/coda_minimum.py``, on the schedule itself."""
    for width, residents in ((8, 8), (16, 24), (32, 32)):
        cell = compare(shape, boundary, loops, depths, width, residents, tokens_per_row=100)
        assert cell.excess < 0.02, cell


@pytest.mark.parametrize("file", BENCH, ids=lambda file: file.stem)
def test_auto_is_within_two_percent_of_every_fixed_minimum_on_measured_curves(file: Path) -> None:
    """Measured curves are neither smooth nor of one shape."""
    cells = compare_on(file, tokens_per_row=100)
    assert [cell.residents for cell in cells] == [32, 48, 64]
    for cell in cells:
        assert list(cell.fixed_ms) == list(range(1, cell.width + 1))
        assert cell.excess < 0.02, cell


def test_the_bench_set_is_there_to_choose_on() -> None:
    assert len(BENCH) == 4


def test_waiting_is_worth_something_where_the_boundary_is_heavy() -> None:
    """The comparison above can tell minimums apart: the worst fixed one is far from the best."""
    cell = compare("flat", HUGINN, 8, "uniform", 32, 32, tokens_per_row=100)
    assert max(cell.fixed_ms.values()) > 1.1 * min(cell.fixed_ms.values())

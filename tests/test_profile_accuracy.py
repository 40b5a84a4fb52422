"""Accuracy in a profile: its own sweep, and fixed depths as what there is to beat."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdbench.metrics.envelope import height_at, upper_hull
from cdbench.profile.accuracy import accuracy_sweep, with_accuracy
from cdbench.profile.grid import Axes, profile_base
from cdbench.schema import IntervalRecord
from cdbench.schema.profile import AccuracyPoint, ProfileCell
from cdbench.sweep.cells import expand
from cdbench.sweep.runners import checker

POINTS = st.lists(
    st.tuples(st.integers(1, 20), st.floats(0, 1)), min_size=1, max_size=8, unique_by=lambda p: p[0]
).map(sorted)


def test_every_threshold_answers_once_and_fixed_depths_in_one_cell() -> None:
    base = profile_base(None, (), {"model": "demo-ouro", "exit.rule": "cdf"}, "cdb")
    axes = Axes(thresholds=[0.9, 0.6], max_loops=[4, 3], widths=[2, 8], rates=[1.0])
    sweep = expand(
        accuracy_sweep(base, axes, "profile-x", "cdb", 7, full_depth=4), "p", check=checker()
    )
    assert len(sweep.cells) == 2 * 2 + 1, "widths and rates change no answer"
    for cell in sweep.cells:
        assert cell.config.work == ("live",)
        assert cell.config.limit == 7
    modes = [[str(mode) for mode in cell.config.resolved_modes] for cell in sweep.cells]
    assert modes.count(["static", "cdb"]) == 4
    assert modes[-1] == ["static", "static@1", "static@2"], "below the least R"


def test_fixed_depths_by_hand() -> None:
    hull = list(upper_hull([(1.0, 0.2), (2.0, 0.3), (3.0, 0.8), (4.0, 0.8)]))
    assert hull == [(1.0, 0.2), (3.0, 0.8), (4.0, 0.8)], "depth 2 lies below mixing 1 and 3"
    assert height_at(hull, 2.0) == pytest.approx(0.5)
    assert height_at(hull, 3.5) == pytest.approx(0.8)
    assert height_at(hull, 0.5) is None
    assert height_at(hull, None) is None
    assert height_at([(2.0, 0.7)], 2.0) == 0.7


@given(POINTS)
def test_the_hull_lies_above_every_point_and_turns_down(
    points: list[tuple[float, float]],
) -> None:
    hull = list(upper_hull(points))
    assert set(hull) <= set(points)
    assert (hull[0], hull[-1]) == (points[0], points[-1])
    for depth, share in points:
        along = height_at(hull, depth)
        assert along is not None
        assert along >= share - 1e-9
    slopes = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(hull)]
    assert all(after <= before + 1e-9 for before, after in pairwise(slopes))


def test_a_cell_takes_the_accuracy_of_its_own_operating_point() -> None:
    rate = IntervalRecord(estimate=0.9, low=0.8, high=0.95, n=50)
    point = AccuracyPoint(
        mode="cdb", rule="cdf", threshold=0.9, max_loops=4, accuracy=rate, verdict="within"
    )
    cell = ProfileCell(
        number=1,
        hash="h",
        changes={},
        state="VALID",
        rule="cdf",
        threshold=0.9,
        max_loops=4,
        width=8,
        arrivals="all-at-once",
    )
    found = with_accuracy(cell, [point], "cdb")
    assert (found.accuracy, found.accuracy_verdict) == (rate, "within")
    other = cell.model_copy(update={"threshold": 0.6})
    assert with_accuracy(other, [point], "cdb") == other
    assert with_accuracy(cell, [point], "lockstep") == cell

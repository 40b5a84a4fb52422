"""A ratio of sums with other requests: a bootstrap that draws each request with both its costs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cdbench.stats import resampling
from cdbench.stats.distributions import compare_tasks, mean_depth
from cdbench.stats.interval import Interval
from cdbench.stats.resampling import (
    MIN_REQUESTS,
    MOST_CELLS,
    RESAMPLES,
    in_parts,
    moved,
    ratio_over_requests,
)


def test_equal_requests_leave_nothing_to_move() -> None:
    found = ratio_over_requests([4.0] * 20, [2.0] * 20)
    assert (found.estimate, found.low, found.high, found.n) == (2.0, 2.0, 2.0, 20)


def test_a_request_is_drawn_with_both_of_its_costs() -> None:
    """However unlike the requests are, a ratio that is the same in each cannot move."""
    sizes = np.arange(1.0, 31.0)
    found = ratio_over_requests(3 * sizes, sizes)
    assert found.low == pytest.approx(3.0)
    assert found.high == pytest.approx(3.0)


def test_the_interval_is_as_wide_as_that_of_many_samples() -> None:
    """Requests at depth 1 or 4 by halves: the spread of the ratio over fresh samples agrees."""
    random = np.random.default_rng(1)
    own = random.choice([1.0, 4.0], size=100)
    found = ratio_over_requests(np.full(100, 4.0), own)
    fresh = [400 / random.choice([1.0, 4.0], size=100).sum() for _ in range(4000)]
    low, high = np.quantile(fresh, [0.025, 0.975])
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.low == pytest.approx(high - low, rel=0.2)
    assert found == ratio_over_requests(np.full(100, 4.0), own), "the same draw again"


def test_few_requests_have_no_interval_and_nonsense_is_refused() -> None:
    few = ratio_over_requests([2.0] * (MIN_REQUESTS - 1), [1.0] * (MIN_REQUESTS - 1))
    assert (few.estimate, few.low, few.high) == (2.0, None, None)
    for full, own in (([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0])):
        with pytest.raises(ValueError, match="a request"):
            ratio_over_requests(full, own)


def test_an_estimate_moves_in_proportion_to_what_the_draws_move() -> None:
    # Nineteen in twenty of the draws are a tenth off, up or down; one is far off.
    drawn = [2.0 * 1.1, 2.0 / 1.1] * 10
    found = moved(1.5, base=2.0, drawn=[*drawn, 8.0], n=7)
    assert (found.estimate, found.n) == (1.5, 7)
    assert (found.low, found.high) == pytest.approx((1.5 / 1.1, 1.5 * 1.1))
    leaning = moved(1.5, base=2.0, drawn=[2.1] * 10, n=7)
    assert (leaning.low, leaning.high) == pytest.approx((1.5 * 2.0 / 2.1, 1.5 * 2.1 / 2.0))
    still = moved(1.5, base=2.0, drawn=[2.0] * 10, n=7)
    assert (still.low, still.high) == (1.5, 1.5)


def test_two_sources_of_noise_add_up_in_squares_on_logs() -> None:
    blocks, passes = Interval(2.0, 2 / 1.3, 2 * 1.3, 6), Interval(0.5, 0.5 / 1.4, 0.5, 7)
    both = blocks.widened(passes)
    down = math.hypot(math.log(1.3), math.log(1.4))
    assert (both.estimate, both.n) == (2.0, 6)
    assert (both.low, both.high) == pytest.approx((2 * math.exp(-down), 2 * 1.3))
    unsure = blocks.widened(Interval(0.5, None, None, 2))
    assert (unsure.low, unsure.high) == (None, None)


@pytest.mark.parametrize("cells", [1, 999, 1 << 15])
def test_drawing_in_parts_changes_nothing(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    full, own = random.integers(1, 100, 300).astype(float), random.random(300) + 0.1
    depths = [[int(d) for d in random.integers(1, 5, 6)] for _ in range(60)]
    tasks = {"a": depths[:25], "b": depths[25:]}

    def found() -> tuple[object, ...]:
        pairs = compare_tasks(tasks, resamples=300, permutations=300)
        return ratio_over_requests(full, own), pairs, mean_depth(depths, resamples=300)

    monkeypatch.setattr(resampling, "MOST_CELLS", 1 << 40)
    at_once = found()
    monkeypatch.setattr(resampling, "MOST_CELLS", cells)
    assert found() == at_once


@pytest.mark.parametrize("requests", [1, 10, 1999, 100_000, 10**9])
def test_the_draws_of_many_requests_are_never_all_held_at_once(requests: int) -> None:
    parts = list(in_parts(RESAMPLES, requests))
    assert sum(parts) == RESAMPLES
    assert all(rows == 1 or rows * requests <= MOST_CELLS for rows in parts)

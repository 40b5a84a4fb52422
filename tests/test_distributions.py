"""Exit depths of tasks: known answers, and intervals and tests that keep their level."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdbench.stats.distributions import (
    compare_tasks,
    distance_test,
    mean_depth,
    mean_difference,
)
from cdbench.stats.holm import holm
from cdbench.stats.interval import Interval


def test_holm_multiplies_by_the_tests_left_and_never_falls() -> None:
    # sorted: .01·4, .02·3, .03·2, .5·1 = .04, .06, .06, .5; in the order given
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= a <= 1 for p, a in zip(p_values, adjusted, strict=True))
    ranked = [a for _, a in sorted(zip(p_values, adjusted, strict=True))]
    assert ranked == sorted(ranked)


def test_a_mean_depth_is_loops_over_tokens_and_not_a_mean_of_means() -> None:
    # 3 tokens at 1 and one request of one token at 4: (3 + 4) / 4, not (1 + 4) / 2
    assert mean_depth([[1, 1, 1], [4]]) == Interval(1.75, None, None, 2)
    assert mean_depth([[1, 1, 1], [], [4]]) == Interval(1.75, None, None, 2)
    assert mean_depth([[], []]) is None
    assert mean_difference([[2, 2]], [[1], [4]]) == Interval(-0.5, None, None, 1)
    assert mean_difference([[2]], []) is None


def test_requests_that_do_not_differ_give_no_interval() -> None:
    assert mean_depth([[2, 2]] * 30) == Interval(2.0, None, None, 30)


def drawn(
    rng: np.random.Generator, requests: int, a: float = 1.0, b: float = 2.0
) -> list[list[int]]:
    """Requests whose tokens share a chance: 1 + binomial(3, beta(a, b)); mean 1 + 3a/(a + b)."""
    return [
        (1 + rng.binomial(3, rng.beta(a, b), size=1 + rng.poisson(8))).tolist()
        for _ in range(requests)
    ]


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """200 tasks of 15 requests each: 95 % ± 3 standard errors (1.5 points each)."""
    rng = np.random.default_rng(1)
    intervals = [mean_depth(drawn(rng, 15), resamples=400, seed=n) for n in range(200)]
    held = sum(2.0 in interval for interval in intervals if interval is not None)
    assert 0.90 * 200 <= held <= 0.997 * 200
    pairs = [
        mean_difference(drawn(rng, 12), drawn(rng, 25, 2.0, 1.0), resamples=400, seed=n)
        for n in range(200)
    ]
    held = sum(-1.0 in pair for pair in pairs if pair is not None)
    assert 0.90 * 200 <= held <= 0.997 * 200


def test_tokens_of_one_request_do_not_count_as_many() -> None:
    """Repeating every token changes nothing; treating tokens as independent would shrink it."""
    requests = drawn(np.random.default_rng(2), 20)
    once, often = mean_depth(requests), mean_depth([r * 10 for r in requests])
    assert once is not None
    assert often is not None
    assert once.low is not None
    assert often.low == pytest.approx(once.low)
    assert often.high == pytest.approx(once.high)


def test_equal_tasks_are_not_told_apart_more_often_than_chance() -> None:
    rng = np.random.default_rng(3)
    p_values = [
        distance_test(drawn(rng, 12), drawn(rng, 16), permutations=200, seed=n)[2]
        for n in range(200)
    ]
    rejected = sum(p <= 0.05 for p in p_values if p is not None)
    assert rejected <= 0.10 * 200


def test_the_distance_is_total_variation_and_its_test_counts_deals() -> None:
    # shares (2/4, 1/4, 1/4, 0) and (0, 1/4, 1/4, 2/4): half of (2 + 2)/4
    assert distance_test([[1, 1, 2, 3]], [[4, 4, 2, 3]]) == (0.5, None, None)
    low, high = [[1, 1]] * 10, [[4, 4]] * 10
    distance, by_chance, p = distance_test(low, high, permutations=300, seed=1)
    assert distance == 1.0
    assert p == pytest.approx(1 / 301)  # no deal is as far
    assert by_chance is not None
    assert 0 < by_chance < 0.5
    assert distance_test(low, low)[2] == 1.0
    with pytest.raises(ValueError, match="without a token"):
        distance_test([[]], [[1]])


def test_tasks_are_compared_pair_by_pair_and_the_same_every_time() -> None:
    rng = np.random.default_rng(4)
    tasks = {"a": drawn(rng, 30), "b": drawn(rng, 30), "c": drawn(rng, 30, 4.0, 1.0), "d": [[1]]}
    found = compare_tasks(tasks, permutations=200, resamples=200)
    assert [(pair.first, pair.second) for pair in found] == list(itertools.combinations("abcd", 2))
    by_pair = {pair.first + pair.second: pair for pair in found}
    assert by_pair["ac"].adjusted_p is not None
    assert by_pair["ac"].adjusted_p <= 0.05
    assert 0 not in by_pair["ac"].difference
    assert (by_pair["ab"].adjusted_p or 0) > 0.05
    assert by_pair["ad"].p_value is by_pair["ad"].adjusted_p is None  # one request
    tested = [pair for pair in found if pair.p_value is not None]
    assert [pair.adjusted_p for pair in tested] == holm([pair.p_value or 0 for pair in tested])
    assert found == compare_tasks(tasks, permutations=200, resamples=200)

"""Intervals against published examples, and what they must do at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cdbench.stats.blocks import BlockRun, geometric_mean, log_ratios, mean, palindrome, speedup
from cdbench.stats.paired import (
    Verdict,
    compare_paired,
    mcnemar,
    non_inferiority,
    paired_difference,
    wilson,
)

# --- blocks ---


def test_palindrome() -> None:
    assert palindrome(["A", "B", "C"]) == list("ABCCBA")
    assert palindrome(["A", "B", "C"], rotate=4) == list("BCAACB")
    assert palindrome([]) == []
    with pytest.raises(ValueError, match="once"):
        palindrome(["A", "A"])


@settings(deadline=None)
@given(st.lists(st.text(min_size=1), unique=True, max_size=6), st.integers(0, 9))
def test_palindrome_reads_the_same_both_ways(modes: list[str], rotate: int) -> None:
    order = palindrome(modes, rotate)
    assert order == order[::-1]
    assert sorted(order) == sorted([*modes, *modes])


def test_a_block_cancels_a_linear_drift() -> None:
    # The machine slows by 0.1 s a run; A takes 1 s and B 2 s beneath that.
    base = {"A": 1.0, "B": 2.0}
    runs = [BlockRun(0, m, base[m] + 0.1 * i) for i, m in enumerate(palindrome(["A", "B"]))]
    (ratio,) = log_ratios(runs, "A", "B")
    assert ratio == pytest.approx(math.log((2 * 2.0 + 0.3) / (2 * 1.0 + 0.3)))


def test_unfinished_blocks_are_left_out() -> None:
    runs = [BlockRun(0, m, 1.0) for m in "ABBA"] + [BlockRun(1, m, 5.0) for m in "ABB"]
    assert log_ratios(runs, "A", "B") == [0.0]
    assert speedup(runs, "A", "C") is None


def test_a_wall_must_be_positive() -> None:
    with pytest.raises(ValueError, match="not positive"):
        log_ratios([BlockRun(0, "A", 0.0)], "A", "B")


def test_speedup_is_the_geometric_mean_with_a_t_interval_on_logs() -> None:
    ratios = [1.4, 1.5, 1.6, 1.5, 1.45, 1.55]
    runs = [
        BlockRun(i, mode, wall)
        for i, ratio in enumerate(ratios)
        for mode, wall in (("s", ratio), ("c", 1.0), ("c", 1.0), ("s", ratio))
    ]
    result = speedup(runs, "c", "s")
    assert result is not None
    logs = np.log(ratios)
    reach = stats.t.ppf(0.975, 5) * logs.std(ddof=1) / math.sqrt(6)
    assert result.estimate == pytest.approx(math.exp(logs.mean()))
    assert result.low == pytest.approx(math.exp(logs.mean() - reach))
    assert result.high == pytest.approx(math.exp(logs.mean() + reach))
    assert result.n == 6
    inverse = speedup(runs, "s", "c")
    assert inverse is not None
    assert inverse.estimate == pytest.approx(1 / result.estimate)
    assert inverse.low == pytest.approx(1 / (result.high or 0))


def test_below_six_blocks_there_is_no_interval() -> None:
    five, six = geometric_mean([0.1] * 5), geometric_mean([0.1] * 6)
    assert five is not None
    assert five.estimate == pytest.approx(math.exp(0.1))
    assert (five.low, five.high, five.n, five.defined) == (None, None, 5, False)
    assert six is not None
    assert six.defined
    assert geometric_mean([]) is None
    assert mean([]) is None


def test_mean_of_blocks() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    result = mean(values)
    assert result is not None
    low, high = stats.t.interval(0.95, 5, loc=3.5, scale=stats.sem(values))
    assert (result.estimate, result.low, result.high) == pytest.approx((3.5, low, high))


# --- paired accuracy ---


def test_tango_interval_of_a_published_example() -> None:
    # Airway hyper-responsiveness before and after a transplant, 21 children: 1 against 7 changed
    # (Fagerland, Lydersen, Laake, Statistics in Medicine 33 (2014) 2850-2875).
    result = paired_difference(lost=7, gained=1, n=21)
    assert result.estimate == pytest.approx(-6 / 21)
    assert (result.low, result.high) == pytest.approx((-0.517, -0.026), abs=5e-4)


def test_no_changed_answer_still_leaves_doubt() -> None:
    # With b = c = 0 the score limits are ± z²/(n + z²).
    z2 = stats.norm.ppf(0.975) ** 2
    result = paired_difference(0, 0, 100)
    assert (result.low, result.high) == pytest.approx((-z2 / (100 + z2), z2 / (100 + z2)))


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 200))
def test_paired_difference_holds_its_estimate_and_mirrors(
    lost: int, gained: int, same: int
) -> None:
    n = lost + gained + same
    if n == 0:
        return
    result, mirrored = paired_difference(lost, gained, n), paired_difference(gained, lost, n)
    assert result.low is not None
    assert result.high is not None
    assert -1 <= result.low <= result.estimate <= result.high <= 1
    assert mirrored.low == pytest.approx(-result.high)
    wide = paired_difference(lost, gained, n, level=0.99)
    assert wide.low is not None
    assert wide.low <= result.low + 1e-12


def test_tango_covers_at_its_level() -> None:
    generator = np.random.default_rng(1)
    lost_rate, gained_rate, n = 0.06, 0.02, 200
    draws = generator.multinomial(n, [lost_rate, gained_rate, 1 - lost_rate - gained_rate], 400)
    hits = sum(
        (gained_rate - lost_rate) in paired_difference(int(lost), int(gained), n)
        for lost, gained, _ in draws
    )
    assert 0.92 <= hits / 400 <= 0.98


@pytest.mark.parametrize(("lost", "gained", "n"), [(0, 0, 0), (3, 3, 5)])
def test_impossible_counts_are_refused(lost: int, gained: int, n: int) -> None:
    with pytest.raises(ValueError, match="questions"):
        paired_difference(lost, gained, n)


def test_mcnemar_is_the_exact_binomial_test() -> None:
    assert mcnemar(7, 1) == pytest.approx(2 * (1 + 8) / 2**8)
    assert mcnemar(5, 5) == 1.0
    assert mcnemar(0, 0) == 1.0


def test_wilson_interval() -> None:
    z, p, n = stats.norm.ppf(0.975), 0.9, 50
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    reach = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    result = wilson(45, 50)
    assert result is not None
    assert (result.low, result.high) == pytest.approx((centre - reach, centre + reach))
    everything = wilson(50, 50)
    assert everything is not None
    assert everything.high == pytest.approx(1.0)
    assert wilson(0, 0) is None


@pytest.mark.parametrize(
    ("lost", "gained", "n", "verdict"),
    [
        (5, 5, 700, Verdict.WITHIN),
        (5, 5, 300, Verdict.CANNOT_TELL),
        (0, 0, 100, Verdict.CANNOT_TELL),
        (0, 0, 300, Verdict.WITHIN),
        (0, 40, 300, Verdict.WITHIN),  # a gain passes
        (60, 10, 1000, Verdict.WORSE),
        (20, 5, 1000, Verdict.CANNOT_TELL),
    ],
)
def test_non_inferiority_within_one_point(lost: int, gained: int, n: int, verdict: Verdict) -> None:
    assert non_inferiority(lost, gained, n) is verdict


def test_compare_paired_counts_questions() -> None:
    baseline = [True, True, True, False, False, True]
    mode = [True, False, False, True, False, True]
    result = compare_paired(baseline, mode)
    assert result is not None
    assert (result.n, result.lost, result.gained) == (6, 2, 1)
    assert result.difference.estimate == pytest.approx(-1 / 6)
    assert result.baseline_rate.estimate == pytest.approx(4 / 6)
    assert result.rate.estimate == pytest.approx(3 / 6)
    assert result.discordance == pytest.approx(0.5)
    assert result.verdict is Verdict.CANNOT_TELL
    assert compare_paired([], []) is None
    with pytest.raises(ValueError, match="6 baseline answers against 1"):
        compare_paired(baseline, [True])

"""The three-way verdict: hand-computed gains, mirrored sides, shares of error, simulated noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cdbench.stats.blocks import MIN_BLOCKS, geometric_mean
from cdbench.stats.gains import Gain, paired_gain, unpaired_gain
from cdbench.stats.gate import (
    DEFAULT_MARGIN,
    FAIL_ERROR,
    LOOKS,
    PASS_ERROR,
    SINGLE_LOOK,
    Decision,
    judge,
    look_errors,
    overall,
)

LOGS = st.lists(st.floats(-0.5, 0.5), min_size=MIN_BLOCKS, max_size=30)


def decide(logs: list[float], margin: float = DEFAULT_MARGIN) -> Decision:
    gain = paired_gain(logs)
    assert gain is not None
    return judge([gain], [margin])[0].decision


def test_a_paired_gain_is_the_geometric_mean_with_its_interval() -> None:
    logs = [0.1, 0.12, 0.08, 0.11, 0.09, 0.1]
    gain, plain = paired_gain(logs), geometric_mean(logs)
    assert gain is not None
    assert plain is not None
    found = gain.interval(0.95)
    assert (found.estimate, found.low, found.high) == pytest.approx(
        (plain.estimate, plain.low, plain.high)
    )


def test_an_unpaired_gain_is_welchs() -> None:
    base, own = [0.0, 0.02, -0.02, 0.01, -0.01, 0.0], [0.1, 0.2, 0.0, 0.15, 0.05, 0.1, 0.1]
    gain = unpaired_gain(base, own)
    assert gain is not None
    reference = stats.ttest_ind(own, base, equal_var=False)
    assert gain.error is not None
    assert gain.log_mean / gain.error == pytest.approx(reference.statistic)
    assert gain.degrees == pytest.approx(reference.df)
    assert gain.p_worse == pytest.approx(1 - reference.pvalue / 2)
    assert gain.n == 6


@pytest.mark.parametrize("few", [[], [0.1], [0.1] * (MIN_BLOCKS - 1)])
def test_too_few_observations_give_no_interval_and_no_verdict(few: list[float]) -> None:
    gain = paired_gain(few)
    if not few:
        assert gain is None
        return
    assert gain is not None
    assert not gain.interval(0.95).defined
    assert gain.p_worse is None
    assert judge([gain], [0.05])[0].decision is Decision.INCONCLUSIVE


@given(LOGS, LOGS)
def test_swapped_sides_mirror_every_figure(one: list[float], other: list[float]) -> None:
    there, back = unpaired_gain(one, other), unpaired_gain(other, one)
    assert there is not None
    assert back is not None
    turned = back.turned
    assert there.log_mean == pytest.approx(turned.log_mean, abs=1e-12)
    assert there.error == pytest.approx(turned.error, abs=1e-12)
    low, high = there.low(0.025), back.high(0.025)
    assert low is not None
    assert high is not None
    assert low == pytest.approx(-high, abs=1e-9)


@given(LOGS, st.floats(0.01, 0.3))
def test_a_side_that_fails_passes_the_other_way_round(logs: list[float], margin: float) -> None:
    if decide(logs, margin) is Decision.FAIL:
        assert decide([-log for log in logs], margin) is Decision.PASS


def test_the_margin_is_symmetric_in_logs() -> None:
    """A loss of exactly the margin and its mirror lie equally far from 1."""
    reach = math.log1p(0.05)
    assert decide([-reach * 0.99] * 6) is Decision.PASS
    assert decide([-reach * 1.01] * 6) is Decision.FAIL
    assert decide([reach * 2] * 6) is Decision.PASS


def test_what_is_certain_but_small_does_not_fail_and_what_is_large_but_noise_neither() -> None:
    assert decide([-0.03 + d for d in (0.001, -0.001, 0.0, 0.0005, -0.0005, 0.0)]) is Decision.PASS
    noisy = [-0.5, 0.4, -0.6, 0.35, -0.4, 0.3]
    assert sum(noisy) / 6 < -math.log1p(DEFAULT_MARGIN)
    assert decide(noisy) is Decision.INCONCLUSIVE


def test_the_looks_share_the_errors() -> None:
    errors = look_errors()
    assert len(errors) == len(LOOKS)
    assert [each.fail for each in errors] == sorted(each.fail for each in errors)
    # nominal levels add up to more than the whole, since looks are correlated
    assert errors[-1].fail < FAIL_ERROR < sum(each.fail for each in errors)
    assert errors[-1].passes < PASS_ERROR < sum(each.passes for each in errors)
    (single,) = look_errors((12,))
    assert (single.fail, single.passes) == pytest.approx((SINGLE_LOOK.fail, SINGLE_LOOK.passes))


def test_several_metrics_share_the_error_of_failing() -> None:
    """A p of 2 % fails alone; among six it does not."""
    mean, n = -0.08, 12
    p = 0.02
    error = mean / stats.t.ppf(p, n - 1)
    slow, same = Gain(mean, float(error), n - 1, n), Gain(0.0, 0.01, n - 1, n)
    assert judge([slow], [0.05])[0].decision is Decision.FAIL
    found = judge([slow, *[same] * 5], [0.05] * 6)
    assert found[0].decision is Decision.INCONCLUSIVE
    assert found[0].adjusted_p == pytest.approx(6 * p)


def test_the_worst_decision_is_the_gates() -> None:
    assert overall([]) is Decision.PASS
    assert overall([Decision.PASS, Decision.INCONCLUSIVE]) is Decision.INCONCLUSIVE
    assert overall([Decision.INCONCLUSIVE, Decision.FAIL]) is Decision.FAIL


@pytest.mark.parametrize("margin", [0.0, -0.1, math.nan])
def test_a_margin_that_is_none_is_refused(margin: float) -> None:
    gain = paired_gain([0.0] * 6)
    assert gain is not None
    with pytest.raises(ValueError, match="margin"):
        judge([gain], [margin])


@pytest.mark.parametrize(("slowdown", "wanted"), [(0.0, Decision.PASS), (0.08, Decision.FAIL)])
def test_simulated_noise_is_seldom_mistaken(slowdown: float, wanted: Decision) -> None:
    """Twelve pairs of three per cent noise, one look."""
    rng = np.random.default_rng(0)
    draws = rng.normal(-math.log1p(slowdown), 0.03, (400, 12))
    found = [decide(list(logs)) for logs in draws]
    assert found.count(wanted) / len(found) >= 0.85
    wrong = Decision.FAIL if wanted is Decision.PASS else Decision.PASS
    assert found.count(wrong) / len(found) <= 0.01


@settings(max_examples=30)
@given(st.lists(st.floats(-0.3, 0.3), min_size=6, max_size=6))
def test_a_gain_that_does_not_vary_is_certain(logs: list[float]) -> None:
    gain = paired_gain([logs[0]] * 6)
    assert gain is not None
    assert gain.interval(0.95).low == pytest.approx(math.exp(logs[0]), abs=1e-9)

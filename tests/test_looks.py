"""Looks fixed in advance: published boundaries, traces by hand, and coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cdbench.schema import LooksRecord, to_json
from cdbench.stats.blocks import geometric_mean
from cdbench.stats.interval import Interval
from cdbench.stats.looks import ERROR, Looks, half_width, look_levels, looks_for, spent


def boundaries(shares: tuple[float, ...]) -> list[float]:
    return [float(stats.norm.isf((1 - level) / 2)) for level in look_levels(shares)]


def test_the_boundaries_are_the_published_ones() -> None:
    # DeMets and Lan, Statistics in Medicine 13 (1994): two-sided 5 %, O'Brien–Fleming type
    assert boundaries((0.2, 0.4, 0.6, 0.8, 1.0)) == pytest.approx(
        [4.8769, 3.3569, 2.6803, 2.2898, 2.0310], abs=2e-3
    )
    assert boundaries((0.5, 1.0)) == pytest.approx([2.9626, 1.9686], abs=1e-3)


def test_one_look_is_a_plain_interval() -> None:
    assert look_levels((1.0,)) == pytest.approx((0.95,))
    logs = [0.1, 0.12, 0.09, 0.11, 0.1, 0.13]
    look = Looks(max_blocks=6, target=1e-9).after(logs)
    assert look is not None
    plain = geometric_mean(logs)
    assert plain is not None
    assert look.stop
    assert not look.narrow
    assert (look.interval.low, look.interval.high) == pytest.approx((plain.low, plain.high))


def test_the_error_is_spent_little_by_little_and_in_full() -> None:
    assert spent(1.0) == pytest.approx(ERROR)
    # α(1/4) = 4·(1 − Φ(2.2414 / 0.5)) = 4·3.68e-6
    assert spent(0.25) == pytest.approx(1.47e-5, rel=0.01)
    assert 0 < spent(0.1) < spent(0.25) < spent(0.5) < ERROR


def test_the_looks_are_fixed_in_advance() -> None:
    assert Looks(24, 0.02).after_blocks == (6, 12, 24)
    assert Looks(30, 0.02).after_blocks == (6, 12, 24, 30)
    assert Looks(40, 0.02, first=10).after_blocks == (10, 20, 40)
    levels = Looks(24, 0.02).levels
    assert levels[0] > levels[1] > levels[2] > 0.95
    quiet = [0.3] * 24
    due = [n for n in range(1, 25) if Looks(24, 0.02).after(quiet[:n]) is not None]
    assert due == [6, 12, 24]


def test_the_looks_of_a_configuration() -> None:
    assert looks_for(6, 0.02).after_blocks == (6, 12, 24)
    assert looks_for(2, 0.02) == looks_for(6, 0.02), "an interval needs six"
    assert looks_for(10, 0.02).after_blocks == (10, 20, 40)


def test_the_record_tells_how_it_ended() -> None:
    looks = looks_for(6, 0.02)
    look = looks.after([0.31, 0.29] * 6)
    assert look is not None
    made = LooksRecord.of(looks, look)
    assert (made.ended_after, made.narrow, made.after_blocks) == (12, True, [6, 12, 24])
    assert made.level == made.levels[1] == look.level
    assert LooksRecord.model_validate_json(to_json(made)) == made


def test_it_stops_when_narrow_and_not_before() -> None:
    looks = Looks(24, target=0.02)
    # alternating 0.3 ± 0.01: deviation 0.01·√(12/11) = 0.01044, error 0.003015 with 12 blocks
    logs = [0.31, 0.29] * 6
    first, second = looks.after(logs[:6]), looks.after(logs)
    assert first is not None
    assert second is not None
    assert (first.stop, first.narrow) == (False, False)
    reach = stats.t.isf((1 - second.level) / 2, 11) * 0.01 * math.sqrt(12 / 11) / math.sqrt(12)
    assert half_width(second.interval) == pytest.approx(math.expm1(reach))
    assert second.interval.estimate == pytest.approx(math.exp(0.3))
    assert (second.stop, second.narrow) == (True, True)
    assert second.level == looks.levels[1]


def test_the_last_look_stops_however_wide() -> None:
    rng = np.random.default_rng(5)
    look = Looks(24, target=0.001).after(list(rng.normal(0, 0.2, 24)))
    assert look is not None
    assert (look.stop, look.narrow) == (True, False)


def test_a_run_cut_short_spends_what_is_left() -> None:
    looks = Looks(24, target=0.02)
    logs = [0.31, 0.29] * 5
    assert looks.cut_short(logs[:5]) is None
    look = looks.cut_short(logs)
    assert look is not None
    # After the look at 6 nearly all of the error is left.
    assert look.level == pytest.approx(0.95, abs=1e-4)
    assert look.stop
    late = looks.cut_short(logs * 2)
    assert late is not None
    assert 0.95 < late.level < looks.levels[1]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [((24, 0.0), "target"), ((5, 0.1), "max_blocks"), ((24, 0.1, 5), "first look")],
)
def test_what_cannot_be(arguments: tuple[float, ...], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Looks(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rise"):
        look_levels((0.5, 0.5))


def test_half_width_is_a_share_of_the_ratio() -> None:
    assert half_width(Interval(2.0, 2.0 / 1.05, 2.0 * 1.05, 6)) == pytest.approx(0.05)
    assert half_width(Interval(2.0, None, None, 3)) == math.inf


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=5, unique=True))
def test_levels_stay_between_the_error_and_one(blocks: list[int]) -> None:
    shares = tuple(n / max(blocks) for n in sorted(blocks))
    levels = look_levels(shares)
    assert all(1 - ERROR - 1e-4 <= level <= 1 for level in levels)
    # each look's own chance of a miss is at least what it spends, and all together spend 5 %
    steps = np.diff([0.0, *(spent(s) for s in shares)])
    assert all(1 - level >= step - 1e-4 for level, step in zip(levels, steps, strict=True))


RUNS = 20_000


def coverage(levels: tuple[float, ...], rule: str, sigma: float, target: float) -> float:
    """Share of simulated runs of 24 blocks whose interval, at the look it ends at, holds 0."""
    rng = np.random.default_rng(20)
    logs = rng.normal(0.0, sigma, (RUNS, 24))
    ended = np.zeros(RUNS, dtype=bool)
    holds = np.zeros(RUNS, dtype=bool)
    for blocks, level in zip((6, 12, 24), levels, strict=True):
        seen = logs[:, :blocks]
        error = seen.std(axis=1, ddof=1) / math.sqrt(blocks)
        reach = stats.t.isf((1 - level) / 2, blocks - 1) * error
        centre = seen.mean(axis=1)
        narrow = np.expm1(reach) <= target
        away = np.abs(centre) > reach
        stops = (narrow if rule == "narrow" else away) | (blocks == 24)
        now = stops & ~ended
        holds[now] = ~away[now]
        ended |= now
    return float(holds.mean())


@pytest.mark.parametrize("target", [0.002, 0.005, 0.01, 0.02])
def test_stopping_when_narrow_keeps_the_coverage(target: float) -> None:
    """At noise of 1 % a block. Three standard deviations of the simulation: 0.0046."""
    widened = coverage(Looks(24, target).levels, "narrow", 0.01, target)
    naive = coverage((0.95, 0.95, 0.95), "narrow", 0.01, target)
    assert widened >= 0.95 - 0.0046
    assert naive <= widened + 0.002


def test_even_stopping_at_a_difference_keeps_the_coverage() -> None:
    """Whoever stops as soon as an interval excludes 1 is wrong in one run of twenty, not more."""
    widened = coverage(Looks(24, 0.01).levels, "away", 0.01, 0.01)
    naive = coverage((0.95, 0.95, 0.95), "away", 0.01, 0.01)
    assert widened >= 0.95 - 0.0046
    assert naive < 0.91

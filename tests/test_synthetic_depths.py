"""Synthetic depths: the grammar, the distributions, and what a request's depths depend on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdbench.errors import UsageError
from cdbench.grammar import DEPTHS, DepthSpec, parse_depths
from cdbench.models.base import StagedModel
from cdbench.runtime.core import ExitPolicy, Request
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.workloads.synthetic_depths import depths_of, mark, weights, with_depths

TOKENS = 20_001
specs = st.one_of(
    st.sampled_from([name for name in DEPTHS if name != "recorded"]).map(DepthSpec),
    st.floats(0, 1, exclude_max=True).map(lambda rho: DepthSpec("serial", rho)),
)


def later(text: str, loops: int, request: str = "a", seed: int = 7) -> np.ndarray:
    """Depths of a request of 20,000 later tokens."""
    return np.array(depths_of(parse_depths(text), request, TOKENS, loops, seed)[1:])


def shares(depths: np.ndarray, loops: int) -> np.ndarray:
    return np.bincount(depths, minlength=loops + 1)[1:] / depths.size


@given(specs)
def test_the_grammar_reads_what_it_prints(spec: DepthSpec) -> None:
    assert parse_depths(str(spec)) == spec


@pytest.mark.parametrize("text", ["", "ful", "serial", "serial:", "serial:1", "serial:-0.1", "x:1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"workload\.depths"):
        parse_depths(text)


@given(specs, st.integers(0, 40), st.integers(1, 16), st.integers(0, 5), st.data())
def test_depths_are_in_range_above_the_floor_and_repeat(
    spec: DepthSpec, tokens: int, loops: int, seed: int, data: st.DataObject
) -> None:
    floor = data.draw(st.integers(1, loops))
    depths = depths_of(spec, "a", tokens, loops, seed, floor)
    assert len(depths) == tokens
    assert all(floor <= d <= loops for d in depths)
    assert depths[:1] == (loops,) * min(1, tokens)
    assert depths == depths_of(spec, "a", tokens, loops, seed, floor)


def test_full_and_shallow_are_exact() -> None:
    assert set(later("full", 4)) == {4}
    assert set(later("shallow", 4)) == {1}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("bimodal", [0.5, 0, 0, 0.5]),
        ("shallow-heavy", [0.4, 0.3, 0.2, 0.1]),
        ("deep-heavy", [0.1, 0.2, 0.3, 0.4]),
        ("serial:0.0", [0.25] * 4),
        ("serial:0.5", [0.25] * 4),
    ],
)
def test_shares_by_depth(text: str, wanted: list[float]) -> None:
    # 20,000 draws: a standard error of at most 0.0035, or 0.0053 where half of them repeat.
    assert shares(later(text, 4), 4) == pytest.approx(wanted, abs=0.02)


def test_the_weights_at_sixteen_loops() -> None:
    heavy = weights("shallow-heavy", 16)
    assert heavy == pytest.approx(np.arange(16, 0, -1) / 136)
    assert weights("deep-heavy", 16) == pytest.approx(heavy[::-1])
    assert weights("bimodal", 1) == pytest.approx([1.0])


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_serial_depths_have_the_correlation_asked_for(rho: float) -> None:
    depths = later(f"serial:{rho}", 4)
    found = np.corrcoef(depths[:-1], depths[1:])[0, 1]
    assert found == pytest.approx(rho, abs=0.03)


def test_clusters_are_whole_requests_one_in_five_of_them_deep() -> None:
    requests = [depths_of(DepthSpec("clustered"), str(i), 6, 4, 0)[1:] for i in range(2000)]
    assert all(set(depths) in ({1}, {4}) for depths in requests)
    # The standard error of the share is 0.009.
    assert np.mean([depths[0] == 4 for depths in requests]) == pytest.approx(0.2, abs=0.03)


def test_a_request_depends_on_its_id_and_the_seed_alone() -> None:
    assert not np.array_equal(later("bimodal", 4, "a"), later("bimodal", 4, "b"))
    assert not np.array_equal(later("bimodal", 4, seed=1), later("bimodal", 4, seed=2))


@dataclass(frozen=True)
class Work:
    id: str
    tokens: tuple[int, ...]
    executed_depths: tuple[int, ...] = ()
    requested_depths: tuple[int, ...] = ()


def test_recorded_requests_take_them_whatever_their_order() -> None:
    spec = parse_depths("shallow-heavy")
    work = [Work(str(i), tuple(range(i + 1))) for i in range(5)]
    found = with_depths(work, spec, 4, 3)
    assert [w.tokens for w in found] == [w.tokens for w in work]
    assert all(w.executed_depths == w.requested_depths for w in found)
    assert [len(w.executed_depths) for w in found] == [1, 2, 3, 4, 5]
    assert with_depths(work[::-1], spec, 4, 3) == found[::-1]
    assert "serial:0.5" in mark(parse_depths("serial:0.5"), 3)


@pytest.mark.parametrize("mode", ["cdb", "lockstep", "static"])
@pytest.mark.parametrize("rule", [ExitPolicy("cdf", 0.5), ExitPolicy("margin", 0.5), ExitPolicy()])
def test_an_engine_executes_them_whatever_its_rule_says(
    tiny_ouro: StagedModel, mode: str, rule: ExitPolicy
) -> None:
    spec = parse_depths("serial:0.3")
    batch = [
        Request(
            id=str(i),
            prompt=[1, 2, i],
            exit=rule,
            force=range(10),
            replay_depths=depths_of(spec, str(i), 10, 4, 0),
        )
        for i in range(5)
    ]
    for result in Engine(tiny_ouro, EngineConfig(mode, max_residents=3)).run(batch):
        wanted = batch[int(result.id)].replay_depths if mode != "static" else [4] * 10
        assert result.executed_depths == list(wanted or ())

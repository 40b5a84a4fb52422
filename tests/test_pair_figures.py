"""What a paired gate computes: mirrored gains, looks, sign flips; and the worker itself."""

from __future__ import annotations

import gc
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdbench.compare.gate_file import GateFile, parse_gate
from cdbench.compare.gate_times import Key
from cdbench.compare.pair.asked import ask
from cdbench.compare.pair.looking import timed_checks
from cdbench.compare.pair.run import Conduct, paired_gate
from cdbench.compare.pair.seen import Seen, log_gains
from cdbench.compare.pair.selftest import self_test
from cdbench.compare.pair.worker import Served
from cdbench.errors import UsageError
from cdbench.metrics.registry import METRICS
from cdbench.schema.pairing import PROTOCOL, PairRun, SideName
from cdbench.stats.gains import paired_gain
from cdbench.stats.gate import LOOKS, Decision, judge, look_errors
from cdbench.stats.sequential import (
    decide,
    flipped,
    settled,
    sign_choices,
    smallest_loss,
    smallest_margin,
)
from tests.pairing import Fake, Sides, judged, runs_of

OTHER: dict[SideName, SideName] = {"old": "new", "new": "old"}
KEYS: tuple[Key, ...] = (
    ("cdb", "output_throughput"),
    ("cdb", "tpot"),
    ("cdb", "core_occupancy"),
    ("cdb", "speedup"),
)
WALL_S = st.floats(0.01, 100.0)
SMALL = ("workload.requests=3", "workload.max_new_tokens=6", "exit=fixed:2")


def gate(*metrics: str, margin: float = 0.05, scope: str = "e2e") -> GateFile:
    timed = {"metrics": list(metrics), "modes": ["cdb"], "margin": margin}
    timed |= {"scope": scope} if "speedup" in metrics else {}
    return parse_gate({"name": "g", "timed": timed}, "gate")


def swapped(runs: list[PairRun]) -> list[PairRun]:
    return [run.model_copy(update={"side": OTHER[run.side]}) for run in runs]


def logs(runs: list[PairRun], key: Key, scope: str = "e2e") -> list[float]:
    found = log_gains(Seen(runs), key, gate(key[1], scope=scope).timed)
    assert found is not None
    return found


# Gains.


def test_a_pairs_log_ratio_is_that_of_summed_walls() -> None:
    runs = runs_of([2.0, 1.0, 1.5, 3.0], ("cdb",))  # old new new old
    assert logs(runs, ("cdb", "output_throughput")) == [pytest.approx(math.log(5.0 / 2.5))]


def test_other_metrics_go_by_their_means_and_their_direction() -> None:
    runs = runs_of([2.0, 1.0, 1.5, 3.0], ("cdb",))
    assert logs(runs, ("cdb", "tpot")) == [pytest.approx(math.log(2.5 / 1.25))]  # less is better
    assert logs(runs, ("cdb", "core_occupancy")) == [pytest.approx(math.log(1.25 / 2.5))]
    assert METRICS["core_occupancy"].direction == "up"


@pytest.mark.parametrize("scope", ["e2e", "decode"])
def test_a_speed_up_is_compared_as_a_ratio_of_ratios(scope: str) -> None:
    runs = runs_of([4.0, 4.0, 4.0, 4.0, 2.0, 1.0, 1.0, 2.0])  # static, then cdb
    assert logs(runs, ("cdb", "speedup"), scope) == [pytest.approx(math.log(2.0))]


@settings(max_examples=50, deadline=None)
@given(st.lists(WALL_S, min_size=48, max_size=48))
def test_swapped_sides_have_the_same_gains_with_the_other_sign(walls: list[float]) -> None:
    runs = runs_of(walls)
    for key in KEYS:
        there, back = logs(runs, key), logs(swapped(runs), key)
        assert back == [-log for log in there]
        one, other = paired_gain(there), paired_gain(back)
        assert one is not None
        assert other == one.turned


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.9, 1.1), min_size=48, max_size=48))
def test_a_change_that_fails_passes_the_other_way_round(walls: list[float]) -> None:
    runs, found = runs_of(walls), gate("output_throughput")
    key, errors = KEYS[0], look_errors((6,))[0]
    there = timed_checks(found, [key], runs, errors)[key]
    back = timed_checks(found, [key], swapped(runs), errors)[key]
    if there.verdict == "FAIL":
        assert back.verdict == "PASS"
    assert "FAIL" not in (there.verdict, back.verdict) or there.verdict != back.verdict


def test_a_metric_that_is_undefined_in_one_pair_has_no_gain() -> None:
    runs = runs_of([1.0] * 24, ("cdb",))
    runs[5] = runs[5].model_copy(update={"metrics": {**runs[5].metrics, "tpot": None}})
    key = ("cdb", "tpot")
    assert log_gains(Seen(runs), key, gate("tpot").timed) is None
    check = timed_checks(gate("tpot"), [key], runs, look_errors((6,))[0])[key]
    assert check.verdict == "INVALID"


# Looks.


def test_a_gate_ends_at_the_first_look_that_settles_it() -> None:
    assert decide([[0.001, -0.001] * 12], [0.05]) == decide([[0.0] * 24], [0.05])
    assert decide([[0.0] * 24], [0.05]).pairs == 6
    assert decide([[-0.2] * 24], [0.05]).decision is Decision.FAIL
    wild = [0.3, -0.3] * 12
    assert decide([wild], [0.05]).decision is Decision.INCONCLUSIVE
    assert decide([wild], [0.05]).pairs == LOOKS[-1]


def test_a_failure_stops_at_once_and_passing_waits_for_every_check() -> None:
    wild = [0.3, -0.3] * 12
    assert decide([[-0.2] * 24, wild], [0.05] * 2).pairs == 6
    assert decide([[0.0] * 24, wild], [0.05] * 2).pairs == 24
    assert settled([Decision.PASS, Decision.PASS])
    assert not settled([Decision.PASS, Decision.INCONCLUSIVE])
    assert settled([Decision.FAIL, Decision.INCONCLUSIVE])


def test_looks_are_the_gates_own_judgement() -> None:
    draw = np.random.default_rng(3)
    for _ in range(50):
        series = draw.normal(-0.03, 0.05, (2, 24)).tolist()
        ended = decide(series, [0.05, 0.05])
        errors = look_errors()[LOOKS.index(ended.pairs)]
        gains = [paired_gain(each[: ended.pairs]) for each in series]
        found = judge([g for g in gains if g is not None], [0.05, 0.05], errors)
        assert settled([each.decision for each in found]) or ended.pairs == LOOKS[-1]


def test_too_few_pairs_for_the_last_look_are_an_error() -> None:
    with pytest.raises(ValueError, match="23 pairs"):
        decide([[0.0] * 23], [0.05])


# Sign flips.


def test_few_pairs_have_all_their_signs_listed_and_many_have_them_drawn() -> None:
    signs, whole = sign_choices(6)
    assert whole
    assert len({tuple(choice) for choice in signs.tolist()}) == 64
    drawn, whole = sign_choices(24, most=1000, seed=5)
    assert not whole
    assert drawn.shape == (1000, 24)
    assert set(np.unique(drawn)) == {-1, 1}
    assert np.array_equal(drawn, sign_choices(24, most=1000, seed=5)[0])


def test_checks_of_one_pair_are_flipped_together() -> None:
    (flip,) = flipped([[1.0, 2.0], [3.0, 4.0]], np.array([[1, -1]], np.int8))
    assert flip == [[1.0, -2.0], [3.0, -4.0]]


def test_the_smallest_loss_that_fails_is_the_margin_where_there_is_no_noise() -> None:
    assert smallest_loss([[0.0] * 24], [0.05], 0, LOOKS) == pytest.approx(0.05, abs=1e-3)
    calm, wild = [1e-6, -1e-6] * 12, [0.05, -0.05] * 12
    assert smallest_loss([wild], [0.05], 0, LOOKS) >= smallest_loss([calm], [0.05], 0, LOOKS)
    assert smallest_margin([calm], 0, LOOKS) < 0.001 < smallest_margin([wild], 0, LOOKS)
    hopeless = [2.0, -2.0] * 12
    assert smallest_margin([hopeless], 0, LOOKS) == math.inf


def test_a_self_test_tells_the_noise_and_what_is_seen_at_it() -> None:
    draw = np.random.default_rng(1)
    spread = 0.02
    walls = np.exp(draw.normal(0, spread, 24 * 4)).tolist()
    found = self_test(gate("output_throughput"), [KEYS[0]], runs_of(walls, ("cdb",)))
    (noise,) = found.checks.values()
    assert found.pairs == 24
    assert found.false_alarms <= 0.01
    assert found.false_alarms + found.passes + found.inconclusive == pytest.approx(1)
    # A side's two walls are averaged and the difference of both taken: the spread stays.
    assert noise.spread == pytest.approx(spread, rel=0.4)
    assert noise.loss_failed_80 is not None
    assert noise.loss_failed_98 is not None
    assert 0.04 < noise.loss_failed_80 <= noise.loss_failed_98 < 0.10
    assert noise.margin_passed_98 is not None
    assert noise.margin_passed_98 < 0.03
    assert f"{100 * noise.loss_failed_98:.3g} %" in found.sentences[1]


def test_a_self_test_times_every_pair_and_refuses_two_codes(tmp_path: Path) -> None:
    same = Fake(noise=0.01)
    sides = Sides.of(tmp_path, same, Fake(noise=0.01, seed=1))
    outcome = judged(sides, conduct=Conduct(self_test=True))
    assert len(outcome.runs) == 24 * 4
    assert [look.pairs for look in outcome.receipt.looks] == [6, 12, 24]
    assert outcome.self_test is not None
    assert set(outcome.self_test.checks) == {"timed: cdb output_throughput"}
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="the same one twice"):
        judged(
            Sides.of(tmp_path / "other", same, Fake(source="b")), conduct=Conduct(self_test=True)
        )


@pytest.mark.parametrize(("slowdown", "wanted"), [(0.0, "PASS"), (0.08, "FAIL")])
def test_simulated_gates_are_seldom_mistaken(slowdown: float, wanted: str) -> None:
    """Pairs that scatter by three per cent, three looks."""
    draw = np.random.default_rng(2)
    series = draw.normal(-math.log1p(slowdown), 0.03, (400, 24)).tolist()
    said = Counter(decide([each], [0.05]).decision.value for each in series)
    assert said[wanted] >= 0.97 * 400
    assert said["FAIL" if wanted == "PASS" else "PASS"] <= 0.01 * 400


# The worker.


def answer(served: Served, command: str, **fields: Any) -> dict[str, Any]:
    return served.answer({"id": 1, "command": command, **fields})


def test_a_worker_says_who_it_is_without_loading_the_engine() -> None:
    found = answer(Served(), "hello")["ok"]
    assert found["protocol"] == PROTOCOL
    assert len(found["source_sha256"]) == 64
    assert found["python"].startswith("3.")


def test_a_worker_answers_with_its_errors(tmp_path: Path) -> None:
    served = Served()
    tree = {"no_such_key": 1}
    refused = answer(served, "record", config=tree, path=str(tmp_path))["error"]
    assert refused["exit_code"] == 2
    assert "no_such_key" in refused["message"]
    assert answer(served, "time", mode="cdb")["error"]["exit_code"] == 4


def test_a_worker_records_replays_and_times_the_same_work(tmp_path: Path) -> None:
    tree = ask("ci", None, "", [*SMALL, "modes=[static, cdb]"]).tree
    served = Served()
    assert answer(served, "record", config=tree, path=str(tmp_path))["ok"]["requests"] == 3
    one, other = Served(), Served()
    found = [answer(s, "prepare", config=tree, path=str(tmp_path))["ok"] for s in (one, other)]
    assert found[0]["workload"]["hash"] == found[1]["workload"]["hash"]
    assert list(found[0]["warm"]) == ["static", "cdb"]
    assert found[0]["unequal"] == []
    timed = [answer(one, "time", mode="cdb")["ok"] for _ in range(2)]
    for count in ("token_loops", "core_launches", "refills"):
        assert timed[0]["metrics"][count] == timed[1]["metrics"][count]
        assert timed[0]["metrics"][count] == found[1]["warm"]["cdb"]["metrics"][count]
    assert timed[0]["unequal"] == []
    assert 0 < timed[0]["decode_wall_s"] < timed[0]["wall_s"]
    assert answer(one, "quit")["ok"] == {"changed_sources": [], "changed_models": []}
    gc.unfreeze()


@pytest.mark.slow
def test_two_real_workers_agree_on_their_work(tmp_path: Path) -> None:
    """The same interpreter twice: six pairs of a few requests, whatever the verdict."""
    what = ask(
        "ci",
        parse_gate(
            {
                "name": "real",
                "modes": ["cdb"],
                "exact": ["token_loops", "core_launches", "refills"],
                "timed": {"metrics": ["output_throughput"]},
                "within": [{"metric": "host_share", "mode": "cdb", "at_most": 1.0}],
            },
            "gate",
        ),
        "",
        SMALL,
    )
    told: list[str] = []
    outcome = paired_gate(
        {"old": sys.executable, "new": sys.executable},
        what,
        Conduct(looks=(6,)),
        told.append,
        tmp_path / "out",
    )
    verdicts = {check.name: check.verdict for check in outcome.receipt.checks}
    for name in ("token_loops", "core_launches", "refills"):
        assert verdicts[f"exact: cdb {name}"] == "PASS"
    assert verdicts["within: cdb host_share at most"] == "PASS"
    assert verdicts["timed: cdb output_throughput"] != "INVALID"
    assert len(outcome.runs) == 24
    assert all(run.environment is not None for run in outcome.runs)
    assert (tmp_path / "out" / "pair.json").is_file()
    assert (tmp_path / "out" / "workload.jsonl").is_file()

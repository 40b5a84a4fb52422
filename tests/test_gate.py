"""A gate's verdict on hand-made runs: every kind of check, every answer, every exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdbench.compare.baselines import (
    exact_baseline,
    find_bases,
    inexact,
    timed_baseline,
    write_exact,
    write_timed,
)
from cdbench.compare.fingerprint import fingerprint
from cdbench.compare.gate import Bases, judge_run
from cdbench.compare.gate_file import GateFile, parse_gate, read_gate
from cdbench.errors import InvalidRunError, UsageError
from cdbench.schema import Result, Validity
from cdbench.schema.gating import GateCheck, GateReceipt
from tests.comparing import MANIFEST, side, timed_result, walls

BASE = timed_result(walls(static=2.0, cdb=1.0))
NOISY = [0.6, 1.5, 0.7, 1.4, 1.3, 0.65]
TIMED = {"name": "g", "modes": ["cdb"], "timed": {"metrics": ["output_throughput"]}}
EXACT = {"name": "g", "modes": ["cdb", "static"], "exact": ["token_loops"]}


def judged(tree: dict[str, Any], run: Result, bases: Bases | None = None) -> GateReceipt:
    return judge_run(parse_gate(tree, "gate"), "0" * 64, side(run), bases or Bases())


def timed(run: Result, **changes: Any) -> GateReceipt:
    return judged({**TIMED, **changes}, run, Bases(timed=side(BASE, "base")))


def check(receipt: GateReceipt, name: str) -> GateCheck:
    (found,) = [each for each in receipt.checks if each.name == name]
    return found


@pytest.mark.parametrize(
    ("cdb", "verdict", "code"),
    [
        ([0.8] * 6, "PASS", 0),
        ([1.0] * 6, "PASS", 0),
        ([1.02] * 6, "PASS", 0),
        ([1.2] * 6, "FAIL", 1),
        (NOISY, "INCONCLUSIVE", 0),
    ],
)
def test_a_timed_metric_gets_one_of_three_answers(
    cdb: list[float], verdict: str, code: int
) -> None:
    receipt = timed(timed_result({"static": [2.0] * 6, "cdb": cdb}))
    assert (receipt.verdict, receipt.exit_code) == (verdict, code)
    assert check(receipt, "timed: cdb output_throughput").verdict == verdict


def test_inconclusive_stops_where_the_gate_says_so() -> None:
    run = timed_result({"static": [2.0] * 6, "cdb": NOISY})
    receipt = timed(run, inconclusive="stop")
    assert (receipt.verdict, receipt.exit_code) == ("INCONCLUSIVE", 5)
    assert "measure more blocks" in receipt.sentences[-1]


def test_a_lower_is_better_metric_fails_when_it_rises() -> None:
    slower = timed_result(walls(static=2.0, cdb=1.3))
    receipt = timed(slower, timed={"metrics": ["e2e"]})
    found = check(receipt, "timed: cdb e2e")
    assert found.verdict == "FAIL"
    assert found.ratio is not None
    assert found.ratio.estimate == pytest.approx(1 / 1.3, rel=1e-2)


def test_a_speed_up_is_compared_between_the_runs() -> None:
    both_slower = timed_result(walls(static=2.6, cdb=1.3))
    asked = {"metrics": ["speedup"]}
    assert timed(both_slower, timed=asked).verdict == "PASS"
    assert timed(timed_result(walls(static=2.0, cdb=1.3)), timed=asked).verdict == "FAIL"


@pytest.mark.parametrize(
    "changes",
    [
        {"validity": Validity(verdict="INVALID", reasons=["x"], timing=["x"])},
        {"workload": BASE.workload.model_copy(update={"hash": "cd" * 32})},
        {"manifest": MANIFEST.model_copy(update={"torch_threads": 1})},
    ],
)
def test_what_cannot_be_compared_is_invalid_and_not_failed(changes: dict[str, Any]) -> None:
    receipt = timed(timed_result(walls(static=2.0, cdb=1.3), **changes))
    assert (receipt.verdict, receipt.exit_code) == ("INVALID", 3)


def test_a_required_mode_that_did_not_run_fails() -> None:
    receipt = judged({"name": "g", "modes": ["cdb", "lockstep"]}, BASE)
    assert check(receipt, "mode: cdb").verdict == "PASS"
    assert check(receipt, "mode: lockstep").verdict == "FAIL"
    assert receipt.exit_code == 1


def exact_bases(result: Result = BASE) -> Bases:
    return Bases(exact=exact_baseline(side(result), "g", "2026-01-01"))


def test_counts_gate_to_the_digit() -> None:
    assert judged(EXACT, BASE, exact_bases()).verdict == "PASS"
    other = timed_result(walls(static=2.0, cdb=1.0), {"token_loops": 2500.0000001})
    receipt = judged(EXACT, other, exact_bases())
    assert (receipt.verdict, receipt.exit_code) == ("FAIL", 1)
    assert "2,500.0000001" in check(receipt, "exact: cdb token_loops").why


def test_counts_hold_on_a_busy_or_another_machine() -> None:
    """What spoils times alone leaves counts."""
    busy = Validity(verdict="INVALID", reasons=["busy"], timing=["busy"])
    elsewhere = MANIFEST.model_copy(update={"torch_threads": 1})
    run = timed_result(walls(static=2.0, cdb=3.0), validity=busy, manifest=elsewhere)
    assert judged(EXACT, run, exact_bases()).verdict == "PASS"
    broken = Validity(verdict="INVALID", reasons=["unequal work", "busy"], timing=["busy"])
    run = timed_result(walls(static=2.0, cdb=3.0), validity=broken)
    assert judged(EXACT, run, exact_bases()).verdict == "INVALID"


def test_counts_of_other_work_are_invalid() -> None:
    other = BASE.workload.model_copy(update={"hash": "cd" * 32})
    receipt = judged(EXACT, timed_result(walls(static=2.0, cdb=1.0), workload=other), exact_bases())
    assert receipt.exit_code == 3
    assert "other work" in check(receipt, "exact: cdb token_loops").why


def test_counts_under_other_sizes_are_invalid_and_name_the_size() -> None:
    run = timed_result(walls(static=2.0, cdb=1.0), {"token_loops": 9.0})
    wider = {**run.modes, "cdb": run.modes["cdb"].model_copy(update={"width": 16})}
    receipt = judged(EXACT, run.model_copy(update={"modes": wider}), exact_bases())
    found = check(receipt, "exact: cdb token_loops")
    assert found.verdict == "INVALID"
    assert "width 16" in found.why
    assert check(receipt, "exact: static token_loops").verdict == "FAIL"


def test_a_count_that_neither_side_has_holds() -> None:
    tree = {**EXACT, "exact": ["prefix_hit_rate"]}
    assert judged(tree, BASE, exact_bases()).verdict == "PASS"


def test_counts_of_an_invalid_base_are_held_against_nobody() -> None:
    broken = Validity(verdict="INVALID", reasons=["unequal work"])
    base = timed_result(walls(static=2.0, cdb=1.0), validity=broken)
    with pytest.raises(InvalidRunError, match="unequal work"):
        find_bases(parse_gate(EXACT, "gate"), side(BASE), side(base), None, require=False)


def test_a_count_that_varies_between_blocks_fails() -> None:
    blocks = [
        run.model_copy(update={"metrics": {**run.metrics, "token_loops": 2500.0 + run.index}})
        for run in BASE.blocks
    ]
    receipt = judged(EXACT, BASE.model_copy(update={"blocks": blocks}), exact_bases())
    assert check(receipt, "exact: cdb token_loops").verdict == "FAIL"
    assert "varied" in check(receipt, "exact: cdb token_loops").why


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"config": {"exit": {"rule": "cdf"}, "engine": {}}}, "exit.rule"),
        ({"config": {"exit": {"rule": "trace"}, "engine": {"max_itl_s": 0.1}}}, "max_itl_s"),
        ({"workload": BASE.workload.model_copy(update={"replayed": []})}, "replay"),
        ({"workload": BASE.workload.model_copy(update={"arrivals": "closed-loop:2"})}, "arrivals"),
    ],
)
def test_a_run_that_does_not_repeat_to_the_digit_is_no_exact_baseline(
    changes: dict[str, Any], says: str
) -> None:
    run = timed_result(walls(static=2.0, cdb=1.0), **changes)
    assert any(says in why for why in inexact(run))
    with pytest.raises(UsageError, match="no exact baseline"):
        exact_baseline(side(run), "g", "now")


@pytest.mark.parametrize(
    ("asked", "verdict"),
    [
        ({"metric": "speedup", "at_least": 1.8}, "PASS"),
        ({"metric": "speedup", "at_least": 2.5}, "FAIL"),
        ({"metric": "speedup", "at_least": 2.0}, "INCONCLUSIVE"),
        ({"metric": "e2e", "at_most": 1.1}, "PASS"),
        ({"metric": "e2e", "at_most": 0.9}, "FAIL"),
        ({"metric": "e2e", "at_most": 1.0}, "INCONCLUSIVE"),
        ({"metric": "token_loops", "at_most": 2500}, "PASS"),
        ({"metric": "token_loops", "at_most": 2499}, "FAIL"),
        ({"metric": "realised_time", "at_least": 0.5}, "INVALID"),
        ({"metric": "accuracy_difference", "at_least": -0.01}, "INVALID"),
    ],
)
def test_floors_and_ceilings_answer_by_the_bad_end(asked: dict[str, Any], verdict: str) -> None:
    run = timed_result({"static": [2.0, 2.02, 1.98, 2.0, 2.01, 1.99], "cdb": [1.0, 1.01, 0.99] * 2})
    receipt = judged({"name": "g", "within": [asked]}, run)
    assert receipt.checks[0].verdict == verdict


def test_a_speed_up_over_a_mode_that_is_another_thing_is_not_judged() -> None:
    run = timed_result(walls(static=2.0, cdb=1.0))
    shallower = {**run.modes, "static": run.modes["static"].model_copy(update={"max_loops": 2})}
    receipt = timed(run.model_copy(update={"modes": shallower}), timed={"metrics": ["speedup"]})
    assert check(receipt, "timed: cdb speedup").verdict == "INVALID"
    assert "R 4 against 2" in check(receipt, "timed: cdb speedup").why


def test_a_speed_up_check_has_both_figures_and_the_bounds_of_its_tests() -> None:
    receipt = timed(timed_result(walls(static=2.0, cdb=1.3)), timed={"metrics": ["speedup"]})
    found = check(receipt, "timed: cdb speedup")
    assert found.base == pytest.approx(2.0)
    assert found.run == pytest.approx(2.0 / 1.3)
    assert found.ratio is not None
    assert found.pass_bound is not None
    assert found.fail_bound is not None
    # the same noise on both sides: the speed-ups themselves have none
    assert found.pass_bound == pytest.approx(1 / 1.3)
    assert found.fail_bound == pytest.approx(1 / 1.3)


def test_the_loss_that_is_excluded_is_the_margins_own() -> None:
    """A margin of 90 % in logs allows 1/1.9, not a tenth."""
    found = check(timed(BASE, timed={"metrics": ["e2e"], "margin": 0.9}), "timed: cdb e2e")
    assert "worse than 0.526× (margin 90 %)" in found.why


def test_a_count_that_varies_inside_a_block_fails() -> None:
    """Its mean over the two runs of a block is always the same."""
    blocks = [
        run.model_copy(update={"metrics": {**run.metrics, "token_loops": 2400.0 + 200 * odd}})
        for run, odd in zip(BASE.blocks, [0, 0, 1, 1] * 6, strict=True)
    ]
    run = BASE.model_copy(update={"blocks": blocks})
    assert set(side(run).block_values["cdb"]["token_loops"]) == {2500.0}
    assert check(judged(EXACT, run, exact_bases()), "exact: cdb token_loops").verdict == "FAIL"
    assert exact_baseline(side(run), "g", "now").modes["cdb"].exact == {}


def test_a_floor_without_an_interval_is_inconclusive() -> None:
    run = timed_result({"static": [2.0, 2.1], "cdb": [0.5, 0.51]})
    receipt = judged({"name": "g", "within": [{"metric": "speedup", "at_least": 1.0}]}, run)
    assert receipt.verdict == "INCONCLUSIVE"


def test_evidence_of_a_regression_outweighs_what_cannot_be_judged() -> None:
    tree = {
        "name": "g",
        "modes": ["cdb", "lockstep"],
        "within": [{"metric": "realised_time", "at_least": 0.5}],
    }
    assert judged(tree, BASE).verdict == "FAIL"


def test_baselines_are_found_by_name_and_machine(tmp_path: Path) -> None:
    gate = parse_gate({**TIMED, "exact": ["token_loops"]}, "gate")
    run = side(BASE)
    none = find_bases(gate, run, None, tmp_path, require=False)
    assert (none.exact, none.timed, len(none.notes)) == (None, None, 2)
    with pytest.raises(UsageError, match="no such baseline"):
        find_bases(gate, run, None, tmp_path, require=True)
    write_exact(tmp_path, exact_baseline(run, "g", "now"))
    write_timed(tmp_path, "g", BASE)
    found = find_bases(gate, run, None, tmp_path, require=True)
    assert found.exact is not None
    assert found.timed is not None
    assert found.timed.result.blocks == BASE.blocks
    assert judge_run(gate, "0", run, found).verdict == "PASS"
    elsewhere = side(
        BASE.model_copy(update={"manifest": MANIFEST.model_copy(update={"torch_threads": 1})})
    )
    assert find_bases(gate, elsewhere, None, tmp_path, require=False).timed is None


def test_another_run_as_the_base_gives_its_counts_too() -> None:
    gate = parse_gate({**TIMED, "exact": ["token_loops"]}, "gate")
    other = timed_result(walls(static=2.0, cdb=1.0), {"token_loops": 2600.0})
    bases = find_bases(gate, side(BASE), side(other, "base"), None, require=False)
    receipt = judge_run(gate, "0", side(BASE), bases)
    assert check(receipt, "exact: cdb token_loops").verdict == "FAIL"


def test_the_fingerprint_is_of_the_hardware_alone() -> None:
    newer = MANIFEST.model_copy(update={"source_sha256": "b" * 64, "python": "3.12.1"})
    assert fingerprint(newer) == fingerprint(MANIFEST)
    cpu = MANIFEST.cpu.model_copy(update={"affinity": [0]})
    for change in ({"torch_threads": 1}, {"cpu": cpu}):
        assert fingerprint(MANIFEST.model_copy(update=change)) != fingerprint(MANIFEST)
    assert fingerprint(MANIFEST).startswith("a-processor-2-cores-2-threads-")


def test_a_timed_baseline_still_agrees_with_itself() -> None:
    from cdbench.compare.sides import contradictions

    assert list(contradictions(timed_baseline(BASE))) == []


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ({"name": "g", "exakt": []}, "unknown key `exakt`; did you mean 'exact'"),
        ({"name": "g", "modes": ["cdb"], "exact": ["token_loop"]}, "did you mean 'token_loops'"),
        ({"name": "g"}, "checks nothing"),
        ({"name": "g", "exact": ["token_loops"]}, "of which modes"),
        (
            {
                "name": "g",
                "exact": ["token_loops"],
                "timed": {"metrics": ["e2e"], "modes": ["cdb"]},
            },
            "exact: of which modes",
        ),
        (
            {"name": "g", "timed": {"metrics": ["speedup"], "modes": ["static"]}},
            "compares nothing",
        ),
        ({"name": "g", "modes": ["cbd"]}, "cbd"),
        ({"name": "g", "modes": ["cdb", "cdb"]}, "twice"),
        ({"name": "g", "modes": ["cdb"], "timed": {"metrics": ["e2e", "e2e"]}}, "twice"),
        ({"name": "g", "modes": ["cdb"], "timed": {"metrics": ["e2e"], "over": "x"}}, "timed.over"),
        ({"name": "g", "within": [{"metric": "e2e", "over": "x", "at_most": 1}]}, "over belongs"),
        ({"name": "g", "within": [{"metric": "e2e", "at_most": 1}] * 2}, "twice"),
        ({"name": "g", "modes": ["cdb"], "exact": ["e2e"]}, "e2e is no count"),
        ({"name": "g", "within": [{"metric": "speedup"}]}, "at_least and at_most"),
        (
            {"name": "g", "within": [{"metric": "speedup", "at_least": 1, "at_most": 2}]},
            "at_least and at_most",
        ),
        ({"name": "g", "modes": ["cdb"], "timed": {"metrics": ["e2e"], "margin": 0}}, "margin"),
        ({"name": "../g", "modes": ["cdb"]}, "name"),
        ({"name": "g", "modes": ["cdb"], "inconclusive": "maybe"}, "inconclusive"),
        ({"name": "g", "timed": {"metric": ["e2e"]}, "modes": ["cdb"]}, "did you mean 'metrics'"),
    ],
)
def test_a_gate_file_is_refused_by_the_key_that_is_wrong(tree: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match="gate") as refused:
        parse_gate(tree, "--gate g.yaml")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_gate_file_is_read_by_path(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_text("name: g\nmodes: [cdb]\n")
    gate, digest = read_gate(str(path))
    assert gate == GateFile(name="g", modes=("cdb",))
    assert len(digest) == 64
    for text, says in (("[]", "no mapping"), ("a: [", "YAML"), ("", "no mapping")):
        path.write_text(text)
        with pytest.raises(UsageError, match=says):
            read_gate(str(path))
    with pytest.raises(UsageError, match="No such file"):
        read_gate(str(tmp_path / "none.yaml"))

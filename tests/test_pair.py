"""The paired gate on fake workers: turns, looks, verdicts, and every way a worker can fail."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cdbench.compare.gate_file import parse_gate
from cdbench.compare.pair.asked import ask
from cdbench.compare.pair.process import WAIT_STEP_S
from cdbench.compare.pair.pythons import check_python
from cdbench.compare.pair.run import Conduct
from cdbench.compare.pair.turns import Limits, turns
from cdbench.errors import UsageError, WorkerError
from cdbench.schema import GpuEnvironment, RepeatEnvironment
from cdbench.schema.files import read_document
from cdbench.schema.gating import GateCheck
from cdbench.schema.pairing import PairOutcome
from tests.pairing import GATE, TOKENS, WORK, Fake, Sides, asked, judged

SAME = Fake(noise=0.01)
SLOW = Fake(walls={"static": 2.4, "cdb": 1.2}, noise=0.01, seed=1, source="b")
FAST = Fake(walls={"static": 1.6, "cdb": 0.8}, noise=0.01, seed=1, source="b")
NOISY = Fake(noise=0.5, seed=5, source="b")


def check(outcome: PairOutcome, name: str) -> GateCheck:
    (found,) = [each for each in outcome.receipt.checks if each.name == name]
    return found


# Verdicts.


@pytest.mark.parametrize(
    ("new", "verdict", "code"),
    [
        (replace(SAME, seed=1, source="b"), "PASS", 0),
        (FAST, "PASS", 0),
        (SLOW, "FAIL", 1),
        (NOISY, "INCONCLUSIVE", 0),
    ],
)
def test_a_change_gets_one_of_three_answers(
    tmp_path: Path, new: Fake, verdict: str, code: int
) -> None:
    outcome = judged(Sides.of(tmp_path, SAME, new))
    assert (outcome.receipt.verdict, outcome.receipt.exit_code) == (verdict, code)
    found = check(outcome, "timed: cdb output_throughput")
    assert found.verdict == verdict
    assert found.ratio is not None
    assert outcome.receipt.run.blocks == found.n


def test_the_ratio_is_how_many_times_as_good_new_is(tmp_path: Path) -> None:
    outcome = judged(Sides.of(tmp_path, Fake(), replace(SLOW, noise=0.0)))
    found = check(outcome, "timed: cdb output_throughput")
    assert found.ratio is not None
    assert found.ratio.estimate == pytest.approx(1 / 1.2)
    assert found.base == pytest.approx(TOKENS)
    assert found.run == pytest.approx(TOKENS / 1.2)


def test_what_is_inconclusive_may_stop_the_process(tmp_path: Path) -> None:
    outcome = judged(Sides.of(tmp_path, SAME, NOISY), asked(inconclusive="stop"))
    assert (outcome.receipt.verdict, outcome.receipt.exit_code) == ("INCONCLUSIVE", 5)


# Turns and looks.


def test_a_pair_is_a_b_b_a_and_the_next_one_b_a_a_b() -> None:
    assert turns(0, ["cdb"]) == [("old", "cdb"), ("new", "cdb"), ("new", "cdb"), ("old", "cdb")]
    assert turns(1, ["cdb"]) == [("new", "cdb"), ("old", "cdb"), ("old", "cdb"), ("new", "cdb")]


def test_over_two_pairs_every_mode_and_side_has_the_same_mean_place() -> None:
    places: dict[tuple[str, str], list[int]] = {}
    both = [*turns(0, ["static", "cdb"]), *turns(1, ["static", "cdb"])]
    for place, turn in enumerate(both):
        places.setdefault(turn, []).append(place)
    assert len(places) == 4
    assert {sum(found) for found in places.values()} == {30}


def test_workers_are_asked_in_turn(tmp_path: Path) -> None:
    sides = Sides.of(tmp_path, SAME, SLOW)
    judged(sides, asked(modes=["static", "cdb"]))
    both = [*turns(0, ["static", "cdb"]), *turns(1, ["static", "cdb"])]
    assert sides.turns == both * (len(sides.turns) // len(both))


def test_measuring_stops_at_the_look_that_decides(tmp_path: Path) -> None:
    sides = Sides.of(tmp_path, SAME, SLOW)
    told: list[str] = []
    outcome = judged(sides, told=told)
    looks = [(look.pairs, look.verdicts) for look in outcome.receipt.looks]
    pairs = looks[-1][0]
    assert pairs in (6, 12)
    assert looks[-1][1] == {"timed: cdb output_throughput": "FAIL"}
    assert len(sides.turns) == 4 * pairs == len(outcome.runs)
    assert any(f"after {pairs} pairs: FAIL" in line for line in told)


def test_what_stays_open_is_looked_at_three_times(tmp_path: Path) -> None:
    outcome = judged(Sides.of(tmp_path, SAME, NOISY))
    assert [look.pairs for look in outcome.receipt.looks] == [6, 12, 24]
    errors = [look.fail_error for look in outcome.receipt.looks]
    assert errors == sorted(errors)
    assert len(outcome.runs) == 24 * 4


def test_only_the_modes_that_a_check_needs_are_timed(tmp_path: Path) -> None:
    sides = Sides.of(tmp_path, Fake(), Fake())
    judged(sides)
    assert {mode for _, mode in sides.turns} == {"cdb"}
    within = {"metric": "speedup", "mode": "cdb", "over": "static", "at_least": 1.5}
    (tmp_path / "more").mkdir()
    more = Sides.of(tmp_path / "more", Fake(), Fake())
    outcome = judged(more, asked(within=[within]))
    assert {mode for _, mode in more.turns} == {"static", "cdb"}
    assert check(outcome, "within: cdb/static speedup.e2e at least").verdict == "PASS"


def test_without_a_gate_the_throughput_of_every_mode_is_compared(tmp_path: Path) -> None:
    four = {"dense:demo-dense": 1.0, "static": 2.0, "lockstep": 1.5, "cdb": 1.0}
    outcome = judged(
        Sides.of(tmp_path, Fake(walls=four), Fake(walls=four, source="b")), asked(None)
    )
    assert [each.name for each in outcome.receipt.checks] == [
        f"timed: {mode} output_throughput" for mode in four
    ]
    assert outcome.receipt.verdict == "PASS"
    assert len(outcome.receipt.gate_sha256) == 64


# Other checks.


def test_floors_are_those_of_new(tmp_path: Path) -> None:
    within = [
        {"metric": "speedup", "mode": "cdb", "over": "static", "at_least": 1.5},
        {"metric": "token_loops", "mode": "cdb", "at_most": 2000},
    ]
    slow = Fake(walls={"static": 2.0, "cdb": 2.0}, noise=0.01, seed=1)
    outcome = judged(Sides.of(tmp_path, SAME, slow), asked(within=within))
    floor = check(outcome, "within: cdb/static speedup.e2e at least")
    assert floor.verdict == "FAIL"
    assert floor.run == pytest.approx(1.0, abs=0.02)
    assert check(outcome, "within: cdb token_loops at most").verdict == "FAIL"


def test_floors_on_bounds_and_answers_are_left_out_and_said(tmp_path: Path) -> None:
    within = [{"metric": "accuracy", "mode": "cdb", "at_least": 0.5}]
    outcome = judged(Sides.of(tmp_path, Fake(), Fake()), asked(within=within))
    assert [each.kind for each in outcome.receipt.checks] == ["timed"]
    assert any(
        "within: cdb accuracy at least is not checked" in note for note in outcome.receipt.notes
    )


def test_olds_counts_are_the_exact_base(tmp_path: Path) -> None:
    exact = {"name": "pair", "modes": ["cdb"], "exact": ["token_loops"]}
    same = judged(Sides.of(tmp_path, Fake(), Fake()), asked(exact))
    assert check(same, "exact: cdb token_loops").verdict == "PASS"
    assert same.receipt.run.blocks == 6
    (tmp_path / "other").mkdir()
    new = Fake(counts={"token_loops": 2501.0})
    other = judged(Sides.of(tmp_path / "other", Fake(), new), asked(exact))
    assert other.receipt.exit_code == 1
    assert (
        check(other, "exact: cdb token_loops").why == "token_loops of cdb is 2,501, OLD has 2,500"
    )


def test_counts_that_differ_are_a_note_where_no_gate_holds_them(tmp_path: Path) -> None:
    new = Fake(counts={"token_loops": 2600.0}, source="b")
    outcome = judged(Sides.of(tmp_path, Fake(), new))
    assert outcome.receipt.verdict == "PASS"
    assert "token_loops of cdb: 2,500 → 2,600" in outcome.receipt.notes


# What cannot be judged.


def test_unequal_work_is_invalid_before_anything_is_timed(tmp_path: Path) -> None:
    other = Fake(work=WORK.model_copy(update={"hash": "cd" * 32}))
    sides = Sides.of(tmp_path, Fake(), other)
    outcome = judged(sides)
    assert (outcome.receipt.verdict, outcome.receipt.exit_code) == ("INVALID", 3)
    assert "other work" in outcome.receipt.checks[0].why
    assert not sides.turns


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (Fake(), Fake(threads=1), "torch_threads 2 → 1"),
        (Fake(), Fake(weights="d"), "hand-made/model.safetensors differs"),
        (Fake(record={"requests": 3, "invalid": ["depths on no text"]}), Fake(), "no text"),
        (
            Fake(environment=RepeatEnvironment(wall_s=1.0, captures=0)),
            Fake(environment=RepeatEnvironment(wall_s=1.0, captures=2)),
            "mode cdb: 2 graphs were captured inside a timed region",
        ),
        (Fake(), Fake(unequal=["mode cdb: 3 output tokens instead of 4"]), "3 output tokens"),
        (
            Fake(),
            Fake(leave={"changed_sources": ["runtime/engine.py"], "changed_models": []}),
            "runtime/engine.py changed",
        ),
    ],
)
def test_what_makes_sides_incomparable_is_invalid_with_its_reason(
    tmp_path: Path, old: Fake, new: Fake, words: str
) -> None:
    outcome = judged(Sides.of(tmp_path, old, new))
    assert (outcome.receipt.verdict, outcome.receipt.exit_code) == ("INVALID", 3)
    assert words in outcome.receipt.checks[0].why
    assert any(words in reason for reason in outcome.receipt.run.reasons)


def test_the_same_code_on_both_sides_is_said(tmp_path: Path) -> None:
    outcome = judged(Sides.of(tmp_path, Fake(), Fake()))
    assert any("same code" in line for line in outcome.receipt.sentences)


def test_an_undefined_metric_is_refused_before_anything_is_timed(tmp_path: Path) -> None:
    sides = Sides.of(tmp_path, Fake(), Fake())
    with pytest.raises(UsageError, match="ttft of cdb is undefined"):
        judged(sides, asked(timed={"metrics": ["ttft"]}))
    assert not sides.turns


@pytest.mark.parametrize(("others", "said"), [(1, False), (2, True)])
def test_the_other_worker_is_no_stranger_on_the_gpu(
    tmp_path: Path, others: int, said: bool
) -> None:
    """It is there, asleep; whoever else is there is noted and makes nothing INVALID."""
    seen = RepeatEnvironment(wall_s=1.0, gpu=GpuEnvironment(foreign_processes=others))
    outcome = judged(Sides.of(tmp_path, Fake(environment=seen), Fake(environment=seen)))
    assert outcome.receipt.verdict == "PASS"
    assert any("on the GPU" in note for note in outcome.receipt.notes) == said


# Workers that fail.


@pytest.mark.parametrize(
    ("command", "fate", "words"),
    [
        ("hello", "die", "died (exit code 9) while starting"),
        ("record", "die", "died (exit code 9) while recording the work"),
        ("prepare", "die", "died (exit code 9) while loading and warming up"),
        ("time", "die", "died (exit code 9) while timing cdb in pair 2"),
        ("time", "garbage", "answered nonsense ('Loading weights: 100%')"),
        ("time", "wrong-id", "in place of"),
        ("time", "missing", "without a sound wall_s"),
        ("time", "fail", "ZeroDivisionError"),
        ("prepare", "fail", "ZeroDivisionError"),
    ],
)
def test_a_worker_that_fails_ends_the_gate_and_is_named(
    tmp_path: Path, command: str, fate: str, words: str
) -> None:
    bad = Fake(fate={command: fate}, after=2)
    sides = Sides.of(tmp_path, bad if command == "record" else Fake(), bad)
    with pytest.raises(WorkerError) as caught:
        judged(sides, out=tmp_path / "out")
    assert caught.value.exit_code == 4
    assert words in str(caught.value)
    assert str(caught.value).startswith("OLD (" if command == "record" else "NEW (")
    assert "\n" not in str(caught.value)
    assert_gone(sides)


def test_a_workers_last_words_are_told_and_all_of_them_kept(tmp_path: Path) -> None:
    sides = Sides.of(tmp_path, Fake(), Fake(fate={"time": "die"}))
    with pytest.raises(WorkerError, match="its last words: out of luck"):
        judged(sides, out=tmp_path / "out")
    assert (tmp_path / "out" / "new.stderr").read_text() == "out of luck\n"


def test_a_worker_that_hangs_is_given_up(tmp_path: Path) -> None:
    quick = Fake(walls={"static": 0.001, "cdb": 0.001}, fate={"time": "hang"}, after=1)
    sides = Sides.of(tmp_path, quick, replace(quick, fate={}))
    started = time.monotonic()
    with pytest.raises(WorkerError, match=r"OLD .*gave no answer in 1 s while timing cdb in pair"):
        judged(sides, conduct=Conduct(least_limit_s=1.0))
    assert time.monotonic() - started < 30
    assert_gone(sides)


def test_a_worker_is_waited_for_in_short_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal just before the thread falls asleep wakes nobody: no sleep may be a long one."""
    slept = []
    get = queue.Queue.get

    def noted(self: queue.Queue[bytes], block: bool = True, timeout: float | None = None) -> bytes:
        slept.append(timeout)
        return get(self, block, timeout)

    monkeypatch.setattr(queue.Queue, "get", noted)
    judged(Sides.of(tmp_path, Fake(), Fake(source="b")))
    assert slept
    assert all(timeout is not None and timeout <= WAIT_STEP_S for timeout in slept)


def test_the_limit_grows_with_what_was_seen() -> None:
    limits = Limits({"cdb": 2.0}, least_s=10.0, times=30)
    assert (limits.of("cdb"), limits.of("static")) == (60.0, 10.0)
    limits.saw("static", 1.0)
    limits.saw("cdb", 1.0)
    assert (limits.of("cdb"), limits.of("static")) == (60.0, 30.0)


def test_what_a_worker_refuses_is_refused_in_its_words(tmp_path: Path) -> None:
    sides = Sides.of(tmp_path, Fake(), Fake(fate={"prepare": "refuse"}))
    with pytest.raises(UsageError, match=r"NEW \(.*\): engine.width: too wide; lower it"):
        judged(sides, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert_gone(sides)


def test_another_protocol_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"OLD .*version 7 of the paired gate's protocol"):
        judged(Sides.of(tmp_path, Fake(protocol=7), Fake()))


# Interruption.


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_ends_both_sides_and_what_they_started(tmp_path: Path) -> None:
    sides = Sides.of(tmp_path, Fake(child=True), Fake(fate={"time": "hang"}, child=True))

    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        while not sides.turns:
            time.sleep(0.02)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        judged(sides)
    assert len(sides.pids) == 6  # the recorder too, and a child of each
    assert_gone(sides)


def assert_gone(sides: Sides) -> None:
    """No process of a fake is left running."""
    deadline = time.monotonic() + 5
    while any(_runs(pid) for pid in sides.pids):
        assert time.monotonic() < deadline, "an orphan is left"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # a zombie only waits to be counted


# Files.


def test_everything_is_kept_where_a_directory_is_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = judged(Sides.of(tmp_path, Fake(), Fake()), out=out)
    assert read_document(PairOutcome, out / "pair.json") == outcome
    assert sorted(path.name for path in out.iterdir()) == ["pair.json"]


def test_a_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    sides = Sides.of(tmp_path, Fake(), Fake())
    with pytest.raises(UsageError, match="not empty"):
        judged(sides, out=tmp_path)
    assert not sides.commands


# Interpreters.


def test_an_interpreter_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="OLD_PYTHON no/such: no such program"):
        check_python("OLD_PYTHON", "no/such")
    with pytest.raises(UsageError, match="is no Python"):
        check_python("OLD_PYTHON", "/bin/ls")
    text = tmp_path / "text"
    text.write_text("not a program")
    text.chmod(0o755)
    with pytest.raises(UsageError, match="is no Python"):
        check_python("NEW_PYTHON", str(text))


def test_an_interpreter_without_cdbench_or_with_an_older_one_is_refused(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -SE "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(UsageError, match=r"bare: has no cdbench; install it there"):
        check_python("OLD_PYTHON", str(bare))
    older = Fake(probe=("cdbench-paired-gate", True, False))
    program = older.written(tmp_path / "older", "old", tmp_path / "log")
    with pytest.raises(UsageError, match="older than the paired gate"):
        check_python("OLD_PYTHON", program)


def test_a_checkout_in_the_working_directory_does_not_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own cdbench is what an interpreter is asked about, not the one beside it."""
    (tmp_path / "cdbench").mkdir()
    (tmp_path / "cdbench" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert os.path.isabs(check_python("NEW_PYTHON", sys.executable))


# What is asked.


def test_a_mode_that_the_configuration_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match="needs mode static@2"):
        asked(modes=["static@2"])


def test_counts_are_not_held_where_they_may_vary() -> None:
    gate = parse_gate({**GATE, "exact": ["token_loops"]}, "gate")
    with pytest.raises(UsageError, match="max_itl_s"):
        ask("ci", gate, "", ["engine.max_itl_s=0.5"])


def test_walls_are_not_compared_where_requests_set_the_pace() -> None:
    with pytest.raises(UsageError, match="at times of their own"):
        ask("ci", parse_gate(GATE, "gate"), "", ["workload.arrivals=open-loop:5"])


def test_a_budget_that_two_processes_would_share_unequally_is_refused() -> None:
    with pytest.raises(UsageError, match="budget_bytes"):
        ask("ci", parse_gate(GATE, "gate"), "", ["kv.budget_fraction=0.5"])


def test_workers_get_the_keys_that_were_set_and_no_others() -> None:
    tree = asked().tree
    assert tree["modes"] == ["cdb"]
    assert tree["work"] == ["equal"]
    assert tree["engine"]["width"] == 8
    assert "price_per_hour" not in tree
    assert "repeats" not in tree

"""One spoiled run of each kind through `cdbench run`: INVALID with the right reason, or flagged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdbench.bench.equal import TimedRun, TimedSubject
from cdbench.bench.rederive import check
from cdbench.cli.main import main
from cdbench.resources import demo_path
from cdbench.schema import Validity, read_result
from cdbench.schema.environment import CpuEnvironment, RepeatEnvironment

# The six blocks that an interval needs, of as little work as there can be.
SMALL = [
    *("run", "ci", "--modes", "static,cdb", "--blocks", "6", "--stages", "none"),
    *("--requests", "14"),
]
Spoil = Callable[[TimedSubject, TimedRun], TimedRun]


def verdict(out: Path, *arguments: str) -> Validity:
    code = main([*SMALL, "--out", str(out), *arguments])
    found = read_result(out).validity
    assert code == (3 if found.verdict == "INVALID" else 0)
    # What spoiled it is in the raw records too: they lead to the same verdict.
    assert check(out) == []
    return found


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[[Spoil], None]:
    """Timed runs that are made once a mode and then repeated, each changed a little."""

    def use(change: Spoil) -> None:
        timed = TimedSubject.run
        once: dict[str, TimedRun] = {}

        def run(self: TimedSubject, block: int, order: int) -> TimedRun:
            label = self.subject.label
            if label not in once:
                once[label] = timed(self, block, order)
            made = change(self, replace(once[label], block=block, order=order))
            return replace(made, trace=replace(made.trace, requests=made.results))

        monkeypatch.setattr(TimedSubject, "run", run)

    return use


def with_first(run: TimedRun, **changes: Any) -> TimedRun:
    """The run with its first request changed, in its results and in the trace made of them."""
    first, *rest = run.results
    results = (replace(first, **changes), *rest)
    return replace(run, results=results, trace=replace(run.trace, requests=results))


def unchanged(_: TimedSubject, run: TimedRun) -> TimedRun:
    return run


def test_a_run_that_nothing_spoils_is_valid(tmp_path: Path, spoil: Callable[[Spoil], None]) -> None:
    spoil(unchanged)
    found = verdict(tmp_path / "a")
    assert (found.verdict, found.reasons, found.flags) == ("VALID", [], [])


def test_a_failing_request(tmp_path: Path, spoil: Callable[[Spoil], None]) -> None:
    def fails(_: TimedSubject, run: TimedRun) -> TimedRun:
        return with_first(run, error="no room")

    spoil(fails)
    found = verdict(tmp_path / "a")
    assert found.verdict == "INVALID"
    assert any("1 requests failed (no room)" in reason for reason in found.reasons)


def test_unequal_tokens(tmp_path: Path, spoil: Callable[[Spoil], None]) -> None:
    def writes_less(subject: TimedSubject, run: TimedRun) -> TimedRun:
        if subject.subject.label == "static":
            return run
        lists = ("tokens", "token_s", "executed_depths", "requested_depths")
        return with_first(run, **{name: getattr(run.results[0], name)[:-1] for name in lists})

    spoil(writes_less)
    found = verdict(tmp_path / "a")
    assert found.verdict == "INVALID"
    assert any("mode cdb" in r and "output tokens instead of" in r for r in found.reasons)


def test_other_tokens_of_the_same_number(tmp_path: Path, spoil: Callable[[Spoil], None]) -> None:
    def writes_other(_: TimedSubject, run: TimedRun) -> TimedRun:
        return with_first(run, tokens=[0] * len(run.results[0].tokens))

    spoil(writes_other)
    found = verdict(tmp_path / "a")
    assert any("output tokens differ from the recorded ones" in r for r in found.reasons)


def test_random_prompts_without_replay(tmp_path: Path, spoil: Callable[[Spoil], None]) -> None:
    spoil(unchanged)
    code = main(
        [
            *("run", "--modes", "static,cdb", "--work", "equal", "--stages", "none"),
            *("--source", "random", "--set", "workload.prompt_tokens=8", "--requests", "4"),
            *("--set", "workload.output=3", "--out", str(tmp_path / "a")),
        ]
    )
    assert code == 3
    reasons = read_result(tmp_path / "a").validity.reasons
    assert any("random token ids" in reason for reason in reasons)


def test_too_few_blocks(tmp_path: Path, spoil: Callable[[Spoil], None]) -> None:
    spoil(unchanged)
    found = verdict(tmp_path / "a", "--blocks", "2")
    assert found.reasons == ["2 blocks were timed; an interval needs 6"]


def test_too_few_requests_for_the_latencies_shown(
    tmp_path: Path, spoil: Callable[[Spoil], None]
) -> None:
    spoil(unchanged)
    found = verdict(tmp_path / "a", "--set", "slo.e2e_s=100")
    assert found.verdict == "VALID"
    assert any("14 requests" in flag and "p90" in flag for flag in found.flags)


def test_a_changed_file(tmp_path: Path, spoil: Callable[[Spoil], None]) -> None:
    model = tmp_path / "model"
    shutil.copytree(demo_path("demo-ouro"), model)

    def touches(_: TimedSubject, run: TimedRun) -> TimedRun:
        config = model / "config.json"
        config.write_text(config.read_text() + " ")
        return run

    spoil(touches)
    found = verdict(tmp_path / "a", "--model", str(model))
    assert found.verdict == "INVALID"
    assert any("config.json" in reason and "changed" in reason for reason in found.reasons)


def test_a_busy_processor(tmp_path: Path, spoil: Callable[[Spoil], None]) -> None:
    def beside_others(_: TimedSubject, run: TimedRun) -> TimedRun:
        cpu = CpuEnvironment(usable_cores=1, own_cpu_s=0.5, foreign_cpu_s=0.5)
        return replace(run, environment=RepeatEnvironment(wall_s=1.0, cpu=cpu))

    spoil(beside_others)
    found = verdict(tmp_path / "a")
    assert found.verdict == "INVALID"
    assert any("other processes took" in reason for reason in found.reasons)

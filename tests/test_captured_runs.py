"""A run whose launches are captured: before anything is timed, and never meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdbench.bench.equal import TimedSubject
from cdbench.bench.plan import Plan, make_plan
from cdbench.bench.rederive import check
from cdbench.cli.main import main
from cdbench.config import load_config
from cdbench.runtime.engine import Engine
from cdbench.schema.files import read_document
from cdbench.schema.result import Result
from cdbench.stages.key import stage_key
from tests import tiny

KEYS = {
    "model": str(tiny.FIXTURE),
    "dense": "",
    "modes": "static,cdb",
    "work": "equal",
    "exit.rule": "cdf@0.5",
    "device": "cpu",
    "workload.source": "random",
    "workload.requests": 5,
    "workload.prompt_tokens": 4,
    "workload.output": 6,
    "workload.depths": "serial:0",
    "engine.max_residents": 3,
    "stages": "none",
    "repeats.blocks": 1,
}


def run(out: Path, **changes: object) -> Result:
    given = {**KEYS, "dense": "[]", "engine.graphs": "true", **changes, "out": str(out)}
    sets = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    # One block gives no interval, so the run is INVALID for that alone.
    assert main(["run", *sets]) == 3
    return read_document(Result, out / "result.json")


def captured(out: Path) -> list[int | None]:
    """Launches captured in each timed region, as they stand in the raw records."""
    lines = (out / "repeats.jsonl").read_text().splitlines()
    return [json.loads(line)["environment"].get("captures") for line in lines]


def test_all_is_captured_after_the_warm_up_and_nothing_in_a_timed_region(tmp_path: Path) -> None:
    result = run(tmp_path / "on")
    assert captured(tmp_path / "on") == [0, 0, 0, 0]
    assert not [why for why in result.validity.reasons if "captured" in why]
    for mode in ("static", "cdb"):
        note = result.modes[mode].note
        assert note is not None
        assert "launches are captured: " in note
        assert "bytes of their own" in note


def test_without_graphs_nothing_is_said_of_captures(tmp_path: Path) -> None:
    result = run(tmp_path / "off", **{"engine.graphs": "false"})
    assert captured(tmp_path / "off") == [None] * 4
    assert "captured" not in (result.modes["cdb"].note or "")


def test_a_capture_in_a_timed_region_makes_a_run_invalid_now_and_when_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if every timed run met launches that the warm-up had not."""

    def forgets(engine: Engine) -> None:
        graphs = engine.runner.graphs
        assert graphs is not None
        for of in graphs._stages.values():
            of.graphs.clear()

    afresh = Engine.start_afresh

    def afresh_without(engine: Engine) -> None:
        afresh(engine)
        forgets(engine)

    monkeypatch.setattr(Engine, "start_afresh", afresh_without)
    result = run(tmp_path / "late")
    counts = captured(tmp_path / "late")
    assert all(counts)
    total = sum(count or 0 for count in counts)
    why = f"{total} graphs were captured inside a timed region; warm up longer"
    assert why in result.validity.reasons
    assert check(tmp_path / "late") == []


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(load_config(None, (), {**KEYS, "engine.graphs": True}))


def test_stage_curves_of_captured_launches_are_others(plan: Plan) -> None:
    assert stage_key(plan).graphs
    plain = make_plan(load_config(None, (), KEYS))
    assert not stage_key(plain).graphs
    settings = plan.settings(plan.subject(plan.modes[0]))
    assert settings.graphs
    assert TimedSubject(plan, plan.subject(plan.modes[0]), []).engine.captures == 0

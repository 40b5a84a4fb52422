"""The project's own gate: `cdbench run ci` against the committed counts, end to end.

The gate judges counts and no times, so it holds on a machine as busy as the one these tests run on,
and a schedule that does anything else fails it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from cdbench.bench.timed_part import TimedPart
from cdbench.cli.main import main
from cdbench.compare.baselines import DIRECTORY, inexact, read_exact
from cdbench.compare.counted import COUNTED
from cdbench.compare.gate import Bases, judge_run, spoiled
from cdbench.compare.gate_file import GateFile, read_gate
from cdbench.compare.sides import Side, read_side
from cdbench.config import load_config
from cdbench.runtime import modes as runtime_modes
from cdbench.runtime.schedules.cdb import ContinuousDepth
from cdbench.schema import Validity, read_result, write_result
from cdbench.schema.gating import ExactBaseline, GateReceipt

ROOT = Path(__file__).resolve().parent.parent
BASELINES = ROOT / DIRECTORY
JUDGE = ("compare", "--baseline", str(BASELINES))
CHEAP = ("run", "ci", "--stages", "none", "--blocks", "1")
"""A block has every mode twice: enough to see its counts, and to see that they repeat."""


@pytest.fixture(scope="module")
def gate() -> GateFile:
    return read_gate("ci")[0]


@pytest.fixture(scope="module")
def baseline() -> ExactBaseline:
    found = read_exact(BASELINES, "ci")
    assert found is not None
    return found


@pytest.fixture(scope="module", autouse=True)
def cold() -> Iterator[None]:
    """Warming up costs time and moves no count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimedPart, "_warm_up", lambda self: None)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cold: None) -> Path:
    """One block of the run that the gate is for: INVALID for its times, as on a busy machine."""
    out = tmp_path_factory.mktemp("ci") / "run"
    assert main([*CHEAP, "--out", str(out)]) == 3
    return out


def judged(run: Path, *flags: str) -> int:
    return main([*JUDGE, str(run), "--gate", "ci", *flags])


def test_the_gate_asks_for_every_mode_of_the_configuration(
    gate: GateFile, baseline: ExactBaseline
) -> None:
    modes = {str(mode) for mode in load_config("ci").resolved_modes}
    assert set(gate.modes) == modes == set(baseline.modes)


def test_the_gate_judges_no_time(gate: GateFile) -> None:
    assert not gate.timed.metrics
    assert set(gate.exact) <= COUNTED
    assert {check.metric for check in gate.within} <= COUNTED


def test_the_baseline_has_every_count_of_every_mode(
    gate: GateFile, baseline: ExactBaseline
) -> None:
    missing = [
        (label, name)
        for label in gate.modes
        for name in gate.exact
        if name not in baseline.modes[label].exact
    ]
    assert missing == []


def test_the_run_repeats_to_the_digit_and_is_spoiled_for_times_alone(run: Path) -> None:
    side = read_side(str(run))
    assert list(inexact(side.result)) == []
    assert spoiled(side, times=True) is not None
    assert spoiled(side, times=False) is None


def test_the_committed_counts_hold_though_the_times_do_not(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {flag: tmp_path / f"{flag}.out" for flag in ("junit", "summary", "receipt")}
    flags = [word for flag, path in files.items() for word in (f"--{flag}", str(path))]
    assert judged(run, "--require-baseline", *flags) == 0
    assert "PASS: " in capsys.readouterr().out
    receipt = GateReceipt.model_validate_json(files["receipt"].read_text())
    assert (receipt.verdict, receipt.run.verdict) == ("PASS", "INVALID")
    assert {check.verdict for check in receipt.checks} == {"PASS"}
    assert len(receipt.checks) > 50
    suite = ET.parse(files["junit"]).getroot()
    assert suite.get("tests") == str(len(receipt.checks))
    assert suite.get("failures") == suite.get("errors") == "0"
    assert "**INVALID: " in files["summary"].read_text()


def test_the_receipt_is_one_json_document(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(run, "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "PASS"


def test_reasons_that_spoil_counts_leave_nothing_to_judge(
    run: Path, gate: GateFile, baseline: ExactBaseline
) -> None:
    side = read_side(str(run))
    unequal = Validity(
        verdict="INVALID",
        reasons=["unequal work", *side.result.validity.reasons],
        timing=side.result.validity.timing,
    )
    result = side.result.model_copy(update={"validity": unequal})
    spoiled_side = Side(side.name, side.directory, result, side.rechecked)
    receipt = judge_run(gate, "0" * 64, spoiled_side, Bases(exact=baseline))
    assert receipt.verdict == "INVALID"
    assert receipt.exit_code == 3


@pytest.mark.parametrize(
    ("width", "coda_min_rows", "moved"),
    [(8, 4, "exact: cdb coda_launches"), (4, 1, "exact: cdb core_launches")],
)
def test_a_schedule_that_was_changed_fails(
    width: int,
    coda_min_rows: int,
    moved: str,
    gate: GateFile,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same work in another order: no token or depth differs, and counts of launches do."""
    real = ContinuousDepth
    monkeypatch.setattr(runtime_modes, "ContinuousDepth", lambda *_: real(width, coda_min_rows))
    out, of_cdb = tmp_path / "run", tmp_path / "cdb.yaml"
    assert main([*CHEAP, "--modes", "cdb", "--out", str(out)]) == 3
    of_cdb.write_text(yaml.safe_dump({"name": "ci", "modes": ["cdb"], "exact": list(gate.exact)}))
    capsys.readouterr()
    assert main([*JUDGE, str(out), "--gate", str(of_cdb), "--json"]) == 1
    receipt = json.loads(capsys.readouterr().out)
    failed = {check["name"] for check in receipt["checks"] if check["verdict"] == "FAIL"}
    assert moved in failed
    assert "exact: cdb token_loops" not in failed
    assert receipt["verdict"] == "FAIL"


@pytest.mark.parametrize("by", [1, -1])
def test_a_count_that_is_off_by_one_fails(
    by: int, run: Path, tmp_path: Path, baseline: ExactBaseline, capsys: pytest.CaptureFixture[str]
) -> None:
    document = baseline.model_dump(mode="json")
    document["modes"]["cdb"]["exact"]["core_launches"] += by
    (tmp_path / "ci.json").write_text(json.dumps(document))
    code = main(["compare", str(run), "--gate", "ci", "--baseline", str(tmp_path)])
    assert code == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "FAIL: core_launches of cdb is" in said
    assert "the baseline has" in said


def test_without_its_baseline_the_gate_warns_or_refuses(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", str(run), "--gate", "ci", "--baseline", str(tmp_path)]
    assert main(arguments) == 0
    assert "no baseline" in " ".join(capsys.readouterr().out.split())
    assert main([*arguments, "--require-baseline"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_edited_result_is_refused(run: Path, tmp_path: Path) -> None:
    """Its raw records say otherwise."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    result = read_result(copy)
    metrics = {**result.modes["cdb"].metrics, "core_launches": 1.0}
    mode = result.modes["cdb"].model_copy(update={"metrics": metrics})
    write_result(copy, result.model_copy(update={"modes": {**result.modes, "cdb": mode}}))
    assert judged(copy) == 2

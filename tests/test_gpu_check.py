"""The GPU script on the CPU, with tiny sizes: the same lines run where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cdbench.bench.equal import TimedRun, TimedSubject, run_block
from cdbench.models.loading import load_model
from scripts.gpu_parts import timings
from scripts.gpu_parts.catalogue import PARTS
from scripts.gpu_parts.check import Check, TimeUp
from scripts.gpu_parts.command import main
from scripts.gpu_parts.record import Record

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "gpu_check.py"
TIMED = [name for name, part in PARTS.items() if part.function.startswith("timings:")]


class Checked(NamedTuple):
    document: dict[str, Any]
    stdout: str

    @property
    def parts(self) -> dict[str, Any]:
        parts: dict[str, Any] = self.document["parts"]
        return parts

    def found(self, part: str) -> dict[str, Any]:
        found: dict[str, Any] = self.parts[part]["found"]
        return found


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    folder = tmp_path_factory.mktemp("gpu")
    out = Path("deep") / "check.json"
    bare = folder / "bare"
    bare.mkdir()
    for absent in ("datasets", "lm_eval"):  # a bare machine does not have them
        (bare / f"{absent}.py").write_text("raise ImportError('not on a bare machine')\n")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--device", "cpu", "--tiny", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=300,
        env={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "PYTHONPATH": str(bare)},
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Checked(json.loads((folder / out).read_text()), done.stdout)


def test_every_part_ran_or_says_why_not(checked: Checked) -> None:
    assert list(checked.parts) == list(PARTS)
    ended = {name: entry["status"] for name, entry in checked.parts.items()}
    # There is no GPU for a kernel here.
    assert ended.pop("attention") == "not available"
    assert set(ended.values()) == {"done"}, checked.parts
    assert checked.document["manifest"]["packages"]["torch"]


def test_what_must_be_exact_is(checked: Checked) -> None:
    fixtures, exact = checked.found("fixtures"), checked.found("exact")
    cases = {name: case for name, case in fixtures.items() if isinstance(case, dict)}
    assert {case["wrong"] for case in cases.values()} == {0}
    assert min(case["cases"] for case in cases.values()) > 0
    assert all(case["mid_token"] for name, case in cases.items() if "pressed" in name)
    assert exact["demo-ouro"]["changed"] == exact["faults"] == 0
    assert exact["demo-ouro"]["requests"] > 0
    told = checked.found("graphs")["demo-ouro float64 cdb lag 1"]
    assert told["changed"] == 0 < told["requests"]


def test_timed_parts_are_marked_for_what_they_are(checked: Checked) -> None:
    assert "random weights" in checked.document["marks"][0]
    for name in TIMED:
        result = checked.found(name)["result"]
        assert result["model"]["random_weights_seed"] == 0
        assert "random weights" in result["modes"]["cdb"]["note"]
        assert any("synthetic depths" in note for note in result["model"]["notes"])
        assert result["workload"]["replayed"] == ["tokens", "lengths", "depths"]
        assert result["modes"]["cdb"]["exit"]["lag"] == int(name.endswith("lag_1"))


def test_timed_parts_have_what_the_performance_page_needs(checked: Checked) -> None:
    for name in TIMED:
        found = checked.found(name)
        result = found["result"]
        lockstep = {"lockstep"} if name in ("ouro_64", "huginn_64", "ouro_256", "ouro_8") else set()
        assert set(result["modes"]) == {"static", "cdb"} | lockstep
        assert found["idle_share"].keys() == result["modes"].keys()
        assert all(0 <= share < 1 for share in found["idle_share"].values())
        realised = result["bounds"]["cdb"]["flop_bound"]["realised"]
        assert realised["estimate"] > 0
        if name != "ouro_64_plain":
            assert result["bounds"]["cdb"]["time_bound"]["value"] > 1
            assert result["waterfall"]["cdb"]["rows"]
            assert result["modes"]["cdb"]["metrics"]["floor_ms_per_loop"] > 0


def test_lags_are_compared_on_the_same_depths(checked: Checked) -> None:
    for shape in ("ouro", "huginn"):
        early, late = (
            checked.found(f"{shape}_64{lag}")["result"]["modes"]["cdb"] for lag in ("", "_lag_1")
        )
        assert early["depth_histogram"] == late["depth_histogram"]
        assert early["depth_histogram"][0] == 0, "at lag 1 none can leave after its first loop"


def test_curves_reach_the_widest_run(checked: Checked) -> None:
    for shape, widest in (("ouro", "ouro_256"), ("huginn", "huginn_64")):
        curves = checked.found(f"{shape}_stages")["curves"]
        width = checked.found(widest)["result"]["modes"]["cdb"]["width"]
        assert max(p["rows"] for p in curves["points"] if p["stage"] == "core") >= width
        assert curves["floors"]["bandwidth_bytes_per_s"] > 0
        assert curves["notes"][0] == "random weights (seed 0)"


def test_the_command_line_ran_on_a_saved_checkpoint(checked: Checked) -> None:
    found = checked.found("cli")
    assert found["command"][:4] == ["cdbench", "run", "--model", "checkpoint"]
    # One block is too few for an interval, which the run itself says.
    assert found["exit_code"] == 3
    assert found["result"]["manifest"]["models"][0]["files"]["model.safetensors"]
    assert set(found["result"]["modes"]) == {"static", "lockstep", "cdb"}


def test_no_path_of_the_machine_enters_the_document(checked: Checked) -> None:
    text = json.dumps(checked.document)
    assert "/tmp" not in text
    assert str(ROOT) not in text
    asked = checked.document["manifest"]["command"]
    assert asked == ["gpu_check.py", "--device", "cpu", "--tiny", "--out", "deep/check.json"]
    assert checked.found("huginn_64")["result"]["manifest"]["command"] == asked


def test_the_summary_is_one_screen_with_every_figure_marked(checked: Checked) -> None:
    lines = checked.stdout.splitlines()
    assert len(lines) < 70
    assert max(map(len, lines)) <= 120
    for name in TIMED:
        assert name in checked.stdout
    assert "replayed synthetic depths" in checked.stdout
    assert "INVALID: 1 block was timed" in checked.stdout
    assert "not available: attention" in checked.stdout


def test_list_names_every_part_without_running_any(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{name} " in listed and part.about in listed for name, part in PARTS.items())


def test_without_a_gpu_the_default_device_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(tmp_path / "check.json")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "gpu_check: device 'cuda': no CUDA device is available; use --device cpu\n"
    )
    assert not list(tmp_path.iterdir()), "nothing was measured, so nothing is written"


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    monkeypatch.chdir(tmp_path)
    record = Record(tmp_path / "check.json")
    record.begin({"manifest": {}, "tiny": True})
    return Check("cpu", True, tmp_path, record, ends_s=time.monotonic() + 60)


def test_runs_of_one_shape_share_its_model(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: Counter[str] = Counter()

    def counted(source: str, **settings: Any) -> Any:
        loads[source] += 1
        return load_model(source, **settings)

    monkeypatch.setattr("cdbench.bench.plan.load_model", counted)
    timings.ouro_8(check, {})
    timings.ouro_64_lag_1(check, {})
    assert loads == {"ouro-1.4b": 1}


def test_a_run_that_is_cut_keeps_what_it_measured(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(subjects: Sequence[TimedSubject], block: int) -> Iterator[TimedRun]:
        if block:
            raise TimeUp
        yield from run_block(subjects, block)

    monkeypatch.setattr("cdbench.bench.timed_part.run_block", cut_short)
    monkeypatch.setattr(timings, "TINY_BLOCKS", 2)
    found: dict[str, Any] = {}
    with pytest.raises(TimeUp):
        timings.ouro_8(check, found)
    result = found["result"]
    assert (result["status"], result["validity"]["verdict"]) == ("interrupted", "INVALID")
    assert {block["index"] for block in result["blocks"]} == {0}
    assert result["modes"]["cdb"]["metrics"]["decode_throughput"] > 0
    assert found["idle_share"].keys() == {"static", "lockstep", "cdb"}

"""The GPU script on the CPU, with tiny sizes: the same lines run where there is no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    out = tmp_path_factory.mktemp("gpu") / "deep" / "check.json"
    script = ROOT / "scripts" / "gpu_check.py"
    # In a process of its own, because the script must import what it needs and no more.
    probe = (
        "import runpy, sys; sys.argv = ['gpu_check.py', '--device', 'cpu', '--tiny', '--out', "
        f"{str(out)!r}]\n"
        f"try:\n    runpy.run_path({str(script)!r}, run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    heavy = {'datasets', 'lm_eval'} & set(sys.modules)\n"
        "    sys.exit(end.code or (9 if heavy else 0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe],
        capture_output=True,
        text=True,
        timeout=300,
        env={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        cwd=out.parent.parent,
    )
    assert done.returncode == 0, done.stderr
    loaded: dict[str, object] = json.loads(out.read_text())
    return loaded


def test_every_part_ran(document: dict[str, object]) -> None:
    for part in ("fixtures", "exact", "changed", "demo", "ouro_1_4b", "huginn_3_5b"):
        section = document[part]
        assert isinstance(section, dict)
        assert "failed" not in section, section


def test_fixtures_are_exact_and_timings_are_marked(document: dict[str, object]) -> None:
    fixtures, timing = document["fixtures"], document["ouro_1_4b"]
    assert isinstance(fixtures, dict)
    assert isinstance(timing, dict)
    assert {case["wrong"] for case in fixtures.values()} == {0}
    assert all(case["mid_token"] for name, case in fixtures.items() if "pressed" in name)
    exact = document["exact"]
    assert isinstance(exact, dict)
    assert {case["changed"] for case in exact.values()} == {0}
    assert timing["model"]["random_weights_seed"] == 0
    assert "random weights" in timing["modes"]["cdb"]["note"]
    assert timing["workload"]["replayed"] == ["tokens", "lengths", "depths"]

"""``cdbench config`` and ``cdbench list``: what they print, for people, pipes and programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdbench import config, resources
from cdbench.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(args)
    out, err = capsys.readouterr()
    return code, out, err


def document(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    """The one JSON document a command prints."""
    code, out, err = run(capsys, *args, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_check_accepts_and_refuses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("limit: 3\n")
    assert run(capsys, "config", "check", str(file)) == (0, f"{file}: valid\n", "")
    code, out, err = run(capsys, "config", "check", str(file), "--set", "limitt=3")
    assert (code, out) == (2, "")
    assert err == "cdbench: --set: unknown key `limitt`; did you mean `limit`?\n"


def test_check_as_json_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "config", "check") == {
        "config": "defaults",
        "valid": True,
        "error": None,
    }
    code, out, err = run(capsys, "config", "check", "--set", "exit.max_loops=0", "--json")
    assert code == 2
    answer = json.loads(out)
    assert answer["valid"] is False
    assert err == f"cdbench: {answer['error']}\n"


@pytest.mark.parametrize(
    "rule", ["cdf@1.5", "cdf@-0.1", "confidence@2", "cfd@0.5", "kl@-1", "none@0.5"]
)
def test_check_knows_the_rules(capsys: pytest.CaptureFixture[str], rule: str) -> None:
    code, out, err = run(capsys, "config", "check", "--set", f"exit={rule}")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_show_prints_what_a_run_would_use(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "config", "show", "--set", "exit=fixed:2", "--set", "limit=5")
    assert (code, err) == (0, "")
    shown = config.parse_config(yaml.safe_load(out))
    assert shown == config.load_config(overrides=["exit=fixed:2", "limit=5"])
    as_json = document(capsys, "config", "show", "--set", "exit=fixed:2", "--set", "limit=5")
    assert config.parse_config(as_json) == shown


def test_schema_lists_every_key_once(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "config", "schema")
    header, *lines = out.splitlines()
    assert header.split() == ["KEY", "DEFAULT", "MEANING"]
    assert [line.split()[0] for line in lines] == list(config.known_keys())
    assert document(capsys, "config", "schema") == config.json_schema()


def test_shipped_configurations_go_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.yaml").write_text("limit: 2\n")
    monkeypatch.setattr(resources, "data_dir", lambda kind: tmp_path)
    assert document(capsys, "config", "show", "tiny")["limit"] == 2
    code, _, err = run(capsys, "config", "show", "tinny")
    assert (code, "did you mean 'tiny'?" in err) == (2, True)


def test_every_shipped_configuration_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    for name in resources.config_names():
        assert run(capsys, "config", "check", name)[0] == 0, name


def test_list_rules(capsys: pytest.CaptureFixture[str]) -> None:
    names = [rule["name"] for rule in document(capsys, "list", "rules")["rules"]]
    assert {"none", "fixed", "cdf", "confidence", "margin", "trace"} <= set(names)
    _, out, _ = run(capsys, "list", "rules")
    assert [line.split()[0] for line in out.splitlines()[1:]] == names


def test_list_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = document(capsys, "list", "metrics")["metrics"]
    assert all(metric["unit"] and metric["formula"] for metric in metrics)
    assert {"mean_depth", "output_throughput"} <= {metric["name"] for metric in metrics}
    assert run(capsys, "list", "metrics")[0] == 0


def test_list_models_and_tasks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = tmp_path / "demo-tiny"
    demo.mkdir()
    (demo / "config.json").write_text('{"model_type": "ouro", "total_ut_steps": 4}')
    (demo / "model.safetensors").write_bytes(b"12345678")
    (tmp_path / "sums.jsonl").write_text('{"prompt": "1"}\n{"prompt": "2"}\n')
    monkeypatch.setattr(resources, "ASSETS", tmp_path)
    monkeypatch.setattr(resources, "data_dir", lambda kind: tmp_path)
    answer = document(capsys, "list", "models")
    assert answer["models"][0]["name"] == "demo-tiny"
    assert answer["models"][0]["weight_bytes"] == 8
    assert "ouro" in answer["model_types"]
    assert document(capsys, "list", "tasks") == {"tasks": [{"name": "sums", "documents": 2}]}
    assert "demo-tiny  ouro" in run(capsys, "list", "models")[1]
    assert "sums" in run(capsys, "list", "tasks")[1]


@pytest.mark.parametrize("columns", [20, 40, 200])
def test_a_terminal_gets_lines_that_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, out, _ = run(capsys, "config", "schema")
    assert code == 0
    assert "\x1b[3" not in out  # no colour
    plain = out.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert max(len(line) for line in plain.splitlines()) <= columns

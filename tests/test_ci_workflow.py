"""The workflow in docs/ci.md: GitHub accepts it, it asks for little and runs real commands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdbench.compare.gate_file import parse_gate, read_gate
from cdbench.config import load_config
from tests.test_documented_commands import command_of

ROOT = Path(__file__).resolve().parent.parent


def yaml_blocks(page: str) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.M | re.S)


WORKFLOW, CONFIG, GATE = yaml_blocks("ci.md")
# YAML 1.1 reads the key `on` as true, which GitHub does not.
TREE: dict[str, Any] = yaml.load(WORKFLOW, yaml.BaseLoader)
STEPS: list[dict[str, Any]] = [step for job in TREE["jobs"].values() for step in job["steps"]]


def check_schema(path: Path) -> subprocess.CompletedProcess[str]:
    """By the schema that the package carries: nothing is downloaded."""
    command = [sys.executable, "-m", "check_jsonschema"]
    schema = ["--builtin-schema", "vendor.github-workflows"]
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    return subprocess.run(
        [*command, *schema, str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, **nowhere},
    )


def test_the_workflow_follows_githubs_schema(tmp_path: Path) -> None:
    path = tmp_path / "gate.yml"
    path.write_text(WORKFLOW)
    done = check_schema(path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_schema_finds_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "gate.yml"
    path.write_text(WORKFLOW.replace("runs-on: ubuntu-24.04\n", ""))
    assert check_schema(path).returncode == 1
    path.write_text(WORKFLOW.replace("contents: read", "contents: everything"))
    assert check_schema(path).returncode == 1


def test_it_may_read_the_code_and_nothing_else() -> None:
    assert TREE["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in TREE["jobs"].values())
    checkouts = [s for s in STEPS if s.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == 3
    assert all(step["with"]["persist-credentials"] == "false" for step in checkouts)
    assert "secrets." not in WORKFLOW
    assert "pull_request_target" not in TREE["on"]


def test_every_action_is_pinned_to_a_release_or_a_commit() -> None:
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@(v\d+\.\d+\.\d+|[0-9a-f]{40})", name) for name in used)


def test_every_job_ends_and_the_gpu_serves_one_at_a_time() -> None:
    assert "group" in TREE["concurrency"]
    assert all(int(job["timeout-minutes"]) <= 120 for job in TREE["jobs"].values())
    times = TREE["jobs"]["times"]
    assert times["concurrency"]["cancel-in-progress"] == "false"


def test_code_of_a_fork_never_runs_on_an_own_machine() -> None:
    own = [job for job in TREE["jobs"].values() if "self-hosted" in job["runs-on"]]
    assert own
    for job in own:
        assert "head.repo.full_name == github.repository" in job["if"]


def test_no_text_of_a_pull_request_reaches_a_shell() -> None:
    """An expression in a script is put there before the shell reads it."""
    assert not any("${{" in step["run"] for step in STEPS if "run" in step)


def commands() -> Iterator[list[str]]:
    """The words of every call of cdbench in the workflow's scripts, without the program."""
    for step in STEPS:
        for line in step.get("run", "").replace("\\\n", " ").splitlines():
            words = shlex.split(re.split(r" (?:>|\|\||&&) ", line)[0], comments=True)
            if words and Path(words[0]).name == "cdbench":
                yield words[1:]


def test_there_are_commands_to_check() -> None:
    assert [words[0] for words in commands()] == ["run", "compare", "compare"]


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_is_understood(words: list[str]) -> None:
    command, rest = command_of(words)
    with command.make_context(words[0], rest):
        pass


def test_targets_of_make_exist() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    called = [
        word
        for step in STEPS
        for line in step.get("run", "").splitlines()
        if line.startswith("make ")
        for word in shlex.split(line)[1:]
        if re.fullmatch(r"[a-z]+", word) and word not in ("old", "new")
    ]
    assert called == ["install"] * 3
    assert set(called) <= set(targets)
    assert "gate" in targets


def test_the_configuration_and_the_gate_beside_it_are_valid(tmp_path: Path) -> None:
    path = tmp_path / "gpu.yaml"
    path.write_text(CONFIG)
    config = load_config(str(path))
    gate = parse_gate(yaml.safe_load(GATE), "docs/ci.md")
    assert set(gate.modes) <= {str(mode) for mode in config.resolved_modes}
    for name in re.findall(r"benchmarks/[\w.-]+", WORKFLOW):
        assert f"`{name}`" in (ROOT / "docs" / "ci.md").read_text()


def test_the_gate_file_of_the_documentation_is_valid() -> None:
    (example,) = yaml_blocks("gates.md")
    gate = parse_gate(yaml.safe_load(example), "docs/gates.md")
    assert gate.within
    assert gate.timed.metrics
    assert gate.exact
    assert read_gate("ci")[0].name == "ci"

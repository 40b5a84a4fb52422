"""The project as a package: version, pins, what the wheel holds, what no file may say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from cdbench import resources
from cdbench.cli.verbs import VERBS
from cdbench.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins() -> dict[str, str]:
    """Package → exact version, from ``constraints.txt``."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonical(name): number for name, number in pairs}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_installed_version_is_the_projects(project: dict[str, Any]) -> None:
    try:
        installed = version("cdbench")
    except PackageNotFoundError:
        pytest.skip("cdbench runs from a checkout that is not installed")
    assert installed == project["project"]["version"]


def test_every_dependency_is_pinned(project: dict[str, Any]) -> None:
    table = project["project"]
    wanted = [*table["dependencies"], *table["optional-dependencies"]["dev"]]
    names = {canonical(re.split(r"[<>=!~\[ ]", spec)[0]) for spec in wanted}
    assert names <= set(pins())
    assert pins()["torch"] == "2.13.0"
    assert not any("+" in number for number in pins().values())  # no local builds


def test_every_verb_has_its_module() -> None:
    missing = [name for name, verb in VERBS.items() if not importlib.util.find_spec(verb.module)]
    assert not missing


def test_resources_name_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo-one").mkdir()
    (tmp_path / "demo-one" / "config.json").write_text("{}")
    monkeypatch.setattr(resources, "ASSETS", tmp_path)
    assert resources.demo_names() == ("demo-one",)
    assert resources.demo_path("demo-one") == tmp_path / "demo-one"
    with pytest.raises(UsageError, match="did you mean 'demo-one'"):
        resources.demo_path("demo-on")
    with pytest.raises(UsageError, match="no such task"):
        resources.task_path("nothing-like-it")


def test_installed_data_comes_before_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "cdbench"
    (tmp_path / "tasks").mkdir()
    monkeypatch.setattr(resources, "PACKAGE", package)
    assert resources.data_dir("tasks") == tmp_path / "tasks"
    (package / "data" / "tasks").mkdir(parents=True)
    assert resources.data_dir("tasks") == package / "data" / "tasks"
    with pytest.raises(UsageError, match="configs"):
        resources.data_dir("configs")


@pytest.mark.slow
def test_the_wheel_holds_what_a_run_needs(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"cdbench/cli/main.py", "cdbench/config.py"} <= names
    page = {"page.html.jinja", "style.css"}
    assert {f"cdbench/render/report/{name}" for name in page} <= names
    for kind in ("tasks", "configs"):
        files = [path for path in (ROOT / kind).rglob("*") if path.is_file()]
        assert {f"cdbench/data/{path.relative_to(ROOT)}" for path in files} <= names
    assets = [path for path in resources.ASSETS.rglob("*") if path.is_file()]
    assert {str(path.relative_to(ROOT)) for path in assets} <= names
    assert not any(name.startswith(("tests/", "results/", "scripts/")) for name in names)


# Written so that no pattern matches its own text.
FORBIDDEN = {
    "a path of one machine": r"(?<![\w.])/(?:wor[k]/(?:main|shared|[.])|roo[t]/|op[t]/(?:whe|py))",
    "a package index": r"pypi[.]org|pythonhosted[.]org|--(?:extra-)?index-url",
    "a numbered ticket": r"(?i)\bissue[ ]#?\d",
    "where it was written": r"(?i)\bthis workplac[e]|\b(?:this|my|next|earlier) sessio[n]\b",
}


def tracked_files() -> list[Path]:
    """Files git knows of, or would on the next commit."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_a_machine_an_index_or_a_ticket() -> None:
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for what, pattern in FORBIDDEN.items():
            found += [f"{path.name}: {what}: {m[0]}" for m in re.finditer(pattern, text)]
    assert not found


def test_the_forbidden_patterns_find_what_they_mean() -> None:
    samples = ("/" + "work/main", "pypi" + ".org", "issue" + " #2", "this " + "workplace")
    assert all(
        re.search(pattern, sample)
        for pattern, sample in zip(FORBIDDEN.values(), samples, strict=True)
    )

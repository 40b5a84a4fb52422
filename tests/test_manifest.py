"""The manifest never fails, and tells nothing of who ran it or where it is installed."""

from __future__ import annotations

import getpass
import hashlib
import json
import platform
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from cdbench import manifest
from cdbench.schema import Manifest, to_json


def git(directory: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=directory, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a package, committed."""
    package = tmp_path / "cdbench"
    package.mkdir()
    (package / "__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return package


def test_collect_reads_back() -> None:
    made = manifest.collect(argv=["/opt/somewhere/bin/cdbench", "run", "--out", "typed/path"])
    assert Manifest.model_validate_json(to_json(made)) == made
    assert made.command == ["cdbench", "run", "--out", "typed/path"]
    assert made.python == platform.python_version()
    assert made.packages["numpy"]
    assert (made.cpu.logical_cores or 0) >= 1
    assert (made.ram_bytes or 0) > 0
    assert made.device.kind == "cpu"
    assert datetime.fromisoformat(made.started_utc).utcoffset() == timedelta(0)


def test_no_user_host_or_install_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: pytest.fail("asked for the host name"))
    monkeypatch.setattr(getpass, "getuser", lambda: pytest.fail("asked for the user name"))
    written = to_json(manifest.collect(argv=["cdbench"]))
    assert str(Path(manifest.__file__).parent) not in written
    assert str(Path.home()) not in written or str(Path.home()) == "/"


def test_only_listed_variables_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SOME_TOKEN", "secret")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    env = manifest.collect(argv=[]).env
    assert env["OMP_NUM_THREADS"] == "3"
    assert "SOME_TOKEN" not in env
    assert "MKL_NUM_THREADS" not in env


def test_git_state_of_a_checkout(checkout: Path) -> None:
    clean = manifest.git_state(checkout)
    assert clean is not None
    assert len(clean.commit) == 40
    assert not clean.dirty
    (checkout / "__init__.py").write_text("changed = True\n")
    changed = manifest.git_state(checkout)
    assert changed is not None
    assert changed.dirty
    assert changed.commit == clean.commit


def test_no_git_state_elsewhere(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert manifest.git_state(tmp_path_factory.mktemp("plain")) is None
    # installed in an environment inside somebody else's repository
    installed = checkout.parent / "env" / "cdbench"
    installed.mkdir(parents=True)
    assert manifest.git_state(installed) is None


def test_no_git_program(monkeypatch: pytest.MonkeyPatch, checkout: Path) -> None:
    monkeypatch.setenv("PATH", "")
    assert manifest.git_state(checkout) is None
    assert manifest.collect(argv=[]).git is None


def test_identify(tmp_path: Path) -> None:
    model = tmp_path / "my-model"
    model.mkdir()
    config = model / "config.json"
    config.write_text("{}")
    named = manifest.identify(str(model), [config])
    assert named.name == "my-model"
    assert named.files == {"config.json": hashlib.sha256(b"{}").hexdigest()}
    assert manifest.identify("owner/model", []).name == "owner/model"
    with pytest.raises(OSError, match="absent"):
        manifest.identify("m", [tmp_path / "absent"])


def test_a_device_that_is_not_there() -> None:
    info = manifest.device_info("cuda:0")
    assert info.kind == "cuda"
    assert json.loads(to_json(info))["kind"] == "cuda"

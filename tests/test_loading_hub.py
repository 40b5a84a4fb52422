"""A hub id: from the local cache where it is there, and an error at once where it cannot be had."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from cdbench.errors import UsageError
from cdbench.models import loading
from cdbench.models.loading import load_model
from tests import tiny


@pytest.mark.parametrize("network", ["HF_HUB_OFFLINE=1", "HF_ENDPOINT=http://127.0.0.1:9"])
def test_a_hub_id_without_a_network_fails_at_once(network: str, tmp_path: Path) -> None:
    name, _, value = network.partition("=")
    program = (
        "import time; from cdbench.cli.main import main; start = time.monotonic()\n"
        "code = main(['generate', 'some-org/some-model', '--prompt', 'x'])\n"
        "print(code, time.monotonic() - start < 60)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HOME": str(tmp_path), name: value},
    )
    assert done.stdout == "2 True\n", done.stderr
    assert re.fullmatch(
        r"cdbench: model 'some-org/some-model': not in the local cache and cannot be fetched "
        r"\(\w+\); download it where there is a network and give its directory\n",
        done.stderr,
    )


def test_a_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_cached(*args: Any, **settings: Any) -> str:
        assert settings.get("local_files_only"), "nothing may be fetched before the hub answers"
        raise LocalEntryNotFoundError("not cached")

    answered = threading.Event()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", not_cached)
    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda *a, **k: answered.wait(timeout=30)
    )
    monkeypatch.setattr(loading, "HUB_ANSWER_S", 0.05)
    with pytest.raises(UsageError, match="TimeoutError"):
        load_model("some-org/some-model")
    answered.set()


def test_a_cached_hub_model_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[list[str]] = []

    def cached(hub_id: str, allow_patterns: list[str], local_files_only: bool = False) -> str:
        assert local_files_only
        wanted.append(allow_patterns)
        return str(tiny.FIXTURE)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert load_model("some-org/some-model", device="cpu").name == "some-org/some-model"
    load_model("some-org/some-model", device="cpu", weight_seed=1)
    assert ["*.safetensors" in patterns for patterns in wanted] == [True, False]

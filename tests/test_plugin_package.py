"""The example of a model in a package of its own: installed, listed, served, and quoted."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from cdbench.models.base import StagedModel
from cdbench.models.looped_llama import LoopedLlama
from cdbench.models.translation import read_translation
from cdbench.models.unrolled import unrolled
from cdbench.runtime.core import Request
from cdbench.runtime.engine_config import EngineConfig
from tests import tiny
from tests.reference import assert_equals_alone
from tests.test_engine_properties import configs, requests, serve

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "add-a-model"
PAGE = ROOT / "docs" / "add-a-model.md"
CONFIG: dict[str, Any] = {
    **{k: v for k, v in tiny.OURO_CONFIG.items() if k != "total_ut_steps"},
    "model_type": "scaled_loop",
    "max_loops": 4,
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built by pip into a directory of its own without a network."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    options = ["--no-build-isolation", "--disable-pip-version-check", "--target", str(target)]
    done = subprocess.run([*pip, *options, str(EXAMPLE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def cdbench(installed: Path, *args: str) -> Any:
    """The document that a fresh process prints, with the package on its path."""
    program = "import sys; from cdbench.cli.main import main; sys.exit(main())"
    paths = os.pathsep.join((str(installed), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, *args, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_installed_package_is_listed_and_served(installed: Path, tmp_path: Path) -> None:
    listed = {item["model_type"]: item for item in cdbench(installed, "list", "models")["families"]}
    assert listed["scaled_loop"] == {
        "model_type": "scaled_loop",
        "stages": None,
        "needs": None,
        "package": "cdbench-scaled-loop",
        "summary": "looped block whose loops have scales of their own, learned gate",
    }
    assert listed["ouro"]["package"] == "cdbench"
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    ids = tmp_path / "ids.jsonl"
    ids.write_text('{"prompt": [1, 2, 3]}\n{"prompt": [4]}\n')
    options = ["--ids-file", str(ids), "--weights", "random:1", "--device", "cpu"]
    exits = ["--max-new-tokens", "5", "--exit", "cdf@0.6"]
    document = cdbench(installed, "generate", str(tmp_path), *options, *exits)
    assert [len(request["tokens"]) for request in document["requests"]] == [5, 5]
    assert all(1 <= depth <= 4 for r in document["requests"] for depth in r["depths"])


@pytest.fixture(scope="module")
def model() -> StagedModel:
    """The example's model, random, without its package's being installed."""
    spec = importlib.util.spec_from_file_location("scaled_loop", EXAMPLE / "scaled_loop.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(1)
    network: StagedModel = module.ScaledLoop(CONFIG).double()
    for name, parameter in network.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.4)
    return network.requires_grad_(False)


@settings(max_examples=10)
@given(batch=requests(), config=configs())
def test_the_example_is_served_in_any_schedule_as_alone(
    model: StagedModel, batch: list[Request], config: EngineConfig
) -> None:
    results = serve(model, config, batch)
    for request in batch:
        assert_equals_alone(model, request, results[request.id], config.kv_layout)


def test_the_example_unrolls(model: StagedModel) -> None:
    batch = [Request("r", [3, 1, 4], 8)]
    expected = serve(model, EngineConfig(mode="static"), batch)["r"]
    found = serve(unrolled(model), EngineConfig(mode="dense:unrolled"), batch)["r"]
    assert found.tokens == expected.tokens
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-9)


def test_the_pages_mapping_is_one_and_it_names_every_key(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = page.split("```json\n")[1].split("```")[0]
    (tmp_path / "cdbench.json").write_text(shown)
    translation = read_translation(tmp_path)
    assert translation is not None
    theirs = {"num_hidden_layers": 2, "num_loops": 2}
    ours = translation.config(theirs, LoopedLlama.config_keys)
    assert (ours["core_layers"], ours["max_loops"], ours["norm_between_loops"]) == (2, 2, "own")
    assert translation.tensor("model.layers.1.attn.q.weight") == (
        "model.layers.1.self_attn.q_proj.weight"
    )
    assert all(f"`{key}`" in page for key in LoopedLlama.config_keys)


def test_the_page_quotes_the_example_as_it_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, language in (("scaled_loop.py", "python"), ("pyproject.toml", "toml")):
        code = (EXAMPLE / name).read_text(encoding="utf-8")
        assert f"```{language}\n{code}```\n" in page, name

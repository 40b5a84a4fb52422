"""Families: found without importing them, from packages too, and with other numbers of layers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cdbench import resources
from cdbench.cli.main import main
from cdbench.errors import UsageError
from cdbench.models.checkpoint import save_checkpoint
from cdbench.models.loading import load_model
from cdbench.models.registry import FAMILIES, build_model, families, with_layers
from cdbench.models.unrolled import core_parameters
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from tests import tiny

CONFIGS: dict[str, dict[str, Any]] = {
    "ouro": tiny.OURO_CONFIG,
    "huginn_raven": tiny.HUGINN_CONFIG,
    "universal_transformer": tiny.UNIVERSAL_CONFIG,
    "looped_llama": tiny.LOOPED_LLAMA_CONFIG,
    **{
        name: {**tiny.LLAMA_CONFIG, "model_type": name}
        for name in ("llama", "mistral", "qwen2", "qwen3")
    },
}


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        act()
    said = str(caught.value)
    assert "\n" not in said
    return said


# The families here.


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_what_its_record_says(name: str) -> None:
    family, model = FAMILIES[name], build_model(CONFIGS[name])
    dims = model.dims
    assert dims.model_type == name == family.model_type
    assert (dims.has_exit_gate, dims.has_halting) == (family.gate, family.halting)
    counts = {"prelude": dims.prelude_layers, "core": dims.core_layers, "coda": dims.coda_layers}
    assert family.stages == tuple(stage for stage, count in counts.items() if count)
    assert family.injection in (dims.has_injection, None)
    assert core_parameters(model, dims.max_loops)


def test_nothing_is_imported_until_it_is_asked_for() -> None:
    program = (
        "import sys\n"
        "from cdbench.models.registry import families\n"
        "families()\n"
        "allowed = {'base', 'config_reader', 'layers', 'registry'}\n"
        "loaded = {m.split('.')[2] for m in sys.modules if m.startswith('cdbench.models.')}\n"
        "sys.exit(', '.join(loaded - allowed) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("model_type", "part"),
    [
        ("oro", "did you mean 'ouro'?"),
        ("qwen4", "did you mean 'qwen3'?"),
        ("zzz", "known: huginn_raven, llama, looped_llama, mistral, ouro"),
        (None, "model_type None is not supported"),
        (["ouro"], "model_type ['ouro'] is not supported"),
    ],
)
def test_an_unknown_type_says_what_there_is(model_type: Any, part: str) -> None:
    said = refusal(lambda: build_model({**tiny.OURO_CONFIG, "model_type": model_type}))
    assert said.startswith("config.json: model_type ")
    assert part in said


# Families that packages bring.

Package = Callable[..., None]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Install a package with one module and one entry point, for this test."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, entry: str, code: str) -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nSummary: about {name}\n"
        )
        (info / "entry_points.txt").write_text(f"[cdbench.models]\n{entry}\n")
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return install


def test_a_package_adds_a_family_without_being_imported(package: Package) -> None:
    code = "from cdbench.models.ouro import Ouro\nbuild = Ouro\n"
    package("plug_one", "plugged = plug_one:build", code)
    family = families()["plugged"]
    assert (family.package, family.summary, family.stages) == ("plug_one", "about plug_one", None)
    assert "plug_one" not in sys.modules
    model = build_model({**tiny.OURO_CONFIG, "model_type": "plugged"})
    assert model.dims.max_loops == 4
    assert "did you mean 'plugged'?" in refusal(lambda: build_model({"model_type": "pluged"}))
    layers = refusal(lambda: with_layers({"model_type": "plugged"}, "0-1-0"))
    assert "of package plug_one has no with_layers" in layers


def test_a_built_in_name_is_not_overridden(package: Package) -> None:
    package("plug_two", "ouro = plug_two:build", "raise RuntimeError\n")
    assert families() == FAMILIES
    build_model(tiny.OURO_CONFIG)


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("import no_such_module\n", "cannot be imported (ModuleNotFoundError: No module named"),
        ("1 / 0\n", "cannot be imported (ZeroDivisionError"),
        ("raise ImportError('a\\nb')\n", "cannot be imported (ImportError: a b)"),
        ("", "cannot be imported (AttributeError"),
        ("build = 3\n", "is a int, no callable"),
        ("build = lambda config: 3\n", "returned a int, expected a StagedModel"),
        ("build = lambda config: config['depth']\n", "failed (KeyError: 'depth')"),
    ],
)
def test_a_package_that_does_not_work_is_named(package: Package, code: str, part: str) -> None:
    package("plug_three", "plugged = plug_three:build", code)
    said = refusal(lambda: build_model({"model_type": "plugged"}))
    assert "entry point `plugged = plug_three:build` of package plug_three" in said
    assert part in said
    assert said.endswith("; update or remove that package")


def test_a_packages_own_usage_error_is_its_own(package: Package) -> None:
    code = (
        "from cdbench.errors import UsageError\n\ndef build(config):\n    raise UsageError('a')\n"
    )
    package("plug_four", "plugged = plug_four:build", code)
    assert refusal(lambda: build_model({"model_type": "plugged"})) == "a"


def test_one_name_from_two_packages_is_refused(package: Package) -> None:
    for name in ("plug_five", "plug_six"):
        package(name, f"plugged = {name}:build", "")
    said = refusal(lambda: build_model({"model_type": "plugged"}))
    assert "is brought by plug_five and plug_six; remove all but one" in said


# Other numbers of layers.


def split_of(model_type: str, layers: str) -> tuple[int, int, int]:
    dims = build_model(with_layers(CONFIGS[model_type], layers)).dims
    return dims.prelude_layers, dims.core_layers, dims.coda_layers


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_takes_other_layers(name: str) -> None:
    before = dict(CONFIGS[name])
    assert split_of(name, "0-3-0") == (0, 3, 0)
    if FAMILIES[name].stages == ("core",):
        assert "core layers only" in refusal(lambda: split_of(name, "1-3-0"))
        assert "0-3-0" in refusal(lambda: split_of(name, "0-3-1"))
    else:
        assert split_of(name, "2-1-3") == (2, 1, 3)
    assert CONFIGS[name] == before


@pytest.mark.parametrize(
    "text",
    ["", "4", "1-4", "1-4-1-1", "a-4-1", "-1-4-1", "1- 4-1", "1-4-1\n", "1-99999-1", "١-4-1"],
)
def test_a_malformed_split_is_refused(text: str) -> None:
    said = refusal(lambda: with_layers(tiny.OURO_CONFIG, text))
    assert said == f"layers: {text!r} is no split; write PRELUDE-CORE-CODA, as in 1-4-1"


def test_a_split_without_core_is_refused() -> None:
    for config in CONFIGS.values():
        said = refusal(lambda config=config: with_layers(config, "1-0-1"))  # type: ignore[misc]
        assert "has no core" in said


def test_other_layers_go_with_random_weights_only(tmp_path: Path) -> None:
    save_checkpoint(tiny.huginn(), tiny.HUGINN_CONFIG, tmp_path, torch.float32)
    model = load_model(str(tmp_path), device="cpu", weight_seed=2, layers="0-3-2")
    dims = model.network.dims
    assert (dims.prelude_layers, dims.core_layers, dims.coda_layers) == (0, 3, 2)
    assert model.layers == "0-3-2"
    assert load_model(str(tmp_path), device="cpu").layers is None
    said = refusal(lambda: load_model(str(tmp_path), device="cpu", layers="0-3-2"))
    assert said.startswith("layers: changes the model")
    assert said.endswith("use weights random:SEED")
    said = refusal(lambda: load_model(str(tmp_path), device="cpu", weight_seed=2, layers="3"))
    assert said.startswith("layers: '3' is no split")


# `cdbench list models`.


def test_list_models_shows_demos_and_families(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "models", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    demos = {item["name"]: item for item in document["models"]}
    for name in resources.demo_names():
        network = load_model(name, device="cpu").network
        engine = Engine(network, EngineConfig(max_residents=1))
        assert demos[name]["kv_bytes_per_token"]["float32"] == engine.cache.position_bytes
        assert demos[name]["cost_ratio"] == pytest.approx(network.flops_per_token().ratio, abs=1e-4)
        assert demos[name]["loops"] == network.dims.max_loops
    by_type = {item["model_type"]: item for item in document["families"]}
    assert document["model_types"] == sorted(by_type)
    assert by_type["universal_transformer"]["needs"] == ["gate", "halting"]
    assert by_type["looped_llama"]["needs"] == ["injection (optional)"]
    assert by_type["huginn_raven"]["stages"] == ["prelude", "core", "coda"]
    assert main(["list", "models"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{family} " in printed for family in FAMILIES)


def test_list_models_shows_what_a_package_brings(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    package("plug_seven", "plugged = plug_seven:build", "raise RuntimeError\n")
    assert main(["list", "models"]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("plugged")]
    assert line.split() == ["plugged", "-", "-", "plug_seven", "about", "plug_seven"]

"""From a name to a model: where it is found, what is checked, and what a damaged file says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cdbench import resources
from cdbench.cli.main import main
from cdbench.errors import UsageError
from cdbench.models import loading
from cdbench.models.base import StagedModel
from cdbench.models.checkpoint import save_checkpoint
from cdbench.models.loading import build_network, load_model
from tests import tiny

PUBLISHED: dict[str, Any] = {
    "model_type": "ouro",
    "hidden_act": "silu",
    "vocab_size": 49152,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 65536,
    "rope_theta": 1e6,
    "total_ut_steps": 4,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def ouro(tmp_path: Path) -> Path:
    """A tiny checkpoint to damage."""
    directory = tmp_path / "ouro"
    save_checkpoint(tiny.ouro(), tiny.OURO_CONFIG, directory, torch.float32)
    return directory


def load(directory: Path, **settings: Any) -> StagedModel:
    return load_model(str(directory), device="cpu", **settings).network


def refusal(directory: Path | str, **settings: Any) -> str:
    with pytest.raises(UsageError) as caught:
        load_model(str(directory), device="cpu", **settings)
    return str(caught.value)


def edit_tensors(directory: Path, **changes: Tensor | None) -> None:
    """Rewrite the weights with some tensors replaced, added or (None) left out."""
    file = directory / "model.safetensors"
    tensors = {**load_file(file), **changes}
    save_file({name: t for name, t in tensors.items() if t is not None}, file)


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# Where models are found.


@pytest.mark.parametrize("name", resources.demo_names())
def test_demos_load_by_name(name: str) -> None:
    model = load_model(name, device="cpu")
    assert model.name == name
    assert model.network.dtype == torch.float32
    ids = model.encode("copy a b c :")
    assert model.decode(ids) == "copy a b c :"
    assert model.stop_ids
    assert all(0 <= i < model.network.dims.vocab_size for i in ids)


def test_a_directory_loads(ouro: Path) -> None:
    model = load_model(str(ouro), device="cpu")
    assert (model.name, model.tokenizer, model.stop_ids) == (str(ouro), None, frozenset())
    assert [file.name for file in model.files] == ["config.json", "model.safetensors"]
    for use in (lambda: model.encode("a"), lambda: model.decode([1])):
        with pytest.raises(UsageError, match=r"no tokenizer\.json"):
            use()


@pytest.mark.parametrize("name", ["no-such", "./no/such", "/no/such", "../x", "a//b", ".a/b"])
def test_what_is_not_there_is_said(name: str) -> None:
    assert "no such demo or directory" in refusal(name)


def test_a_file_is_no_directory(ouro: Path) -> None:
    assert "is a file" in refusal(ouro / "config.json")
    assert "no config.json" in refusal(ouro.parent)


# What is in the files.


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_saved_and_loaded_is_the_same(tmp_path: Path, dtype: str) -> None:
    wanted: torch.dtype = getattr(torch, dtype)
    model = tiny.ouro(wanted)
    save_checkpoint(model, tiny.OURO_CONFIG, tmp_path, wanted)
    again = load(tmp_path, dtype=dtype)
    assert again.dtype == wanted
    for name, parameter in model.named_parameters():
        assert torch.equal(again.get_parameter(name), parameter), name


@pytest.mark.parametrize("config", [tiny.OURO_CONFIG, tiny.LLAMA_CONFIG], ids=["ouro", "llama"])
def test_a_tied_head_stays_tied(tmp_path: Path, config: dict[str, Any]) -> None:
    tied = {**config, "tie_word_embeddings": True}
    model = tiny.randomised(tied, 1, torch.float32)
    save_checkpoint(model, tied, tmp_path, torch.float32)
    again = load(tmp_path)
    assert again.parameter_count() == model.parameter_count()
    assert again.get_parameter("embedding.weight") is again.get_parameter("lm_head.weight")
    hidden = torch.randn(2, 16)
    assert torch.equal(again.head(hidden), model.head(hidden))
    # some writers store the head all the same
    edit_tensors(tmp_path, **{"lm_head.weight": torch.zeros(23, 16)})
    assert torch.equal(load(tmp_path).head(hidden), model.head(hidden))


def test_a_sharded_checkpoint_is_the_whole(ouro: Path) -> None:
    whole = load(ouro)
    tensors = load_file(ouro / "model.safetensors")
    (ouro / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, ouro / file)
    index = {name: file for file, part in shards.items() for name in part}
    path = ouro / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": index}))
    model = load_model(str(ouro), device="cpu")
    assert [file.name for file in model.files][1:] == list(shards)
    for name, parameter in whole.named_parameters():
        assert torch.equal(model.network.get_parameter(name), parameter)
    (ouro / "two.safetensors").unlink()
    assert "two.safetensors: no such file" in refusal(ouro)
    for damage in ("{", "[]", "{}", '{"weight_map": {"a": 1}}', '{"weight_map": 3}'):
        path.write_text(damage)
        assert "expected a safetensors index" in refusal(ouro)


def test_a_damaged_tensor_is_named(ouro: Path) -> None:
    norm = "model.norm.weight"
    good = load_file(ouro / "model.safetensors")[norm]
    edit_tensors(ouro, **{norm: None})
    assert f"`{norm}` is missing" in refusal(ouro)
    edit_tensors(ouro, **{norm: torch.ones(8)})
    assert f"`{norm}` has shape [8], expected [16]" in refusal(ouro)
    for bad in (torch.nan, torch.inf):
        edit_tensors(ouro, **{norm: torch.full((16,), bad)})
        assert f"`{norm}` holds NaN or infinity" in refusal(ouro)
    edit_tensors(ouro, **{norm: torch.ones(16, dtype=torch.int8)})
    assert "quantised weights are not supported" in refusal(ouro)
    edit_tensors(ouro, **{norm: torch.full((16,), 1e6)})
    assert "does not fit torch.float16" in refusal(ouro, dtype="float16")
    edit_tensors(ouro, **{norm: good, "model.layers.0.self_attn.q_proj.bias": torch.ones(16)})
    assert "`model.layers.0.self_attn.q_proj.bias` has no place" in refusal(ouro)
    edit_tensors(
        ouro,
        **{
            "model.layers.0.self_attn.q_proj.bias": None,
            "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2),
        },
    )
    load(ouro)


FORMATS: dict[str, tuple[dict[str, Any], Callable[..., StagedModel], str, str]] = {
    "ouro": (tiny.OURO_CONFIG, tiny.ouro, "total_ut_steps", "model.layers.1.mlp.up_proj.weight"),
    "huginn": (
        tiny.HUGINN_CONFIG,
        tiny.huginn,
        "mean_recurrence",
        "transformer.core_block.1.attn.qk_bias",
    ),
    "universal": (tiny.UNIVERSAL_CONFIG, tiny.universal, "max_loops", "model.halting.weight"),
    "looped-llama": (
        tiny.LOOPED_LLAMA_CONFIG,
        tiny.looped_llama,
        "max_loops",
        "model.coda.0.self_attn.o_proj.weight",
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_names_what_is_damaged(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, build, loops, tensor = FORMATS[name]
    save_checkpoint(build(torch.float32), config, tmp_path, torch.float32)
    good = load_file(tmp_path / "model.safetensors")[tensor]
    load(tmp_path)

    def says(part: str) -> None:
        """One line that names the checkpoint and the part, and exit code 2 on the command line."""
        said = refusal(tmp_path)
        assert said.startswith(str(tmp_path))
        assert part in said
        ids = tmp_path / "ids.jsonl"
        ids.write_text('{"prompt": [1]}\n')
        code = main(["generate", str(tmp_path), "--ids-file", str(ids), "--device", "cpu"])
        assert code == 2
        assert capsys.readouterr() == ("", f"cdbench: {said}\n")

    for bad, part in (
        (None, f"tensor `{tensor}` is missing"),
        (torch.full_like(good, torch.nan), f"`{tensor}` holds NaN or infinity"),
        (good[..., 1:].contiguous(), f"`{tensor}` has shape "),
    ):
        edit_tensors(tmp_path, **{tensor: bad})
        says(part)
    edit_tensors(tmp_path, **{tensor: good, "model.extra.weight": good.clone()})
    says("`model.extra.weight` has no place")
    edit_tensors(tmp_path, **{"model.extra.weight": None})
    edit_config(tmp_path, **{loops: None})
    says(f"`{loops}` is missing")
    edit_config(tmp_path, **{loops: 2, "model_type": "unheard_of"})
    says("model_type 'unheard_of' is not supported")


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_file_is_said(ouro: Path, kept: float) -> None:
    file = ouro / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * kept)])
    said = refusal(ouro)
    assert said.startswith(str(file))
    assert "truncated" in said


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"total_ut_steps": 0}, "`total_ut_steps` is 0"),
        ({"total_ut_steps": None}, "`total_ut_steps` is missing"),
        ({"hidden_size": None}, "`hidden_size` is missing"),
        ({"num_hidden_layers": 2.5}, "`num_hidden_layers` is 2.5"),
        ({"hidden_act": "gelu"}, "`hidden_act` is 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "'yarn' scaling"),
        ({"model_type": "oro"}, "did you mean 'ouro'?"),
        ({"num_hidden_layers": 1}, "has no place"),
        ({"num_hidden_layers": 3}, "is missing"),
        ({"intermediate_size": 48}, "has shape"),
    ],
)
def test_a_wrong_configuration_names_file_and_key(
    ouro: Path, change: dict[str, Any], part: str
) -> None:
    edit_config(ouro, **change)
    said = refusal(ouro)
    assert said.startswith(str(ouro))
    assert part in said


@pytest.mark.parametrize("damage", ["", "{", "[]", "[" * 100_000])
def test_a_damaged_json_file_is_named(ouro: Path, damage: str) -> None:
    for name in ("card.json", "generation_config.json", "config.json"):
        (ouro / name).write_text(damage)
        assert refusal(ouro).startswith(str(ouro / name))
        (ouro / name).unlink()


def test_a_damaged_tokenizer_is_named(ouro: Path) -> None:
    (ouro / "tokenizer.json").write_text("{}")
    assert refusal(ouro).startswith(str(ouro / "tokenizer.json"))


def test_dtype_and_device(ouro: Path) -> None:
    with pytest.raises(UsageError, match="device 'gpu': unknown"):
        load_model(str(ouro), device="gpu")
    assert "dtype 'float31': unknown" in refusal(ouro, dtype="float31")
    assert "dtype 'int8': unknown" in refusal(ouro, dtype="int8")
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    config = {"torch_dtype": "bfloat16"}
    assert loading.resolve_dtype("auto", gpu, config) == torch.bfloat16
    assert loading.resolve_dtype("auto", cpu, config) == torch.float32


# Card, stops, random weights, published sizes.


def test_the_card_is_read(ouro: Path) -> None:
    def card() -> loading.ModelCard:
        return load_model(str(ouro), device="cpu").card

    assert card() == loading.ModelCard("none", "per-loop", ())
    edit_config(ouro, early_exit_threshold=1.0)
    assert card().exit == "none"
    edit_config(ouro, early_exit_threshold=0.8)
    assert card().exit == "cdf@0.8"
    (ouro / "card.json").write_text('{"exit": "cdf@0.6", "kv": "shared", "tasks": ["a"]}')
    assert card() == loading.ModelCard("cdf@0.6", "shared", ("a",))
    (ouro / "card.json").write_text('{"tasks": 3}')
    assert "`tasks` is 3" in refusal(ouro)


def test_stop_ids_are_those_of_the_generation_config(ouro: Path) -> None:
    edit_config(ouro, eos_token_id=5)
    assert load_model(str(ouro), device="cpu").stop_ids == frozenset()
    path = ouro / "generation_config.json"
    for written, ids in (("2", {2}), ("[0, 2]", {0, 2}), ("null", set())):
        path.write_text(f'{{"eos_token_id": {written}}}')
        assert load_model(str(ouro), device="cpu").stop_ids == ids
    path.write_text('{"eos_token_id": "<eos>"}')
    assert "`eos_token_id` is '<eos>'" in refusal(ouro)


def test_random_weights_need_the_configuration_only(ouro: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(ouro / "config.json", bare)
    first, again, other = (load(bare, weight_seed=seed) for seed in (3, 3, 4))
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name))
        if "norm" not in name:
            assert not torch.equal(parameter, other.get_parameter(name))
    model = load_model(str(bare), device="cpu", weight_seed=3)
    assert model.weight_seed == 3
    assert [file.name for file in model.files] == ["config.json"]
    assert "model.safetensors: no such file" in refusal(bare)


@pytest.mark.parametrize(("layers", "parameters"), [(24, 1_434_652_673), (48, 2_667_974_657)])
def test_published_sizes(layers: int, parameters: int) -> None:
    config = {**PUBLISHED, "num_hidden_layers": layers}
    model = build_network(config, torch.bfloat16, torch.device("meta"))
    assert model.parameter_count() == parameters
    assert model.dtype == torch.bfloat16
    assert model.dims.max_loops == 4
    assert (model.dims.head_dim, model.dims.vocab_size) == (128, 49152)

"""The looped model of Llama layers, and checkpoints it serves that go by other names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import load_file, save_file
from torch import Tensor

from cdbench.errors import UsageError
from cdbench.models.base import StagedModel
from cdbench.models.checkpoint import save_checkpoint
from cdbench.models.loading import load_model
from cdbench.models.looped_llama import INJECTIONS, NORMS
from cdbench.models.sequence import SequenceContext, loop_states
from cdbench.runtime.core import ExitPolicy, Request
from cdbench.runtime.engine_config import EngineConfig
from tests import tiny
from tests.reference import assert_equals_alone
from tests.test_engine_properties import configs, requests, serve

KINDS = [(norm, injection) for norm in NORMS for injection in INJECTIONS]
IDS = torch.tensor([[3, 1, 4, 1, 5]])


def looped(norm: str = "none", injection: str = "none", **changes: Any) -> StagedModel:
    return tiny.looped_llama(norm_between_loops=norm, injection=injection, **changes)


# What it computes.


@pytest.mark.parametrize("split", [(0, 2, 0), (1, 2, 1)])
def test_without_norm_or_injection_it_is_the_dense_model_with_its_layers_repeated(
    split: tuple[int, int, int],
) -> None:
    """The dense model is proved against ``transformers``; here its layers come as loops."""
    prelude, core, coda = split
    model = looped(prelude_layers=prelude, core_layers=core, coda_layers=coda, max_loops=3)
    order = [
        *(f"prelude_layers.{i}" for i in range(prelude)),
        *(f"layers.{i}" for _ in range(3) for i in range(core)),
        *(f"coda_layers.{i}" for i in range(coda)),
    ]
    dense = tiny.llama(num_hidden_layers=len(order))
    with torch.no_grad():
        for name in ("embedding.weight", "norm.weight", "lm_head.weight"):
            dense.get_parameter(name).copy_(model.get_parameter(name))
        for i, block in enumerate(order):
            for name, value in model.get_submodule(block).named_parameters():
                dense.get_parameter(f"layers.{i}.{name}").copy_(value)
    batch = [Request(str(i), [i + 1, 2, 7], 8) for i in range(4)]
    expected = serve(dense, EngineConfig(mode="dense:x"), batch)
    for key, result in serve(model, EngineConfig(mode="static", width=2), batch).items():
        assert result.tokens == expected[key].tokens
        assert result.logprobs == pytest.approx(expected[key].logprobs, abs=1e-9)


@pytest.mark.parametrize(("norm", "injection"), KINDS)
def test_a_loop_begins_with_the_norm_and_then_the_injection(norm: str, injection: str) -> None:
    model, plain = looped(norm, injection), looped()
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in plain.named_parameters():
            value.copy_(own[name])
    normed = {"shared": "norm.weight", "own": "own_norm.weight"}
    for weight in normed.values():
        if weight in own:
            own[weight].normal_(1.0, 0.3)
    ctx = SequenceContext(1, 5, IDS.device)
    e, _ = plain.prelude(IDS.flatten(), ctx)
    state = e if injection == "none" else torch.zeros_like(e)
    for loop, found in enumerate(loop_states(model, IDS), start=1):
        if loop > 1 and norm != "none":
            rms = state.pow(2).mean(-1, keepdim=True).add(1e-6).sqrt()
            state = state / rms * own[normed[norm]]
        if injection == "add":
            state = state + e
        elif injection == "concat":
            state = torch.cat([state, e], dim=-1) @ own["adapter.weight"].T
        state = plain.core(state, None, ctx)
        torch.testing.assert_close(found, state, atol=1e-9, rtol=0)
    assert loop == 4


SERVED = {kind: looped(*kind) for kind in KINDS}


@settings(max_examples=6)
@given(batch=requests(), config=configs())
@pytest.mark.parametrize("kind", [("none", "add"), ("own", "concat"), ("shared", "none")])
def test_any_schedule_equals_the_request_alone(
    kind: tuple[str, str], batch: list[Request], config: EngineConfig
) -> None:
    """Rows of one launch stand at different loops, and only some of them are normed."""
    gateless = [r for r in batch if r.exit.rule != "cdf"]
    results = serve(SERVED[kind], config, gateless)
    for request in gateless:
        assert_equals_alone(SERVED[kind], request, results[request.id], config.kv_layout)


@pytest.mark.parametrize(("norm", "injection"), KINDS)
def test_saved_and_loaded_is_the_same(tmp_path: Path, norm: str, injection: str) -> None:
    kind = {"norm_between_loops": norm, "injection": injection}
    biases = {"qk_norm": True, "qkv_bias": True, "mlp_bias": True}
    config: dict[str, Any] = {**tiny.LOOPED_LLAMA_CONFIG, **kind, **biases}
    model = tiny.randomised(config, 1, torch.float32)
    save_checkpoint(model, config, tmp_path, torch.float32)
    again = load_model(str(tmp_path), device="cpu").network
    assert again.dims == model.dims
    assert again.dims.has_injection == (injection != "none")
    for name, parameter in model.named_parameters():
        assert torch.equal(again.get_parameter(name), parameter), name


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"max_loops": None}, "`max_loops` is missing"),
        ({"max_loops": 0}, "`max_loops` is 0"),
        ({"core_layers": None}, "`core_layers` is missing"),
        ({"core_layers": 0}, "`core_layers` is 0, expected a whole number of at least 1"),
        ({"prelude_layers": -1}, "`prelude_layers` is -1, expected a whole number of at least 0"),
        ({"norm_between_loops": True}, "is True; use one of none, shared, own"),
        ({"injection": "linear"}, "`injection` is 'linear'; use one of none, add, concat"),
        ({"rope_theta": None}, "`rope_theta` is missing"),
        ({"sliding_window": 32}, "`sliding_window` is 32"),
        ({"qk_norm": 1}, "`qk_norm` is 1, expected true or false"),
    ],
)
def test_a_wrong_configuration_is_refused(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError) as caught:
        tiny.looped_llama(**changes)
    assert str(caught.value).startswith("config.json (looped_llama): ")
    assert part in str(caught.value)


# Checkpoints by other names. The names below are made up: only the shapes are the published ones.

Rename = Callable[[str], str]

NANBEIGE_LIKE: dict[str, Any] = {
    **{k: tiny.LLAMA_CONFIG[k] for k in ("hidden_size", "vocab_size", "intermediate_size")},
    **{k: tiny.LLAMA_CONFIG[k] for k in ("num_attention_heads", "num_key_value_heads")},
    **{k: tiny.LLAMA_CONFIG[k] for k in ("max_position_embeddings", "rms_norm_eps", "rope_theta")},
    "model_type": "loopnan",
    "num_hidden_layers": 2,
    "num_loops": 2,
    "tie_word_embeddings": True,
}
NANBEIGE_FILE: dict[str, Any] = {
    "family": "looped_llama",
    "keys": {
        "core_layers": "num_hidden_layers",
        "max_loops": "num_loops",
        "norm_between_loops": {"value": "own"},
    },
    "tensors": {r"^model\.between\.": "model.loop_norm."},
}
PARCAE_LIKE: dict[str, Any] = {
    "model_type": "parlike",
    "n_embd": 16,
    "n_head": 4,
    "n_kv": 2,
    "ffn": 32,
    "vocab": 23,
    "block_size": 64,
    "norm_eps": 1e-6,
    "rope_base": 10000.0,
    "n_prelude": 1,
    "n_core": 2,
    "n_coda": 1,
    "mean_recurrence": 8,
}
PARCAE_FILE: dict[str, Any] = {
    "family": "looped_llama",
    "keys": {
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_key_value_heads": "n_kv",
        "intermediate_size": "ffn",
        "vocab_size": "vocab",
        "max_position_embeddings": "block_size",
        "rms_norm_eps": "norm_eps",
        "rope_theta": "rope_base",
        "prelude_layers": "n_prelude",
        "core_layers": "n_core",
        "coda_layers": "n_coda",
        "max_loops": "mean_recurrence",
        "injection": {"value": "concat"},
    },
    "tensors": {
        "^transformer\\.": "model.",
        r"\.wte\.": ".embed_tokens.",
        r"\.ln_f\.": ".norm.",
        r"\.core_block\.(\d+)\.": r".layers.\1.",
        r"\.attn\.([qkvo])\.": r".self_attn.\1_proj.",
        r"\.norm_1\.": ".input_layernorm.",
        r"\.norm_2\.": ".post_attention_layernorm.",
        r"^head\.": "lm_head.",
        r"\.steps$": None,
    },
}


def nanbeige_name(ours: str) -> str:
    return ours.replace("model.loop_norm.", "model.between.")


def parcae_name(ours: str) -> str:
    for old, new in (
        (r"^lm_head\.", "head."),
        (r"^model\.", "transformer."),
        (r"\.embed_tokens\.", ".wte."),
        (r"^transformer\.norm\.", "transformer.ln_f."),
        (r"\.layers\.", ".core_block."),
        (r"\.self_attn\.([qkvo])_proj\.", r".attn.\1."),
        (r"\.input_layernorm\.", ".norm_1."),
        (r"\.post_attention_layernorm\.", ".norm_2."),
    ):
        ours = re.sub(old, new, ours)
    return ours


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Rename, dict[str, Any]]] = {
    "nanbeige-like": (
        NANBEIGE_LIKE,
        NANBEIGE_FILE,
        nanbeige_name,
        {
            "prelude_layers": 0,
            "coda_layers": 0,
            "max_loops": 2,
            "norm_between_loops": "own",
            "tie_word_embeddings": True,
        },
    ),
    "parcae-like": (
        PARCAE_LIKE,
        PARCAE_FILE,
        parcae_name,
        {"max_loops": 8, "injection": "concat"},
    ),
}


def write(directory: Path, name: str, **extra: Tensor) -> StagedModel:
    """A checkpoint under foreign names beside its ``cdbench.json``; returns the model in it."""
    theirs, translation, rename, ours = CASES[name]
    model = tiny.looped_llama(**ours)
    save_checkpoint(model, theirs, directory, torch.float64)
    file = directory / "model.safetensors"
    tensors = {rename(key): value for key, value in load_file(file).items()}
    assert tensors.keys() != load_file(file).keys()
    save_file({**tensors, **extra}, file)
    (directory / "cdbench.json").write_text(json.dumps(translation))
    return model


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mode", ["static", "cdb"])
def test_a_checkpoint_by_other_names_is_served_like_ours(
    name: str, mode: str, tmp_path: Path
) -> None:
    steps = {"transformer.steps": torch.ones(3)} if name == "parcae-like" else {}
    model = write(tmp_path, name, **steps)
    loaded = load_model(str(tmp_path), dtype="float64", device="cpu")
    assert loaded.network.dims == model.dims
    names = ["config.json", "cdbench.json", "model.safetensors"]
    assert [file.name for file in loaded.files] == names
    depths = [1, 2, model.dims.max_loops]
    batch = [
        Request(str(i), [i + 1, 2, 7], 8, ExitPolicy("fixed", depth=depth))
        for i, depth in enumerate(depths)
    ]
    config = EngineConfig(mode=mode, width=2)
    expected = serve(model, config, batch)
    for key, result in serve(loaded.network, config, batch).items():
        assert result.tokens == expected[key].tokens
        assert result.logprobs == expected[key].logprobs
        assert result.executed_depths == expected[key].executed_depths


def test_random_weights_need_no_tensors(tmp_path: Path) -> None:
    write(tmp_path, "parcae-like")
    (tmp_path / "model.safetensors").unlink()
    loaded = load_model(str(tmp_path), device="cpu", weight_seed=1, layers="2-3-0")
    dims = loaded.network.dims
    assert (dims.prelude_layers, dims.core_layers, dims.coda_layers) == (2, 3, 0)
    assert [file.name for file in loaded.files] == ["config.json", "cdbench.json"]


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    translation = json.loads(json.dumps(PARCAE_FILE))
    change(translation)
    return json.dumps(translation)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda f: f.pop("family"), "`family` is missing"),
        (lambda f: f.update(family=3), "`family` is 3; expected a name"),
        (lambda f: f.update(family="looped_lama"), "did you mean 'looped_llama'?"),
        (lambda f: f.update(family="ouro"), "`family`: model_type 'ouro' has a format of its own"),
        (lambda f: f.update(tensor={}), "unknown key 'tensor'; did you mean 'tensors'?"),
        (lambda f: f.update(keys=[]), "`keys` is []; expected an object"),
        (lambda f: f["keys"].update(max_lops="n_core"), "no key 'max_lops'; did you mean"),
        (lambda f: f["keys"].update(max_loops="n_cor"), "no key 'n_cor'; did you mean 'n_core'?"),
        (lambda f: f["keys"].update(max_loops=8), "`keys.max_loops` is 8; expected the name"),
        (lambda f: f["keys"].update(max_loops={"valu": 8}), "`keys.max_loops` is {'valu': 8}"),
        (lambda f: f["keys"].pop("max_loops"), "`max_loops` is missing"),
        (lambda f: f["tensors"].update({"a(": "b"}), "`tensors`: 'a(': "),
        (lambda f: f["tensors"].update({"wte": 3}), "`tensors`: 'wte' → 3; expected a name"),
        (lambda f: f["tensors"].update({"embed": r"\1"}), "invalid group reference"),
        (lambda f: f["tensors"].update({"embed": r"\g<x>"}), "unknown group name"),
        (lambda f: f["tensors"].pop(r"\.wte\."), "(our `model.wte.weight`) has no place"),
        (lambda f: f["tensors"].update({r"\.embed_tokens\.": None}), "embed_tokens.weight` is mis"),
        (lambda f: f["tensors"].update({r"layers\.1": "layers.0"}), "comes a second time"),
    ],
)
def test_a_wrong_translation_is_one_line_that_names_it(
    change: Callable[[dict[str, Any]], object], part: str, tmp_path: Path
) -> None:
    write(tmp_path, "parcae-like")
    (tmp_path / "cdbench.json").write_text(edited(change))
    with pytest.raises(UsageError) as caught:
        load_model(str(tmp_path), device="cpu")
    said = str(caught.value)
    assert part in said
    assert said.startswith(str(tmp_path))
    assert "\n" not in said


def test_a_missing_tensor_points_at_the_translation(tmp_path: Path) -> None:
    write(tmp_path, "nanbeige-like")
    translation = json.dumps({**NANBEIGE_FILE, "tensors": {r"^model\.between\.": None}})
    (tmp_path / "cdbench.json").write_text(translation)
    said = f"`model.loop_norm.weight` is missing; see {tmp_path / 'cdbench.json'}"
    with pytest.raises(UsageError, match=re.escape(said)):
        load_model(str(tmp_path), device="cpu")

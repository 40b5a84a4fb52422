"""Our dense families against ``transformers``: greedy, token for token, in float64, at random.

The checkpoint goes through files in the official format, and the prompts through the engine in one
batch, so loading, prefill, cache and schedule are compared along with the arithmetic.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cdbench.errors import UsageError
from cdbench.models.layers import RopeScaling
from cdbench.models.llama import Llama
from cdbench.models.loading import load_model
from cdbench.models.registry import build_model
from cdbench.runtime.core import Request
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig

PROMPTS = [[1], [5, 9, 2, 2, 7], [3, 3, 3, 8, 1, 0, 30, 12, 17], [40, 11]]
NEW_TOKENS = 12
MARGIN = 1e-4
"""transformers keeps float32 norms in a float64 model: nearer ties may fall either way."""

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
"""With 16-wide heads there are frequencies that are kept, divided, and in between."""
LINEAR = {"rope_type": "linear", "factor": 4.0}

CONFIGS: dict[str, dict[str, Any]] = {
    "mha": {"num_key_value_heads": 4},
    "gqa": {"num_key_value_heads": 2},
    "mqa": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "attention-bias": {"attention_bias": True},
    "mlp-bias": {"num_key_value_heads": 4, "mlp_bias": True},
    "rope-theta": {"rope_theta": 500.0},
    "head-dim": {"head_dim": 16},
    "eps": {"num_key_value_heads": 4, "rms_norm_eps": 1e-2},
    "llama3": {"head_dim": 16, "rope": LLAMA3},
    "linear": {"rope": LINEAR},
    # SmolLM2: llama, tied, a large rotary base
    "smollm2": {"tie_word_embeddings": True, "rope_theta": 130000.0},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "mistral-head-dim": {"model_type": "mistral", "sliding_window": 64, "head_dim": 16},
    "mistral-linear": {"model_type": "mistral", "sliding_window": None, "rope": LINEAR},
    "qwen2": {"model_type": "qwen2"},
    "qwen2-tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2-llama3": {"model_type": "qwen2", "rope": LLAMA3},
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
    "qwen3-tied-bias": {
        "model_type": "qwen3",
        "head_dim": 8,
        "tie_word_embeddings": True,
        "attention_bias": True,
    },
    "qwen3-llama3": {"model_type": "qwen3", "head_dim": 16, "rope": LLAMA3},
}
SIZES = {
    "vocab_size": 41,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


def official(changes: dict[str, Any], seed: int) -> Any:
    """A random float64 model of a family with weights large enough for varied tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {"model_type": "llama", **SIZES, **changes}
    theta = settings.pop("rope_theta", 10000.0)
    rope = dict(settings.pop("rope", {})) or None
    # Newer versions read the table, older ones the keys.
    settings["rope_parameters"] = {"rope_type": "default", **(rope or {}), "rope_theta": theta}
    config = AutoConfig.for_model(**settings, rope_theta=theta, rope_scaling=rope)
    model = AutoModelForCausalLM.from_config(config).double().eval()
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
        else:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    return model


@torch.inference_mode()
def greedy(model: Any, prompt: list[int]) -> tuple[list[int], list[float], list[float]]:
    """The official continuation without a cache: tokens, logprobs and top-two margins."""
    ids = list(prompt)
    logprobs, margins = [], []
    for _ in range(NEW_TOKENS):
        logits = model(torch.tensor([ids])).logits[0, -1].double()
        best = logits.topk(2).values
        ids.append(int(logits.argmax()))
        logprobs.append(float(logits.log_softmax(-1)[ids[-1]]))
        margins.append(float(best[0] - best[1]))
    return ids[len(prompt) :], logprobs, margins


@pytest.mark.parametrize("name", CONFIGS)
def test_dense_equals_transformers(name: str, tmp_path: Path) -> None:
    reference = official(CONFIGS[name], seed=len(name))
    reference.save_pretrained(tmp_path)
    ours = load_model(str(tmp_path), dtype="float64", device="cpu").network
    tokens_in_common = 0
    config = EngineConfig(mode="dense:x", max_residents=3, width=2, prefill_tokens=4)
    requests = [Request(str(i), prompt, NEW_TOKENS) for i, prompt in enumerate(PROMPTS)]
    results = {int(result.id): result for result in Engine(ours, config).run(requests)}
    for i, prompt in enumerate(PROMPTS):
        tokens, logprobs, margins = greedy(reference, prompt)
        # A near-tie may fall either way, and what follows it then is another text.
        sure = next((n for n, m in enumerate(margins) if m < MARGIN), NEW_TOKENS)
        assert results[i].tokens[:sure] == tokens[:sure]
        assert results[i].logprobs[:sure] == pytest.approx(logprobs[:sure], abs=1e-4)
        assert set(results[i].executed_depths) == {1}
        tokens_in_common += sure
    assert tokens_in_common > 0.9 * NEW_TOKENS * len(PROMPTS)


def test_parameters_are_those_of_transformers(tmp_path: Path) -> None:
    for name in ("gqa", "tied", "attention-bias", "mistral", "qwen2", "qwen3"):
        reference = official(CONFIGS[name], seed=0)
        reference.save_pretrained(tmp_path / name)
        ours = load_model(str(tmp_path / name), dtype="float64", device="cpu").network
        assert ours.parameter_count() == reference.num_parameters()


# What is read from a configuration, and what is refused.

BARE: dict[str, Any] = {**SIZES, "model_type": "llama", "rms_norm_eps": 1e-6, "head_dim": 16}


def build(**changes: Any) -> Llama:
    model = build_model({**BARE, **changes})
    assert isinstance(model, Llama)
    return model


def refusal(**changes: Any) -> str:
    with pytest.raises(UsageError) as caught:
        build(**changes)
    return str(caught.value)


OLDER = {"type": "llama3", **{k: v for k, v in LLAMA3.items() if k != "rope_type"}}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 500.0, "rope_scaling": OLDER},
        {"rope_theta": 500.0, "rope_scaling": LLAMA3},
        {"rope_parameters": {**LLAMA3, "rope_theta": 500.0}},
        {"rope_parameters": {**LLAMA3, "rope_theta": 500.0}, "rope_scaling": LLAMA3},
        {"rope_theta": 1.0, "rope_parameters": {**OLDER, "rope_theta": 500.0}},
    ],
)
def test_every_spelling_of_a_rope_scaling_is_the_same(spelling: dict[str, Any]) -> None:
    rotary = build(**spelling).rotary
    assert rotary.theta == 500.0
    assert rotary.scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 32)


def test_a_rope_scaling_that_is_none_is_none() -> None:
    for spelling in (
        {},
        {"rope_scaling": None},
        {"rope_scaling": {"type": "default"}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"partial_rotary_factor": 1.0},
    ):
        rotary = build(**spelling).rotary
        assert (rotary.theta, rotary.scaling) == (10000.0, None)


def test_the_context_trained_for_is_the_flat_key_the_table_or_the_whole() -> None:
    table = {k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"}
    scalings = [
        build(rope_scaling=table).rotary.scaling,
        build(rope_scaling=LLAMA3, original_max_position_embeddings=48).rotary.scaling,
    ]
    assert [s and s.original_positions for s in scalings] == [64, 48]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "`rope_scaling` asks for 'dynamic'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "asks for 'longrope' scaling"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "`rope_parameters` asks for 'yarn'"),
        ({"rope_scaling": {"type": "linear"}}, "`rope_scaling.factor` is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "`rope_scaling.factor` is 0"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "it must be above 1.0"),
        ({"rope_scaling": LLAMA3, "rope_parameters": LINEAR}, "contradicts `rope_parameters`"),
        ({"rope_scaling": 2.0}, "`rope_scaling` is 2.0, expected a table"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "table per kind of layer"),
        ({"partial_rotary_factor": 0.5}, "`partial_rotary_factor` is set"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "`rope_parameters.partial_rotary"),
        ({"attention_bias": "no"}, "`attention_bias` is 'no', expected true or false"),
        ({"hidden_act": "gelu"}, "`hidden_act` is 'gelu'"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(changes: dict[str, Any], part: str) -> None:
    for model_type in ("llama", "mistral", "qwen3"):
        if model_type != "mistral" or "attention_bias" not in changes:
            said = refusal(**{"model_type": model_type, "sliding_window": None, **changes})
            assert said.startswith(f"config.json ({model_type}): ")
            assert part in said


@pytest.mark.parametrize("model_type", ["mistral", "qwen2", "qwen3"])
def test_a_sliding_window_is_refused_where_it_would_hide_something(model_type: str) -> None:
    on = {} if model_type == "mistral" else {"use_sliding_window": True}
    base = {"model_type": model_type, **on}
    for reach in (None, 64, 4096):
        build(**base, sliding_window=reach)
    assert "`sliding_window` is 63; only full attention" in refusal(**base, sliding_window=63)
    # transformers takes 4096 where nothing is said
    build(**base, max_position_embeddings=4096)
    assert "`sliding_window` is 4096" in refusal(**base, max_position_embeddings=4097)
    assert "`layer_types` has ['linear" in refusal(**base, layer_types=["linear_attention"])
    off = {"model_type": model_type, "use_sliding_window": False, "sliding_window": 32}
    if model_type == "mistral":
        assert "`sliding_window` is 32" in refusal(**off), "Mistral has no switch"
        return
    build(**off)
    build(**off, layer_types=["full_attention"] * 3)
    sliding = ["full_attention", "sliding_attention"]
    assert "`sliding_window` is 32" in refusal(**off, layer_types=sliding)


def test_a_llama_reads_no_window() -> None:
    build(sliding_window=32)


def test_a_head_beside_tied_weights_is_ignored(tmp_path: Path) -> None:
    """A file may store the tied head or leave it out; either way there is one matrix."""
    from safetensors.torch import load_file, save_file

    reference = official(CONFIGS["qwen2-tied"], seed=5)
    reference.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    bare = load_file(file)
    assert "lm_head.weight" not in bare
    ids = torch.tensor([[3, 1, 4]])
    save_file({**bare, "lm_head.weight": bare["model.embed_tokens.weight"].clone()}, file)
    network = load_model(str(tmp_path), dtype="float64", device="cpu").network
    assert network.get_parameter("lm_head.weight") is network.get_parameter("embedding.weight")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    with torch.inference_mode():
        expected = reference(ids).logits[0, -1].argmax()
    requests = [Request("r", [3, 1, 4], 1)]
    (result,) = Engine(network, EngineConfig(mode="dense:x")).run(requests)
    assert result.tokens == [int(expected)]

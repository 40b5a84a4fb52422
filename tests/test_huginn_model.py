"""Huginn against outputs of its official code, its files and its random initial states.

Published Ouro sizes are counted here too: the same check, on the meta device.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats
from torch import Tensor

from cdbench.errors import UsageError
from cdbench.models import huginn, layers
from cdbench.models.base import StageContext
from cdbench.models.checkpoint import save_checkpoint
from cdbench.models.huginn import Huginn, uniforms
from cdbench.models.loading import load_model
from cdbench.models.registry import build_model
from cdbench.models.sequence import SequenceContext, loop_states
from cdbench.runtime.sampling import logprobs_of
from tests import tiny
from tests.tiny import HUGINN_CONFIG, HUGINN_FIXTURE, huginn_fixture

EXPECTED = json.loads((HUGINN_FIXTURE / "expected.json").read_text())
LOGITS = load_file(HUGINN_FIXTURE / "expected.safetensors")
TOLERANCE = 5e-4
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)

PUBLISHED: dict[str, Any] = {
    "model_type": "huginn_raven",
    "injection_type": "linear",
    "state_init": "like-init",
    "norm_eps": 1e-6,
    "bias": False,
    "n_embd": 5280,
    "n_heads": 55,
    "num_attention_heads": 55,
    "num_key_value_heads": 55,
    "block_size": 4096,
    "vocab_size": 65536,
    "padding_multiple": 4096,
    "intermediate_size": 17920,
    "mean_recurrence": 32,
    "n_layers_in_prelude": 2,
    "n_layers_in_recurrent_block": 4,
    "n_layers_in_coda": 2,
    "rope_base": 50000,
    "tie_embeddings": True,
    "qk_bias": True,
}
PUBLISHED_OURO: dict[str, Any] = {
    "model_type": "ouro",
    "hidden_act": "silu",
    "vocab_size": 49152,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "max_position_embeddings": 65536,
    "rope_theta": 1e6,
    "total_ut_steps": 4,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


def official(dtype: torch.dtype) -> Huginn:
    model = huginn_fixture(dtype)
    assert isinstance(model, Huginn)
    return model


def largest_difference(model: Huginn) -> float:
    """From the official logits, over every prompt, position and loop."""
    worst = 0.0
    for index, prompt in enumerate(EXPECTED["prompts"]):
        ids = torch.tensor([prompt])
        ctx = SequenceContext(1, len(prompt), ids.device)
        known = LOGITS[f"logits.{index}"].double()
        assert known.shape[0] == model.dims.max_loops
        for state, wanted in zip(loop_states(model, ids), known, strict=True):
            logits = model.head(model.coda(state, ctx))
            assert logits.dtype == model.dtype
            worst = max(worst, (logits.double() - wanted).abs().max().item())
    return worst


# The forward pass.


@DTYPES
def test_logits_at_every_loop_are_the_official_ones(dtype: torch.dtype) -> None:
    assert largest_difference(official(dtype)) < TOLERANCE


def rotate_half(model: Huginn, patch: pytest.MonkeyPatch) -> None:
    rotary = layers.Rotary(model.dims.head_dim, 50000.0, model.dims.max_positions)
    patch.setattr(model, "rotary", rotary)
    patch.setattr(huginn, "rotate_interleaved", layers.rotate)


def one_final_norm(model: Huginn, patch: pytest.MonkeyPatch) -> None:
    def coda(state_TD: Tensor, ctx: StageContext) -> Tensor:
        return model._run(model.coda_layers, model.norm(state_TD), ctx)

    patch.setattr(model, "coda", coda)


def no_first_norm(model: Huginn, patch: pytest.MonkeyPatch) -> None:
    def coda(state_TD: Tensor, ctx: StageContext) -> Tensor:
        return model.norm(model._run(model.coda_layers, state_TD, ctx))

    patch.setattr(model, "coda", coda)


def no_qk_bias(model: Huginn, patch: pytest.MonkeyPatch) -> None:
    for module in model.modules():
        if isinstance(module, huginn.HuginnAttention):
            assert module.qk_bias is not None
            patch.setattr(module.qk_bias, "data", torch.zeros_like(module.qk_bias))


def unscaled_embedding(model: Huginn, patch: pytest.MonkeyPatch) -> None:
    scale = math.sqrt(model.dims.hidden_size)
    patch.setattr(model.embedding, "forward", lambda ids: model.embedding.weight[ids] / scale)


def state_and_injection_swapped(model: Huginn, patch: pytest.MonkeyPatch) -> None:
    weight = model.adapter.weight
    swapped = torch.cat(weight.data.chunk(2, dim=1)[::-1], dim=1)
    patch.setattr(weight, "data", swapped)


def norms_before_the_sum(model: Huginn, patch: pytest.MonkeyPatch) -> None:
    def forward(
        self: huginn.HuginnLayer,
        x_TD: Tensor,
        rope: tuple[Tensor, Tensor],
        layer: int,
        ctx: StageContext,
    ) -> Tensor:
        attended = self.attention(self.attention_norm(x_TD), rope, layer, ctx)
        x_TD = x_TD + self.attention_norm_out(attended)
        return x_TD + self.mlp_norm_out(self.mlp(self.mlp_norm(x_TD)))

    patch.setattr(huginn.HuginnLayer, "forward", forward)


@pytest.mark.parametrize(
    "mistake",
    [
        rotate_half,
        one_final_norm,
        no_first_norm,
        no_qk_bias,
        unscaled_embedding,
        state_and_injection_swapped,
        norms_before_the_sum,
    ],
)
def test_a_likely_mistake_is_caught(
    mistake: Callable[[Huginn, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative controls: each is far outside the tolerance that the right model meets."""
    model = official(torch.float64)
    with monkeypatch.context() as patch:
        mistake(model, patch)
        assert largest_difference(model) > 20 * TOLERANCE
    assert largest_difference(model) < TOLERANCE  # the mistake is gone again


def test_the_loop_starts_at_zero_and_reads_the_prelude() -> None:
    model = official(torch.float64)
    ids = torch.tensor(EXPECTED["prompts"][0])
    state, injection = model.prelude(ids, SequenceContext(1, len(ids), ids.device))
    assert injection is not None
    assert torch.equal(state, torch.zeros_like(injection))
    with pytest.raises(TypeError, match="injection"):
        model.core(state, None, SequenceContext(1, len(ids), ids.device))


def test_logits_of_a_low_precision_model_lose_nothing_by_staying_in_its_precision() -> None:
    """Official code makes them float32 once the head has rounded them; here, whoever reads them."""
    logits = official(torch.bfloat16).head(torch.ones(3, 48, dtype=torch.bfloat16))
    assert logits.dtype is torch.bfloat16
    tokens = torch.tensor([0, 5, 9])
    assert torch.equal(logprobs_of(logits, tokens), logprobs_of(logits.float(), tokens))
    assert logprobs_of(logits, tokens).dtype is torch.float32


# Configuration.


def test_dimensions_come_from_the_official_keys() -> None:
    dims = official(torch.float64).dims
    layers = (dims.prelude_layers, dims.core_layers, dims.coda_layers)
    assert (layers, dims.max_loops, dims.max_positions) == ((2, 4, 2), 8, 256)
    assert (dims.hidden_size, dims.heads, dims.kv_heads, dims.head_dim) == (48, 4, 4, 12)
    assert dims.has_injection
    assert dims.has_random_state
    assert not dims.has_exit_gate
    assert not dims.has_halting


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"injection_type": "add"}, "injection_type"),
        ({"bias": True}, "bias"),
        ({"test_time_noise": 0.1}, "test_time_noise"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
        ({"n_heads": 5}, "n_heads"),
        ({"n_heads": 16}, "n_heads"),
        ({"n_layers_in_recurrent_block": 0}, "n_layers_in_recurrent_block"),
        ({"n_layers_in_coda": -1}, "n_layers_in_coda"),
        ({"mean_recurrence": None}, "mean_recurrence"),
        ({"rope_base": 0}, "rope_base"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(UsageError, match=rf"^config\.json \(huginn_raven\): `{key}` is "):
        Huginn({**HUGINN_CONFIG, **changes})


def test_the_vocabulary_is_padded_as_the_files_are() -> None:
    model = tiny.huginn(vocab_size=23, padding_multiple=8)
    assert model.dims.vocab_size == 24
    assert model.head(torch.zeros(1, 16, dtype=torch.float64)).shape == (1, 24)


def test_other_layer_counts_are_another_model() -> None:
    changed = Huginn.with_layers(HUGINN_CONFIG, 0, 3, 2)
    assert changed != HUGINN_CONFIG
    model = build_model(changed)
    dims = model.dims
    assert (dims.prelude_layers, dims.core_layers, dims.coda_layers) == (0, 3, 2)
    assert {k for k in changed if changed[k] != HUGINN_CONFIG[k]} == set(huginn.LAYER_KEYS)
    ids = torch.tensor([[1, 2, 3]])
    *_, state = loop_states(model, ids)
    logits = model.head(model.coda(state, SequenceContext(1, 3, ids.device)))
    assert logits.isfinite().all()
    for counts in [(1, 0, 1), (-1, 1, 1), (1, 1, -1)]:
        with pytest.raises(UsageError, match="n_layers_in_"):
            Huginn.with_layers(HUGINN_CONFIG, *counts)


# Sizes.


def on_meta(config: dict[str, Any]) -> Any:
    with torch.device("meta"):
        return build_model(config)


@pytest.mark.parametrize(("layer_count", "parameters"), [(24, 1_434_652_673), (48, 2_667_974_657)])
def test_published_ouro_sizes(layer_count: int, parameters: int) -> None:
    model = on_meta({**PUBLISHED_OURO, "num_hidden_layers": layer_count})
    assert model.parameter_count() == parameters


def test_published_huginn_size() -> None:
    n, mlp, vocab = 5280, 17920, 65536
    attention = 3 * n * n + n * n + 2 * n  # Wqkv, proj, qk_bias
    layer = attention + 2 * mlp * n + n * mlp + 4 * n  # fc, proj, norms
    total = vocab * n + 8 * layer + 2 * n * n + n  # tied head once, adapter, ln_f
    assert total == 3_564_976_800
    model = on_meta(PUBLISHED)
    assert model.parameter_count() == total
    assert (model.dims.head_dim, model.dims.max_loops) == (96, 32)


def test_flops_by_stage_count_every_matrix_once_and_the_tied_head() -> None:
    n, mlp, vocab = 5280, 17920, 65536
    layer = 4 * n * n + 3 * n * mlp
    flops = on_meta(PUBLISHED).flops_per_token()
    assert flops.prelude == 2 * 2 * layer
    assert flops.core == 2 * (4 * layer + 2 * n * n)
    assert flops.coda == 2 * (2 * layer + vocab * n)


# Files.


def write_shards(directory: Path, tensors: dict[str, Tensor]) -> None:
    """The fixture as two files and an index, the way the published checkpoint comes."""
    directory.mkdir()
    (directory / "config.json").write_text((HUGINN_FIXTURE / "config.json").read_text())
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2]}
    shards["model-00002-of-00002.safetensors"] = names[1::2]
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, directory / file)
    index = {"weight_map": {name: file for file, held in shards.items() for name in held}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("redundant", [(), ("lm_head.weight",), ("lm_head.weight", "freqs_cis")])
def test_float32_shards_load_into_bfloat16(tmp_path: Path, redundant: tuple[str, ...]) -> None:
    tensors = load_file(HUGINN_FIXTURE / "model.safetensors")
    extra = {
        "lm_head.weight": tensors["transformer.wte.weight"].clone(),
        "freqs_cis": torch.zeros(1, 256, 1, 6, 2),
    }
    write_shards(tmp_path / "sharded", {**tensors, **{name: extra[name] for name in redundant}})
    loaded = load_model(str(tmp_path / "sharded"), dtype="bfloat16", device="cpu")
    whole = official(torch.float32)
    assert loaded.network.dtype == torch.bfloat16
    assert len(loaded.files) == 3
    named = dict(loaded.network.named_parameters())
    assert named.keys() == dict(whole.named_parameters()).keys()
    for name, parameter in whole.named_parameters():
        assert torch.equal(named[name], parameter.to(torch.bfloat16)), name
    assert loaded.network.get_parameter("lm_head.weight") is named["embedding.weight"]


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    tensors = load_file(HUGINN_FIXTURE / "model.safetensors")
    stray = {**tensors, "transformer.adapter.bias": torch.zeros(48)}
    write_shards(tmp_path / "stray", stray)
    with pytest.raises(UsageError, match=r"transformer\.adapter\.bias.*no place"):
        load_model(str(tmp_path / "stray"), device="cpu")


@pytest.mark.parametrize("changes", [{}, {"qk_bias": False}, {"tie_embeddings": False}], ids=str)
def test_saved_and_loaded_is_the_same(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = tiny.huginn(torch.float32, **changes)
    save_checkpoint(model, {**HUGINN_CONFIG, **changes}, tmp_path, torch.float32)
    again = load_model(str(tmp_path), dtype="float32", device="cpu").network
    assert dict(again.named_parameters()).keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        assert torch.equal(again.get_parameter(name), parameter), name
    saved = load_file(tmp_path / "model.safetensors").keys()
    assert ("lm_head.weight" in saved) == (changes.get("tie_embeddings") is False)
    assert any("qk_bias" in name for name in saved) == (changes.get("qk_bias") is not False)


def test_the_fixtures_names_survive_a_round_trip(tmp_path: Path) -> None:
    config = json.loads((HUGINN_FIXTURE / "config.json").read_text())
    save_checkpoint(official(torch.float32), config, tmp_path, torch.float32)
    saved = load_file(tmp_path / "model.safetensors")
    known = load_file(HUGINN_FIXTURE / "model.safetensors")
    assert saved.keys() == known.keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in known.items())


# Random initial states.

KEYS = torch.tensor([0, 1, -1, 2**62 + 12345, -(2**63), 2**63 - 1, 987654321])


def splitmix(key: int, column: int) -> int:
    """The same stream in Python's unsigned arithmetic: key mixed first, then counted on."""
    full, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & full
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & full
        return z ^ (z >> 31)

    start = mix((key + golden) & full)
    return mix((start + (column + 1) * golden) & full)


def test_uniforms_are_splitmix64() -> None:
    drawn = uniforms(KEYS, 9)
    for row, key in enumerate(KEYS.tolist()):
        for column in range(9):
            wanted = ((splitmix(key, column) >> 12) + 0.5) / 2**52
            assert drawn[row, column].item() == wanted
            assert 0.0 < wanted < 1.0


def test_the_extreme_uniforms_stay_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    for bits in (0, -1):  # all 64 bits clear, all set
        monkeypatch.setattr(huginn, "_mix", lambda z, bits=bits: torch.full_like(z, bits))
        drawn = uniforms(KEYS, 1)
        assert ((drawn > 0) & (drawn < 1)).all()
        state = tiny.huginn().random_state(KEYS)
        limit = 3.0 * math.sqrt(2.0 / 5.0)
        assert state.abs().max().item() == pytest.approx(limit, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_row_depends_on_its_key_alone(dtype: torch.dtype) -> None:
    model = tiny.huginn(dtype)
    together = model.random_state(KEYS)
    assert together.shape == (len(KEYS), 16)
    assert together.dtype == dtype
    assert torch.equal(together, model.random_state(KEYS))
    for row, key in enumerate(KEYS):
        assert torch.equal(model.random_state(key[None])[0], together[row])
    assert torch.equal(model.random_state(KEYS.flip(0)), together.flip(0))
    assert torch.equal(model.random_state(KEYS[[2, 2]])[0], together[2])
    assert model.random_state(KEYS[:0]).shape == (0, 16)


def test_distinct_keys_give_unrelated_rows() -> None:
    state = official(torch.float64).random_state(torch.arange(-1000, 1000))
    assert len(state.unique()) == state.numel()  # no number drawn twice: no shared streams
    correlated = torch.corrcoef(state[:200])
    correlated.fill_diagonal_(0.0)
    assert correlated.abs().max() < 0.75  # 48 columns: chance alone stays near 0.6


def test_states_follow_the_truncated_normal() -> None:
    """Std √(2/(5·D)) before the cut at ±3 std, times √D: the embedding's scale."""
    model = official(torch.float64)
    n = model.dims.hidden_size
    sigma = math.sqrt(2.0 / (5.0 * n)) * math.sqrt(n)
    state = model.random_state(torch.arange(2000))
    assert state.abs().max() <= 3.0 * sigma
    law = stats.truncnorm(-3.0, 3.0, scale=sigma)
    assert state.std().item() == pytest.approx(law.std(), rel=0.01)
    assert abs(state.mean().item()) < 0.01 * sigma
    assert stats.kstest(state.flatten().numpy(), law.cdf).pvalue > 0.01


def test_a_model_without_one_has_no_random_state() -> None:
    with pytest.raises(TypeError, match="ouro has no initial state"):
        tiny.ouro().random_state(KEYS)

"""Small random models and a clock that tests own."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from cdbench.models.base import StagedModel
from cdbench.models.checkpoint import load_weights
from cdbench.models.config_reader import read_config
from cdbench.models.registry import build_model

FIXTURE = Path(__file__).parent / "fixtures" / "ouro-nano"
HUGINN_FIXTURE = Path(__file__).parent / "fixtures" / "huginn-nano"

OURO_CONFIG: dict[str, Any] = {
    "model_type": "ouro",
    "hidden_act": "silu",
    "vocab_size": 23,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "total_ut_steps": 4,
    "rms_norm_eps": 1e-6,
}
LLAMA_CONFIG: dict[str, Any] = {
    **{k: v for k, v in OURO_CONFIG.items() if k != "total_ut_steps"},
    "model_type": "llama",
}

HUGINN_CONFIG: dict[str, Any] = {
    "model_type": "huginn_raven",
    "injection_type": "linear",
    "norm_eps": 1e-6,
    "n_embd": 16,
    "n_heads": 4,
    "block_size": 64,
    "vocab_size": 23,
    "padding_multiple": 1,
    "intermediate_size": 32,
    "mean_recurrence": 4,
    "n_layers_in_prelude": 1,
    "n_layers_in_recurrent_block": 2,
    "n_layers_in_coda": 1,
    "rope_base": 50000,
    "tie_embeddings": True,
    "qk_bias": True,
}
UNIVERSAL_CONFIG: dict[str, Any] = {
    "model_type": "universal_transformer",
    "vocab_size": 23,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "max_loops": 4,
    "rms_norm_eps": 1e-6,
    "act_epsilon": 0.01,
}
LOOPED_LLAMA_CONFIG: dict[str, Any] = {
    **{k: v for k, v in LLAMA_CONFIG.items() if k != "num_hidden_layers"},
    "model_type": "looped_llama",
    "prelude_layers": 1,
    "core_layers": 2,
    "coda_layers": 1,
    "max_loops": 4,
}


def randomised(config: dict[str, Any], seed: int, dtype: torch.dtype) -> StagedModel:
    """A model with normal weights large enough for varied tokens and gate decisions."""
    torch.manual_seed(seed)
    model = build_model(config).to(dtype)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.4)
    return model.requires_grad_(False)


def ouro(dtype: torch.dtype = torch.float64, seed: int = 1, **changes: Any) -> StagedModel:
    return randomised({**OURO_CONFIG, **changes}, seed, dtype)


def llama(dtype: torch.dtype = torch.float64, seed: int = 1, **changes: Any) -> StagedModel:
    return randomised({**LLAMA_CONFIG, **changes}, seed, dtype)


def huginn(dtype: torch.dtype = torch.float64, seed: int = 1, **changes: Any) -> StagedModel:
    return randomised({**HUGINN_CONFIG, **changes}, seed, dtype)


def universal(dtype: torch.dtype = torch.float64, seed: int = 1, **changes: Any) -> StagedModel:
    """With a halting unit tempered so that at ``act`` 0.7 tokens halt at every depth."""
    model = randomised({**UNIVERSAL_CONFIG, **changes}, seed, dtype)
    model.get_parameter("halting.weight").mul_(0.25)
    model.get_parameter("halting.bias").zero_()
    return model


def looped_llama(dtype: torch.dtype = torch.float64, seed: int = 1, **changes: Any) -> StagedModel:
    return randomised({**LOOPED_LLAMA_CONFIG, **changes}, seed, dtype)


@functools.cache
def fixture_model(dtype: torch.dtype) -> StagedModel:
    """The official-format random Ouro checkpoint whose outputs are known."""
    return _loaded(FIXTURE, dtype)


@functools.cache
def huginn_fixture(dtype: torch.dtype) -> StagedModel:
    """The same for Huginn."""
    return _loaded(HUGINN_FIXTURE, dtype)


def _loaded(directory: Path, dtype: torch.dtype) -> StagedModel:
    model = build_model(read_config(directory)).to(dtype)
    load_weights(model, directory)
    return model.requires_grad_(False)


class StepClock:
    """Time that moves by one second each time it is read, and jumps where the engine waits."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        self.time_s += 1.0
        return self.time_s

    def wait_until(self, when_s: float) -> None:
        self.time_s = max(self.time_s, when_s)

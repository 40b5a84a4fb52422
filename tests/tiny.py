"""Small random models and a clock that tests own."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from cdbench.models.base import StagedModel
from cdbench.models.checkpoint import load_weights, read_config
from cdbench.models.registry import build_model

FIXTURE = Path(__file__).parent / "fixtures" / "ouro-nano"

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


@functools.cache
def fixture_model(dtype: torch.dtype) -> StagedModel:
    """The official-format random Ouro checkpoint whose outputs are known."""
    model = build_model(read_config(FIXTURE)).to(dtype)
    load_weights(model, FIXTURE)
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

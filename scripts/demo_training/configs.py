"""What the demo models are: their official-format configurations and their first weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from tokenizers import Tokenizer

from cdbench.models.base import StagedModel
from cdbench.models.registry import build_model
from cdbench.workloads.demo_problems import token_id

MODELS = ("demo-ouro", "demo-dense", "demo-dense-small", "demo-huginn", "demo-ut")
MAX_POSITIONS = 256


def model_config(name: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """The official-format configuration of one demo model."""
    ids = {
        "vocab_size": tokenizer.get_vocab_size(),
        "eos_token_id": token_id(tokenizer, "<eos>"),
        "pad_token_id": token_id(tokenizer, "<pad>"),
        "torch_dtype": "bfloat16",
    }
    if name == "demo-huginn":
        return _huginn() | ids
    kinds: dict[str, dict[str, Any]] = {
        "demo-ouro": {
            "model_type": "ouro",
            "architectures": ["OuroForCausalLM"],
            "num_hidden_layers": 1,
            "total_ut_steps": 4,
        },
        "demo-dense": {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": 4,
        },
        "demo-dense-small": {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": 1,
        },
        "demo-ut": {
            "model_type": "universal_transformer",
            "num_hidden_layers": 1,
            "max_loops": 6,
            "act_epsilon": 0.01,
        },
    }
    return kinds[name] | _decoder() | ids


def _decoder() -> dict[str, Any]:
    """The layer that four of the five share, under the key names of the Llama family."""
    return {
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "head_dim": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": False,
    }


def _huginn() -> dict[str, Any]:
    return {
        "model_type": "huginn_raven",
        "architectures": ["RavenForCausalLM"],
        "n_embd": 256,
        "n_heads": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 704,
        "n_layers_in_prelude": 1,
        "n_layers_in_recurrent_block": 1,
        "n_layers_in_coda": 1,
        "mean_recurrence": 8,
        "injection_type": "linear",
        "state_init": "like-init",
        "norm_eps": 1e-6,
        "rope_base": 10000,
        "block_size": MAX_POSITIONS,
        "padding_multiple": 1,
        "tie_embeddings": True,
        "bias": False,
        "qk_bias": True,
    }


def new_model(config: dict[str, Any]) -> StagedModel:
    """The model with its first weights, drawn from torch's generator.

    Where the embedding is multiplied by √D it starts at 1/√D, so that a token's state has unit
    size; the halting unit starts at an even, low probability. The attention of Huginn's prelude and
    coda is held at zero: with it, one loop is three attention layers deep, which solves all of
    these problems, and there would be nothing to loop for.
    """
    model = build_model(config)
    named = dict(model.named_parameters())
    with torch.no_grad():
        if config["model_type"] in ("huginn_raven", "universal_transformer"):
            named["embedding.weight"].normal_(0.0, 1 / math.sqrt(model.dims.hidden_size))
        if "halting.weight" in named:
            named["halting.weight"].zero_()
            named["halting.bias"].fill_(-2.0)
        for name, parameter in named.items():
            if name.startswith(("prelude_layers", "coda_layers")) and ".attention." in name:
                parameter.requires_grad_(False)
                if name.endswith("out.weight"):
                    parameter.zero_()
    return model

"""Our Llama against ``transformers``: greedy, token for token, in float64, on random models.

The checkpoint goes through files in the official format, and the prompts through the engine in one
batch, so loading, prefill, cache and schedule are compared along with the arithmetic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cdbench.models.loading import load_model
from cdbench.runtime.core import Request
from cdbench.runtime.engine import Engine, EngineConfig

PROMPTS = [[1], [5, 9, 2, 2, 7], [3, 3, 3, 8, 1, 0, 30, 12, 17], [40, 11]]
NEW_TOKENS = 12
MARGIN = 1e-4
"""transformers keeps float32 norms in a float64 model: nearer ties may fall either way."""

CONFIGS: dict[str, dict[str, Any]] = {
    "mha": {"num_key_value_heads": 4},
    "gqa": {"num_key_value_heads": 2},
    "mqa": {"num_key_value_heads": 1},
    "tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "attention-bias": {"num_key_value_heads": 2, "attention_bias": True},
    "mlp-bias": {"num_key_value_heads": 4, "mlp_bias": True},
    "rope-theta": {"num_key_value_heads": 2, "rope_theta": 500.0},
    "head-dim": {"num_key_value_heads": 2, "head_dim": 16},
    "eps": {"num_key_value_heads": 4, "rms_norm_eps": 1e-2},
}


def official(changes: dict[str, Any], seed: int) -> Any:
    """A random float64 ``LlamaForCausalLM`` with weights large enough for varied tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {
        "vocab_size": 41,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        **changes,
    }
    theta = settings.pop("rope_theta", 10000.0)
    # Newer versions read the table, older ones the key.
    rope = {"rope_theta": theta, "rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    model = LlamaForCausalLM(LlamaConfig(**settings, **rope)).double().eval()
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
    for name in ("gqa", "tied", "attention-bias"):
        reference = official(CONFIGS[name], seed=0)
        reference.save_pretrained(tmp_path / name)
        ours = load_model(str(tmp_path / name), dtype="float64", device="cpu").network
        assert ours.parameter_count() == reference.num_parameters()

"""The published shapes that are timed with random weights, and the work that they are given."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdbench.grammar import parse_depths
from cdbench.schema import GenerateDocument, GeneratedRequest, to_json
from cdbench.workloads.synthetic_depths import depths_of
from scripts.gpu_parts.check import Check

DEPTHS = parse_depths("shallow-heavy")
SEED = 0
WEIGHTS = f"random:{SEED}"
MIN_LOOPS = 2
"""Floor on executed depths, at both lags: at lag 1 no token can leave after its first loop, and
the same depths are replayed at lag 0, so that the two differ in nothing but the waiting."""

OURO_1_4B: dict[str, Any] = {
    "model_type": "ouro",
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "vocab_size": 49152,
    "max_position_embeddings": 65536,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "total_ut_steps": 4,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
HUGINN_3_5B: dict[str, Any] = {
    "model_type": "huginn_raven",
    "injection_type": "linear",
    "norm_eps": 1e-6,
    "n_embd": 5280,
    "n_heads": 55,
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
    "torch_dtype": "bfloat16",
}
TINY_LOOPS = 4
TINY_OURO = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 512,
}
TINY_HUGINN = {
    "n_embd": 64,
    "n_heads": 4,
    "vocab_size": 256,
    "padding_multiple": 1,
    "intermediate_size": 128,
}


@dataclass(frozen=True)
class Shape:
    """A published shape, what makes it tiny, the rule it runs live and its full depth.

    ``widest`` is the width up to which its stage curves reach. Tiny, it has ``TINY_LOOPS``.
    """

    name: str
    config: dict[str, Any]
    tiny: dict[str, Any]
    rule: str
    max_loops: int
    widest: int

    def loops(self, check: Check) -> int:
        """Full depth, R."""
        return TINY_LOOPS if check.tiny else self.max_loops

    def write(self, check: Check) -> dict[str, Any]:
        """Write its directory, a configuration alone, and answer with that."""
        config = self.config | (self.tiny if check.tiny else {})
        directory = check.folder / self.name
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps(config))
        return config


OURO = Shape("ouro-1.4b", OURO_1_4B, TINY_OURO, "cdf@0.5", 4, 256)
HUGINN = Shape("huginn-3.5b", HUGINN_3_5B, TINY_HUGINN, "latent-diff@0.1", 16, 64)


@dataclass(frozen=True)
class Size:
    """How much work a timed run has. Requests wait for a place during more than half of it."""

    residents: int
    requests: int
    prompt: int
    output: int

    @staticmethod
    def of(check: Check, width: int) -> Size:
        """The work at a width; tiny, a few residents and tokens stand for it."""
        if check.tiny:
            width = {8: 2, 64: 3}.get(width, 4)
            return Size(width, 2 * width + 1, 6, 5)
        return Size(width, max(24, 5 * width // 2), 32, 49)


def timed_dtype(check: Check) -> str:
    """bfloat16; tiny, float32: many CPUs take long to find their floors in bfloat16."""
    return "float32" if check.tiny else "bfloat16"


def set_up(check: Check, shape: Shape, size: Size, lag: int) -> dict[str, Any]:
    """Write a shape and a trace of drawn depths, and answer with the keys that replay it."""
    vocabulary, loops = int(shape.write(check)["vocab_size"]), shape.loops(check)
    trace = f"{shape.name}-{size.residents}-lag-{lag}.json"
    write_trace(check.folder / trace, shape.rule, loops, vocabulary, size, lag)
    return {
        "model": shape.name,
        "weights": WEIGHTS,
        "dtype": timed_dtype(check),
        "work": "equal",
        "exit.rule": f"trace:{trace}",
        "exit.max_loops": loops,
        "workload.source": "random",
        "workload.seed": SEED,
        "workload.requests": size.requests,
        "workload.max_new_tokens": size.output,
        "engine.max_residents": size.residents,
        "engine.prefill_tokens": 4096,
        **check.proven_keys(),
    }


def write_trace(path: Path, rule: str, loops: int, vocabulary: int, size: Size, lag: int) -> None:
    """A trace of random tokens at drawn depths; the live rule is paid for as it is replayed.

    At lag 1 these are the depths of a gate that is always right one loop ahead: nothing is wasted.
    """
    draw = random.Random(SEED)
    recorded = [
        GeneratedRequest(
            index=index,
            prompt_tokens=size.prompt,
            tokens=[draw.randrange(vocabulary) for _ in range(size.output)],
            depths=list(depths_of(DEPTHS, str(index), size.output, loops, SEED, MIN_LOOPS)),
            logprobs=[None] * size.output,
            text=None,
            finish_reason="length",
            error=None,
        )
        for index in range(size.requests)
    ]
    document = GenerateDocument(
        model=f"synthetic depths ({DEPTHS}, seed {SEED})",
        config={
            "exit": rule,
            "R": loops,
            "min_loops": MIN_LOOPS,
            "exit_lag": lag,
            "weights": WEIGHTS,
        },
        requests=recorded,
    )
    path.write_text(to_json(document))

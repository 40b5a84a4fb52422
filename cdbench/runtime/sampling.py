"""Choosing tokens: greedy, forced, or drawn from a stream that no schedule can disturb.

A draw is a pure function of (seed, request, position), so that batching, order and preemption leave
every request's text as it is. Logprobs are those of the raw model, before temperature and cuts.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cdbench.models.layers import at_least_float32
from cdbench.runtime.core import FloatArray, IntArray

UintArray = npt.NDArray[np.uint64]


def stream_key(request_id: str, seed: int) -> int:
    """The 64-bit key of one request's random stream."""
    digest = hashlib.blake2b(f"{seed}\0{request_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def uniform(keys: UintArray, positions: IntArray) -> FloatArray:
    """Uniform numbers in [0, 1), one per (key, position): SplitMix64 as a counter generator."""
    numbers: FloatArray = (_mixed(keys, positions) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def _mixed(keys: UintArray, positions: IntArray) -> UintArray:
    with np.errstate(over="ignore"):
        x = keys + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: UintArray = x ^ (x >> np.uint64(31))
    return mixed


def state_keys(keys: UintArray, positions: IntArray) -> IntArray:
    """One int64 key per (stream, position) for a random initial state, apart from the draws'."""
    streams = keys ^ np.uint64(0xA5A5A5A5A5A5A5A5)
    return _mixed(streams, positions).view(np.int64)


def draw(
    logits_TV: Tensor,
    temperature_T: Tensor,
    top_k_T: Tensor,
    top_p_T: Tensor,
    uniform_T: Tensor,
) -> Tensor:
    """One token per row ``[T]`` by inverse CDF over the rows' cut distributions, in float64.

    ``top_k`` keeps the k likeliest tokens (0: all); of what it keeps, ``top_p`` keeps the smallest
    set of likeliest tokens that reaches this share. Temperature must be above 0. Ties keep
    vocabulary order, so that a draw is reproducible.
    """
    logits, order = logits_TV.double().sort(dim=-1, descending=True, stable=True)
    # From the best logit down, so that a tiny temperature gives probability 0 and not NaN.
    probs = ((logits - logits[:, :1]) / temperature_T.double()[:, None]).softmax(-1)
    rank = torch.arange(probs.shape[-1], device=probs.device)
    limit = torch.where(top_k_T > 0, top_k_T, probs.shape[-1])
    probs = probs * (rank < limit[:, None])
    reached = probs.cumsum(-1)
    share = top_p_T.double()[:, None] * reached[:, -1:]
    kept = (rank == 0) | ((probs > 0) & (reached - probs < share))
    mass = (probs * kept).cumsum(-1)
    target = uniform_T.double()[:, None] * mass[:, -1:]
    chosen = (mass <= target).sum(-1, keepdim=True)
    last_kept = kept.sum(-1, keepdim=True) - 1
    return order.gather(-1, torch.minimum(chosen, last_kept))[:, 0]


def logprobs_of(logits_TV: Tensor, tokens_T: Tensor) -> Tensor:
    """log p(token) per row ``[T]`` under the raw model, in float32 or better."""
    logits = at_least_float32(logits_TV)
    picked = logits.gather(-1, tokens_T[:, None])[:, 0]
    return picked - logits.logsumexp(-1)

"""Choosing tokens: greedy, forced, or drawn from a stream that no schedule can disturb.

A draw is a pure function of (seed, request, position), so that batching, order and preemption leave
every request's text as it is. Logprobs are those of the raw model, before temperature and cuts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cdbench.models.layers import at_least_float32
from cdbench.runtime.core import FloatArray, IntArray
from cdbench.runtime.vocabulary import log_total, mass

UintArray = npt.NDArray[np.uint64]

FIRST_RANKS = 256
"""Likeliest tokens that a draw from a large vocabulary looks at first."""
MOST_CELLS = 2**19
"""Logits that are sorted at once."""


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


@dataclass(frozen=True)
class Cuts:
    """How the rows of a launch are drawn, ``[T]`` each; all but ``top_k_T`` in float64."""

    temperature_T: Tensor
    top_k_T: Tensor
    top_p_T: Tensor
    uniform_T: Tensor

    def of(self, rows: Tensor | slice) -> Cuts:
        """Those of some rows."""
        return Cuts(
            self.temperature_T[rows], self.top_k_T[rows], self.top_p_T[rows], self.uniform_T[rows]
        )


def draw(
    logits_TV: Tensor,
    temperature_T: Tensor,
    top_k_T: Tensor,
    top_p_T: Tensor,
    uniform_T: Tensor,
) -> Tensor:
    """One token per row ``[T]`` by inverse CDF over the rows' cut distributions, in float64.

    ``top_k`` keeps the k likeliest tokens (0: all); of what it keeps, ``top_p`` keeps the smallest
    set of likeliest tokens that reaches this share. Temperature must be above 0. The CDF goes from
    the likeliest token down, and ties keep vocabulary order, so that a draw is reproducible.

    Of a large vocabulary only the first ranks are brought in order, which mostly settles a row;
    what they leave open is sorted, a few rows at a time. On an accelerator the host would have to
    wait for which rows those are, so all are sorted there.
    """
    cuts = Cuts(temperature_T.double(), top_k_T, top_p_T.double(), uniform_T.double())
    if logits_TV.shape[-1] <= FIRST_RANKS or logits_TV.device.type != "cpu":
        return _draw_sorted(logits_TV, cuts)
    tokens_T, settled_T = _draw_among(logits_TV, cuts, FIRST_RANKS)
    open_N = (~settled_T).nonzero()[:, 0]
    if open_N.numel():
        tokens_T[open_N] = _draw_sorted(logits_TV.index_select(0, open_N), cuts.of(open_N))
    return tokens_T


def _draw_sorted(logits_TV: Tensor, cuts: Cuts) -> Tensor:
    """By sorting whole rows, as many at once as ``MOST_CELLS`` hold."""
    rows, size = logits_TV.shape
    step = max(1, MOST_CELLS // size)
    parts = [slice(begin, begin + step) for begin in range(0, rows, step)]
    return torch.cat([_draw_rows(logits_TV[part], cuts.of(part)) for part in parts])


def _draw_rows(logits_TV: Tensor, cuts: Cuts) -> Tensor:
    sorted_TV, order = logits_TV.sort(dim=-1, descending=True, stable=True)
    logits = sorted_TV.double()
    # From the best logit down, so that a tiny temperature gives probability 0 and not NaN.
    probs = ((logits - logits[:, :1]) / cuts.temperature_T[:, None]).softmax(-1)
    rank = torch.arange(probs.shape[-1], device=probs.device)
    limit = torch.where(cuts.top_k_T > 0, cuts.top_k_T, probs.shape[-1])
    probs = probs * (rank < limit[:, None])
    reached = probs.cumsum(-1)
    share = cuts.top_p_T[:, None] * reached[:, -1:]
    kept = (rank == 0) | ((probs > 0) & (reached - probs < share))
    kept_mass = (probs * kept).cumsum(-1)
    target = cuts.uniform_T[:, None] * kept_mass[:, -1:]
    chosen = (kept_mass <= target).sum(-1, keepdim=True)
    last_kept = kept.sum(-1, keepdim=True) - 1
    return order.gather(-1, torch.minimum(chosen, last_kept))[:, 0]


def _draw_among(logits_TV: Tensor, cuts: Cuts, ranks: int) -> tuple[Tensor, Tensor]:
    """The same by the first ``ranks`` of each row, fewer than V, and whether that settles it.

    A row is settled where the cuts keep no more than is known of its order, or where nothing is cut
    and the draw falls in there. Weights are not divided by their sum: only shares are compared.
    """
    size = logits_TV.shape[-1]
    values, tokens = _first_ranks(logits_TV, ranks)
    # Others may be equal to the last, and come before it.
    known = values > values[:, -1:]
    best, temperature = values[:, :1].double(), cuts.temperature_T[:, None]
    weights = ((values.double() - best) / temperature).exp() * known
    rank = torch.arange(ranks, device=weights.device)
    limit = torch.where(cuts.top_k_T > 0, cuts.top_k_T.clamp(max=size), size)
    within, uncut = limit <= known.sum(-1), limit == size
    weights = weights * (rank < limit[:, None])
    reached = weights.cumsum(-1)
    total = reached[:, -1]
    if not bool(within.all()):
        total = torch.where(within, total, mass(logits_TV, best, temperature))
    share = cuts.top_p_T * total
    kept = (rank == 0) | ((weights > 0) & (reached - weights < share[:, None]))
    kept_mass = (weights * kept).cumsum(-1)
    ends = known[:, 0] & (within | (uncut & (reached[:, -1] >= share)))
    target = cuts.uniform_T * torch.where(ends, kept_mass[:, -1], total)
    found = (kept_mass <= target[:, None]).sum(-1)
    settled = ends | (uncut & (cuts.top_p_T >= 1) & (found < known.sum(-1)))
    chosen = torch.minimum(found, kept.sum(-1) - 1)
    return tokens.gather(-1, chosen[:, None])[:, 0], settled


def _first_ranks(logits_TV: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """The best logits of each row from the best down, and their tokens; equal ones in order."""
    tokens = logits_TV.topk(ranks, dim=-1, sorted=False).indices.sort(dim=-1).values
    values, order = logits_TV.gather(-1, tokens).sort(dim=-1, descending=True, stable=True)
    return values, tokens.gather(-1, order)


def logprobs_of(logits_TV: Tensor, tokens_T: Tensor) -> Tensor:
    """log p(token) per row ``[T]`` under the raw model, in float32 or better."""
    picked = logits_TV.gather(-1, tokens_T[:, None])[:, 0]
    return at_least_float32(picked) - log_total(logits_TV)

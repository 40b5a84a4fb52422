"""Passes over the vocabulary that copy no more of a readout than some columns of it.

The logits of 64 rows and 65,536 tokens take 8 MiB in bfloat16, and one copy in float32 another 16.
So whatever reads them goes over ``CHUNK_TOKENS`` columns at a time: computed in float32 or better,
with buffers of rows × chunk. Chunks are the same for every launch, so that a row's result depends
on that row alone.

Letters: T rows of a readout, V vocabulary, C columns of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cdbench.models.layers import at_least_float32

CHUNK_TOKENS = 8192
"""Columns of a chunk. In float32 those of 32 rows take 1 MiB, which stays in a core's cache."""
GROUP_TOKENS = 256
"""Columns whose best logit is found at once."""


def chunks(logits_TV: Tensor) -> tuple[Tensor, ...]:
    """Views ``[T, C]`` of all columns in order."""
    return torch.split(logits_TV, CHUNK_TOKENS, dim=-1)


def highest(logits_TV: Tensor) -> Tensor:
    """The best logit of each row ``[T, 1]``, in float32 or better; NaN where there is one."""
    return at_least_float32(logits_TV.amax(-1, keepdim=True))


def below(part_TC: Tensor, best_T1: Tensor) -> Tensor:
    """A chunk's logits less the best of their row, in its precision; the caller's to overwrite."""
    if part_TC.dtype == best_T1.dtype:
        return part_TC - best_T1
    # Mixed types would be subtracted one by one.
    return part_TC.to(best_T1.dtype).sub_(best_T1)


def mass(logits_TV: Tensor, best_T1: Tensor, temperature_T1: Tensor | None = None) -> Tensor:
    """Σ exp((logit − best) / temperature) per row ``[T]``, in the precision of ``best``."""
    total_T = torch.zeros_like(best_T1[:, 0])
    for part_TC in chunks(logits_TV):
        below_TC = below(part_TC, best_T1)
        if temperature_T1 is not None:
            below_TC /= temperature_T1
        total_T += below_TC.exp_().sum(-1)
    return total_T


def log_total(logits_TV: Tensor) -> Tensor:
    """log Σ exp(logit) per row ``[T]``, in float32 or better."""
    best_T1 = highest(logits_TV)
    return mass(logits_TV, best_T1).log_() + best_T1[:, 0]


def log_probabilities(logits_TV: Tensor) -> Iterator[Tensor]:
    """The log-softmax of each row by chunks ``[T, C]``, in float32 or better.

    Each is the caller's to overwrite.
    """
    best_T1 = highest(logits_TV)
    log_mass_T1 = mass(logits_TV, best_T1).log_()[:, None]
    for part_TC in chunks(logits_TV):
        yield below(part_TC, best_T1).sub_(log_mass_T1)


def likeliest(logits_TV: Tensor) -> Tensor:
    """The first of the best columns of each row ``[T]``; of a row with a NaN, that one's.

    On a CPU a maximum is found many numbers at a time and its place one by one: so first the group
    that has it, and then the place in there.
    """
    groups = logits_TV.shape[-1] // GROUP_TOKENS
    if groups < 2 or logits_TV.device.type != "cpu":
        return logits_TV.argmax(-1)
    whole_TV = logits_TV[:, : groups * GROUP_TOKENS]
    best_TN = whole_TV.view(-1, groups, GROUP_TOKENS).amax(-1)
    rest_TV = logits_TV[:, groups * GROUP_TOKENS :]
    if rest_TV.shape[-1]:
        best_TN = torch.cat([best_TN, rest_TV.amax(-1, keepdim=True)], dim=-1)
    begin_T1 = best_TN.argmax(-1, keepdim=True) * GROUP_TOKENS
    # Of the rest, the last column stands again where a whole group would have more.
    columns_TC = begin_T1 + torch.arange(GROUP_TOKENS)
    columns_TC.clamp_(max=logits_TV.shape[-1] - 1)
    place_T1 = logits_TV.gather(-1, columns_TC).argmax(-1, keepdim=True)
    return columns_TC.gather(-1, place_T1)[:, 0]

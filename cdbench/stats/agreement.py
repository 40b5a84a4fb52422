"""How far two modes' greedy texts agree, question by question.

A matrix kernel that rounds otherwise may flip a near-tie, and from there on the texts are others:
positions after the first difference say nothing, so they are not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Agreement:
    """``n`` pairs of texts, ``identical`` of them the same throughout.

    ``token_agreement``: tokens before the first difference / tokens of the longer text, summed over
    pairs. ``first_divergence``: the median position, from 0, of the first difference.
    ``length_ratio``: tokens of the mode / tokens of the baseline. None where undefined.
    """

    n: int
    identical: int
    token_agreement: float | None
    first_divergence: float | None
    length_ratio: float | None


def compare_texts(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Agreement | None:
    """Compare (baseline, mode) token ids of the same questions. None without a pair."""
    if not pairs:
        return None
    shared = [common_prefix(one, other) for one, other in pairs]
    parted = [at for one, other in pairs if (at := parting(one, other)) is not None]
    longest = sum(max(len(one), len(other)) for one, other in pairs)
    base, mode = (sum(len(pair[side]) for pair in pairs) for side in (0, 1))
    return Agreement(
        n=len(pairs),
        identical=len(pairs) - len(parted),
        token_agreement=sum(shared) / longest if longest else None,
        first_divergence=float(median(parted)) if parted else None,
        length_ratio=mode / base if base else None,
    )


def parting(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The place, from 0, of the first token that differs; None where all are the same."""
    at = common_prefix(one, other)
    return None if at == len(one) == len(other) else at


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))

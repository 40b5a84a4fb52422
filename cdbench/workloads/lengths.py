"""Prompt lengths of one's own choosing, on real text: ``workload.prompt_tokens``.

512                     every prompt
128-1024                uniform, both ends included
lognormal:MEDIAN:SIGMA  long-tailed, as prompts of real traffic are
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cdbench.errors import UsageError

FORMS = ("N", "A-B", "lognormal:MEDIAN:SIGMA")
MAX_SIGMA = 5.0
"""At this spread one prompt in a thousand is millions of times as long as the median."""

_WHOLE = r"([0-9]{1,9})"
_UNIFORM = re.compile(rf"{_WHOLE}-{_WHOLE}")
_LOGNORMAL = re.compile(rf"lognormal:{_WHOLE}:([0-9]{{0,9}}\.?[0-9]{{1,9}})")


@dataclass(frozen=True)
class LengthSpec:
    """A distribution of lengths in tokens; ``str()`` gives the text back.

    ``low`` to ``high`` is uniform and one length where they agree. With ``sigma``, the standard
    deviation of the logarithm, ``low`` is the median; its tail has no end, so ``high`` is no bound.
    """

    low: int
    high: int
    sigma: float | None = None

    def __str__(self) -> str:
        if self.sigma is not None:
            return f"lognormal:{self.low}:{self.sigma!r}".removesuffix(".0")
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"

    def draw(self, count: int, seed: int) -> list[int]:
        """So many lengths, at least 1. The first are the same whatever the count."""
        import numpy as np  # the grammar above is read by commands that need no numpy

        from cdbench.workloads.draws import stream

        chosen = stream("workload.prompt_tokens", seed)
        if self.sigma is None:
            return [int(chosen.randint(self.low, self.high + 1)) for _ in range(count)]
        lengths = self.low * np.exp(self.sigma * chosen.standard_normal(count))
        return [max(1, round(length)) for length in lengths]


def parse_lengths(text: str) -> LengthSpec:
    """Read one of ``FORMS``; UsageError for anything else."""
    if re.fullmatch(_WHOLE, text):
        spec = LengthSpec(int(text), int(text))
    elif found := _UNIFORM.fullmatch(text):
        spec = LengthSpec(int(found[1]), int(found[2]))
    elif found := _LOGNORMAL.fullmatch(text):
        spec = LengthSpec(int(found[1]), int(found[1]), float(found[2]))
    else:
        raise UsageError(f"workload.prompt_tokens: {text!r} is unknown; write {', '.join(FORMS)}")
    if not 1 <= spec.low <= spec.high:
        raise UsageError(
            f"workload.prompt_tokens: {text!r} holds no length; use 1 token or more, the smaller "
            "number first"
        )
    if spec.sigma is not None and spec.sigma > MAX_SIGMA:
        raise UsageError(
            f"workload.prompt_tokens: {text!r} has sigma {spec.sigma:g}, which is the standard "
            f"deviation of the logarithm; use 0 to {MAX_SIGMA:g}"
        )
    return spec


def cut_or_repeat(body: Sequence[int], tokens: int, prefix: Sequence[int] = ()) -> tuple[int, ...]:
    """A prompt of exactly so many tokens: the text cut at its end, or repeated and cut.

    ``prefix`` holds the special tokens that stand in front once.
    """
    room = max(0, tokens - len(prefix))
    repeated = [*body] * -(-room // len(body)) if body else []
    return (*prefix, *repeated[:room])[:tokens]

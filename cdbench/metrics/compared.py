"""What a number means, and the figures that need two modes or the model alone.

Their arithmetic is in ``bounds.py``, ``work.py``, ``steady.py``, ``waterfall.py``, ``cost.py`` and
``stats/blocks.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["up", "down", "none"]
"""Which way is better."""


@dataclass(frozen=True)
class Description:
    """What a number means: ``needs`` names the parts of a run it is undefined without."""

    name: str
    unit: str
    direction: Direction
    formula: str
    needs: tuple[str, ...]


COMPARED: dict[str, Description] = {
    description.name: description
    for description in (
        Description(
            "speedup",
            "ratio",
            "up",
            "wall of the other mode / wall of this one, same scope and work; geometric mean over "
            "palindromic blocks, 95 % t interval on logs",
            ("blocks",),
        ),
        Description(
            "flop_bound",
            "ratio",
            "none",
            "(F_p + R·F_c + F_k) / (F_p + q̄·F_c + F_k), decode scope; q̄: requested depth of later "
            "tokens; denominator F_p + q̄·(F_c + F_k) where the rule reads out at every loop",
            ("requests", "costs"),
        ),
        Description(
            "flop_bound_paper",
            "ratio",
            "none",
            "flop_bound with q̄ over all output tokens, first tokens at R",
            ("requests", "costs"),
        ),
        Description(
            "work_bound",
            "ratio",
            "none",
            "total FLOPs of static / of the adaptive mode at requested depths, e2e scope; prompts "
            "at R, first tokens, and attention (4·context·heads·head_dim per layer application and "
            "query) included",
            ("requests", "costs"),
        ),
        Description(
            "time_bound",
            "ratio",
            "none",
            "T*_static / T*_adaptive, decode scope (e2e: plus the same prefill time on both "
            "sides); T*: t̂_prelude + requested depth·t̂_core + t̂_coda over later tokens, t̂: min "
            "over b ≤ width of t(b, context)/b",
            ("requests", "stages"),
        ),
        Description(
            "realised_flop",
            "fraction",
            "up",
            "decode-scope speed-up over static / flop_bound; attention lies outside the bound, so "
            "it can pass 1",
            ("blocks", "costs"),
        ),
        Description(
            "realised_work",
            "fraction",
            "up",
            "e2e speed-up over static / work_bound; static's own losses lie outside the bound, so "
            "it can pass 1",
            ("blocks", "costs"),
        ),
        Description(
            "realised_time",
            "fraction",
            "up",
            "speed-up over static / time_bound of the same scope; in the steady window: ratio of "
            "later-token rates / decode time_bound of those tokens; above 1 beyond its interval it "
            "is a measuring error",
            ("blocks", "stages"),
        ),
        Description(
            "waterfall",
            "ratio",
            "up",
            "S_i / S_{i−1} with S_i = T_static(i) / T_mode(i), both sides refined by one more "
            "effect a row; the product is the measured speed-up",
            ("blocks", "launches", "stages"),
        ),
        Description(
            "break_even_price",
            "currency",
            "none",
            "price per hour / e2e speed-up: hourly price at which the other mode would cost what "
            "this one costs; as a ratio of prices it is the speed-up itself",
            ("blocks", "price_per_hour"),
        ),
        Description(
            "cost_ratio",
            "ratio",
            "none",
            "(F_p + F_k) / F_c: boundary stages against one loop",
            ("costs",),
        ),
    )
}
"""Figures of two modes, or of the model alone, by name."""

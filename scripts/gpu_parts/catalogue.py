"""The parts by the worth of what they tell, and the time that each may take."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it imports torch, and a list of names must not
    from scripts.gpu_parts.check import Check

PartFunction = Callable[["Check", dict[str, Any]], None]
"""Fills a mapping as it goes, so that a part cut short keeps what it has."""


@dataclass(frozen=True)
class Part:
    """One part. It starts only while ``estimate_s`` is left, and is cut after ``limit_s``.

    Estimates are for a data-centre GPU, and guesses until one has run them. ``function`` is where
    it is, as ``module:function`` of this package.
    """

    name: str
    function: str
    estimate_s: float
    limit_s: float
    about: str

    def load(self) -> PartFunction:
        """The function, its module imported."""
        module, _, name = self.function.partition(":")
        function: PartFunction = getattr(
            importlib.import_module(f"scripts.gpu_parts.{module}"), name
        )
        return function


PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        Part(
            "fixtures",
            "exactness:fixtures",
            12,
            45,
            "official Ouro and Huginn outputs in float32 without TF32, at ease and short of memory",
        ),
        Part(
            "attention",
            "switches:attention",
            15,
            60,
            "the looped demos with the Triton kernel and sdpa: the same tokens in float64",
        ),
        Part(
            "graphs",
            "switches:graphs",
            15,
            75,
            "the looped demos with engine.graphs on and off: the same tokens in float64",
        ),
        Part("ouro_stages", "stages:ouro", 30, 50, "stage curves and floors, Ouro-1.4B shape"),
        Part("ouro_64", "timings:ouro_64", 35, 60, "Ouro-1.4B shape, width 64: three modes"),
        Part("huginn_stages", "stages:huginn", 32, 55, "stage curves and floors, Huginn shape"),
        Part("huginn_64", "timings:huginn_64", 40, 65, "Huginn shape, width 64: three modes"),
        Part("ouro_64_lag_1", "timings:ouro_64_lag_1", 20, 35, "the same depths at lag 1"),
        Part("huginn_64_lag_1", "timings:huginn_64_lag_1", 25, 40, "the same depths at lag 1"),
        Part(
            "cli",
            "command_line:run",
            20,
            45,
            "`cdbench run --model DIR` on a saved random checkpoint with a tokenizer",
        ),
        Part("ouro_256", "timings:ouro_256", 25, 45, "Ouro-1.4B shape, width 256: three modes"),
        Part("ouro_8", "timings:ouro_8", 15, 30, "Ouro-1.4B shape, width 8: three modes"),
        Part(
            "changed",
            "exactness:changed",
            15,
            40,
            "share of demo requests whose tokens depend on the batch, in bfloat16 and float32",
        ),
        Part(
            "exact",
            "exactness:exact",
            15,
            40,
            "the looped demos in float64 and short of memory, against one request at a time",
        ),
        Part(
            "ouro_64_plain",
            "timings:ouro_64_plain",
            20,
            35,
            "ouro_64 without graphs and on sdpa: what both are worth",
        ),
    )
}


def listing() -> str:
    """The parts with their times, one a line, for ``--list``."""
    wide = max(map(len, PARTS))
    lines = [f"{'part':<{wide}}  about  at most"]
    lines += [
        f"{p.name:<{wide}} {p.estimate_s:>5.0f} s {p.limit_s:>6.0f} s  {p.about}"
        for p in PARTS.values()
    ]
    total = sum(part.estimate_s for part in PARTS.values())
    return "\n".join([*lines, f"{'all':<{wide}} {total:>5.0f} s"])

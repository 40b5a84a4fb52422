"""Styles of tables, by name: each a function from what was measured to tables.

A style is a file here with one function ``tables``, and a line in ``STYLES``. It raises UsageError,
naming what is missing and the command that makes it, where the runs have no data for it.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdbench.errors import UsageError
from cdbench.resources import nearest_hint

if TYPE_CHECKING:
    from cdbench.render.styles.points import Measured
    from cdbench.render.table import Table


@dataclass(frozen=True)
class Style:
    """Where a style lives, and the line that lists it."""

    module: str
    summary: str


STYLES: dict[str, Style] = {
    "speedup": Style("speedup", "speed-ups over every baseline, with bounds and what was realised"),
    "exit-sweep": Style("exit_sweep", "depth, accuracy and speed-up by exit threshold"),
    "width-sweep": Style("width_sweep", "speed-up, realised share and time per loop by width"),
    "serving": Style("serving", "latency, goodput and what is kept up with, by arrival rate"),
    "accuracy-by-depth": Style(
        "accuracy_by_depth", "answers by fixed depth and under early exits, task by task"
    ),
    "waterfall": Style("waterfall", "from the loops saved to the measured speed-up"),
    "ablation": Style("ablation", "main figures of runs that differ in a few keys"),
}


def check_style(name: str) -> None:
    """Raise UsageError, with the nearest name, where there is no such style."""
    if name not in STYLES:
        raise UsageError(f"--style {name}: no such style; {nearest_hint(name, tuple(STYLES))}")


def make_tables(name: str, measured: Measured) -> list[Table]:
    """The tables of a style. UsageError where there is no such style, or no data for it."""
    check_style(name)
    module = importlib.import_module(f"cdbench.render.styles.{STYLES[name].module}")
    found: list[Table] = module.tables(measured)
    return found

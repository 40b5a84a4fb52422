"""Speed-ups block by block: one dot a block, the estimate and its interval over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cdbench.render.colours import INK
from cdbench.render.formats import ratio
from cdbench.render.report.parts import Plot
from cdbench.render.report.plots.style import SMALL_POINTS, ends, frame, label
from cdbench.render.report.source import Styles
from cdbench.render.run_report import level_words, timed_adaptive
from cdbench.schema import Comparison, Result, Scope

SCOPE_WORDS: dict[Scope, str] = {"e2e": "end to end", "decode": "decode"}
ROW_INCHES = 0.42
HEIGHT = 0.3
"""Dots of a pair stand between this far above and below its line, in the order of the blocks."""


def block_ratios(result: Result, scope: Scope, styles: Styles) -> Plot | None:
    """Every timed adaptive mode over every other, in one scope; None without a ratio."""
    adaptive = timed_adaptive(result)
    found = [
        c
        for c in result.comparisons
        if c.scope == scope and c.mode in adaptive and c.log_ratios and c.speedup.estimate
    ]
    if not found:
        return None
    blocks = max(len(c.log_ratios) for c in found)
    enough = any(ends(c.speedup) for c in found)
    interval = f"its {level_words(result)} interval" if enough else "too few blocks for an interval"
    return Plot(
        name=f"block-ratios-{scope}",
        title=f"Speed-up in each block, {SCOPE_WORDS[scope]}",
        says="; ".join(_words(c) for c in found) + ".",
        draw=lambda: _draw(found, styles),
        data={
            f"{c.mode} over {c.over}": {
                "ratios": [math.exp(x) for x in c.log_ratios],
                **c.speedup.model_dump(mode="json"),
            }
            for c in found
        },
        notes=(
            f"One dot for each of {blocks} blocks, the first on top; line: geometric mean, band: "
            f"{interval}. Right of 1 the mode is faster.",
        ),
    )


def _words(found: Comparison) -> str:
    each = [math.exp(x) for x in found.log_ratios]
    figure = ratio(found.speedup.estimate, found.speedup.low, found.speedup.high)
    return (
        f"{label(found.mode)} over {label(found.over)} {figure}, blocks from "
        f"{ratio(min(each))} to {ratio(max(each))}"
    )


def _draw(found: Sequence[Comparison], styles: Styles) -> Any:
    figure, ((axes,),) = frame(ROW_INCHES * len(found) + 0.65)
    for place, comparison in enumerate(found):
        _pair(axes, place, comparison, styles)
    axes.axvline(1, color=INK.light, linewidth=0.8)
    axes.set_yticks(
        range(len(found)), [f"{label(c.mode, 14)} over\n{label(c.over, 22)}" for c in found]
    )
    axes.set_ylim(len(found) - 0.5, -0.5)
    left, right = axes.get_xlim()
    axes.set_xlim(left, right + 0.16 * (right - left))
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:.4g}×")
    axes.set_xlabel("speed-up (→ better)")
    return figure


def _pair(axes: Any, place: int, found: Comparison, styles: Styles) -> None:
    style = styles[found.mode]
    colour, speedup = style.tone.light, found.speedup
    each = [math.exp(x) for x in found.log_ratios]
    if sure := ends(speedup):
        axes.barh(
            place,
            sure[1] - sure[0],
            left=sure[0],
            height=2 * HEIGHT + 0.14,
            color=colour,
            alpha=0.22,
            linewidth=0,
        )
    around = (place - HEIGHT - 0.07, place + HEIGHT + 0.07)
    axes.vlines(speedup.estimate, *around, color=colour, linewidth=1.6)
    heights = place + np.linspace(-HEIGHT, HEIGHT, len(each)) if len(each) > 1 else [place]
    axes.plot(
        each,
        heights,
        marker=style.marker,
        linestyle="none",
        markersize=3.4,
        color=colour,
        alpha=0.9,
    )
    axes.annotate(
        ratio(speedup.estimate),
        (max(*each, speedup.high or 0.0, speedup.estimate or 0.0), place),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=SMALL_POINTS,
        fontweight="bold",
    )

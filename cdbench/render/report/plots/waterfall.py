"""The waterfall as a picture: from loops saved, effect by effect, to the measured speed-up."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cdbench.render.colours import INK, MUTED, PAPER, ModeStyle
from cdbench.render.formats import ratio
from cdbench.render.report.parts import Plot
from cdbench.render.report.plots.files import file_stem
from cdbench.render.report.plots.style import SMALL_POINTS, ends, frame, label
from cdbench.render.waterfall import EFFECT_WORDS
from cdbench.schema import IntervalRecord, Waterfall

MEASURED = {"host_time": "decode", "prefill_and_first_tokens": "end to end"}
"""Effects that end at a speed-up which was measured, and its scope."""
ROW_INCHES = 0.3
LINE_CHARACTERS = 24
TICKS = (0.1, 0.2, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 20, 32, 64)


@dataclass(frozen=True)
class Step:
    """One effect, from the speed-up before it to the one after it."""

    effect: str
    before: float
    after: IntervalRecord
    factor: float

    @property
    def to(self) -> float:
        return self.after.estimate or 1.0


def steps(waterfall: Waterfall) -> list[Step]:
    """The rows one after another, the first from 1; empty where one is undefined."""
    found, before = [], 1.0
    for row in waterfall.rows:
        if not row.speedup.estimate or not row.factor.estimate:
            return []
        found.append(Step(row.effect, before, row.speedup, row.factor.estimate))
        before = row.speedup.estimate
    return found


def waterfall_plot(waterfall: Waterfall, mode: str, style: ModeStyle) -> Plot | None:
    """The picture of one mode; None where it has no waterfall."""
    found = steps(waterfall)
    if not found:
        return None
    words = (
        f"{EFFECT_WORDS.get(s.effect, s.effect)} {ratio(s.factor)}, so far {ratio(s.to)}"
        for s in found
    )
    return Plot(
        name=f"waterfall-{file_stem(mode)}",
        title=f"Waterfall: {label(mode)} over {label(waterfall.over)}",
        says=f"Factor of each effect: {'; '.join(words)}.",
        draw=lambda: _draw(found, waterfall.over, style),
        data={
            "rows": [
                {"effect": s.effect, "factor": s.factor, "speedup": s.after.model_dump(mode="json")}
                for s in found
            ]
        },
        notes=(
            "Filled: the effect adds; hatched: it takes away. The axis is logarithmic, so that "
            "equal factors are equally long. Diamonds are measured speed-ups, with their "
            "intervals; circles end a step that was computed.",
        ),
    )


def _draw(found: Sequence[Step], over: str, style: ModeStyle) -> Any:
    figure, ((axes,),) = frame(ROW_INCHES * len(found) + 0.75)
    for place, step in enumerate(found):
        _step(axes, place, step, style)
        if place + 1 < len(found):
            axes.plot([step.to, step.to], [place, place + 1], color=MUTED.light, linewidth=0.6)
    reached = [1.0, *(s.to for s in found), *(s.after.high or s.to for s in found)]
    low, high = min(reached), max(reached)
    axes.set_xscale("log")
    axes.set_xlim(min(low * 0.94, 0.9), high * (high / low) ** 0.16 * 1.02)
    ticks = [t for t in TICKS if axes.get_xlim()[0] <= t <= axes.get_xlim()[1]]
    axes.set_xticks(_thinned(ticks), [f"{t:g}×" for t in _thinned(ticks)])
    axes.set_xticks([], minor=True)
    axes.axvline(1, color=INK.light, linewidth=0.8)
    axes.set_yticks(range(len(found)), [_name(step) for step in found])
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"speed-up over {label(over)} so far (→ better)")
    return figure


def _step(axes: Any, place: int, step: Step, style: ModeStyle) -> None:
    gains = step.factor >= 1
    colour = style.tone.light
    axes.barh(
        place,
        step.to - step.before,
        left=step.before,
        height=0.62,
        color=colour if gains else "none",
        alpha=0.85 if gains else 1,
        edgecolor=colour if gains else MUTED.light,
        hatch="" if gains else "/////",
    )
    measured = step.effect in MEASURED
    if (sure := ends(step.after)) and measured:
        axes.hlines(place, *sure, color=INK.light, linewidth=1.4)
    axes.plot(
        [step.to],
        [place],
        marker="D" if measured else "o",
        markersize=5 if measured else 3,
        markerfacecolor=INK.light if measured else PAPER.light,
        markeredgecolor=INK.light,
        markeredgewidth=0.7,
    )
    text = f"{step.to:.2f}×" if measured or place == 0 else f"×{step.factor:.3f}"
    right = max(step.before, step.to, (step.after.high or 0.0) if measured else 0.0)
    axes.annotate(
        text,
        (right, place),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=SMALL_POINTS,
        fontweight="bold" if measured else "normal",
    )


def _name(step: Step) -> str:
    words = EFFECT_WORDS.get(step.effect, step.effect)
    scope = MEASURED.get(step.effect)
    whole = f"{words.removesuffix(' (e2e)')} = {scope}" if scope else words
    return textwrap.fill(whole, LINE_CHARACTERS)


def _thinned(ticks: Sequence[float]) -> list[float]:
    """At most seven, 1 among them."""
    stride = -(-len(ticks) // 7)
    kept = [tick for place, tick in enumerate(ticks) if place % max(1, stride) == 0]
    return sorted({*kept, 1.0}) if ticks else []

"""Throughput against latency: what a mode gives, and what a user waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cdbench.render.formats import Kind, format_value
from cdbench.render.report.parts import Plot
from cdbench.render.report.plots.style import ends, frame, label, legend_below, look
from cdbench.render.report.source import Styles
from cdbench.schema import IntervalRecord, ModeResult, Result

MILLISECOND = 1e3


@dataclass(frozen=True)
class Operating:
    """One mode: tokens a second, and mean seconds per later token."""

    mode: str
    rate: IntervalRecord
    wait: IntervalRecord

    @property
    def words(self) -> str:
        """Both figures with their intervals."""
        rate, wait = self.rate, self.wait
        tokens = format_value(rate.estimate, Kind.NUMBER, rate.low, rate.high).line
        time = format_value(wait.estimate, Kind.SECONDS, wait.low, wait.high).line
        return f"{label(self.mode)} {tokens} tokens/s at {time} per later token"


def operating_points(result: Result) -> list[Operating]:
    """The timed modes that have both figures."""
    found = []
    for name, mode in result.modes.items():
        rate, wait = _figure(mode, "output_throughput"), _figure(mode, "tpot")
        if rate is not None and wait is not None:
            found.append(Operating(name, rate, wait))
    return found


def throughput_latency(result: Result, styles: Styles) -> Plot | None:
    """The picture; None where no mode was timed."""
    found = operating_points(result)
    if not found:
        return None
    return Plot(
        name="throughput-against-latency",
        title="Throughput against time per token",
        says="; ".join(point.words for point in found) + ".",
        draw=lambda: _draw(found, styles),
        data={
            point.mode: {
                "output_throughput": point.rate.model_dump(mode="json"),
                "tpot_s": point.wait.model_dump(mode="json"),
            }
            for point in found
        },
        notes=(
            "Both are means over the timed runs, bars their intervals over blocks. Up and to the "
            "left is better.",
        ),
    )


def _figure(mode: ModeResult, name: str) -> IntervalRecord | None:
    """A metric with its interval, where blocks differ in it."""
    value = mode.metrics.get(name)
    if value is None:
        return None
    return mode.intervals.get(name) or IntervalRecord(estimate=value, n=1)


def _draw(found: Sequence[Operating], styles: Styles) -> Any:
    figure, ((axes,),) = frame(3.1)
    handles = []
    for point in found:
        style = styles[point.mode]
        colour = style.tone.light
        x, y = MILLISECOND * (point.wait.estimate or 0.0), point.rate.estimate or 0.0
        if rates := ends(point.rate):
            axes.vlines(x, *rates, color=colour, linewidth=1.1)
        if waits := ends(point.wait):
            low, high = (MILLISECOND * end for end in waits)
            axes.hlines(y, low, high, color=colour, linewidth=1.1)
        (mark,) = axes.plot([x], [y], **(look(style, line=False) | {"label": label(point.mode)}))
        handles.append(mark)
    # From zero, with room at the other end: points that differ little lie far out together.
    axes.set_xlim(0, 1.06 * axes.get_xlim()[1])
    axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
    axes.set_xlabel("time per later token (ms, ← better)")
    axes.set_ylabel("output tokens/s (↑ better)")
    legend_below(figure, handles)
    return figure

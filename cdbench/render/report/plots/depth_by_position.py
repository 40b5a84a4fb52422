"""Where in a text tokens exit early: depths against the place of the token in its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdbench.metrics.depth import depth_histogram_by_position
from cdbench.metrics.trace import RequestTrace
from cdbench.render.colours import INK, ModeStyle
from cdbench.render.formats import percent
from cdbench.render.report.parts import Plot
from cdbench.render.report.plots.files import file_stem
from cdbench.render.report.plots.style import SMALL_POINTS, frame, label

LABELLED_DEPTHS = 8
DARKEST = 0.55
"""Share 1 is drawn so strongly, and ink on it can still be read."""


@dataclass(frozen=True)
class PositionBin:
    """Later tokens ``first`` to ``last`` of every output, from 1; ``counts`` by depth from 1."""

    first: int
    last: int
    counts: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean depth in loops."""
        return sum(d * n for d, n in enumerate(self.counts, start=1)) / self.tokens

    @property
    def name(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


def position_bins(requests: Sequence[RequestTrace], max_loops: int) -> list[PositionBin]:
    """Later token 1, 2, 3-4, 5-8, …: each bin as long as all before it, since few outputs are long.

    The last bin ends where the longest output does.
    """
    places = np.array(depth_histogram_by_position(requests, max_loops)).reshape(-1, max_loops)
    bins, first = [], 1
    while first <= len(places):
        last = min(len(places), max(first, 2 * (first - 1)))
        counts = places[first - 1 : last].sum(axis=0)
        bins.append(PositionBin(first, last, tuple(int(n) for n in counts)))
        first = last + 1
    return bins


def depth_by_position(
    requests: Sequence[RequestTrace], max_loops: int, mode: str, style: ModeStyle
) -> Plot | None:
    """The histogram of every bin as a column of shades; None without a later token."""
    bins = position_bins(requests, max_loops)
    if not bins:
        return None
    means = "; ".join(f"{b.name}: {b.mean:.2f} loops over {b.tokens:,} tokens" for b in bins)
    first, last = bins[0], bins[-1]
    return Plot(
        name=f"exit-depths-by-position-{file_stem(mode)}",
        title=f"Exit depths of {label(mode)}, by position in the output",
        says=(
            f"Mean depth by later token: {means}. At the first of them "
            f"{percent(first.counts[0] / first.tokens)} of tokens exit at depth 1, in the last "
            f"bin {percent(last.counts[0] / last.tokens)}."
        ),
        draw=lambda: _draw(bins, max_loops, style),
        data={b.name: list(b.counts) for b in bins},
        notes=(
            "A column adds up to 100%. Line: mean depth. Columns double in length, as few outputs "
            "are long.",
        ),
    )


def _draw(bins: Sequence[PositionBin], max_loops: int, style: ModeStyle) -> Any:
    few = max_loops <= LABELLED_DEPTHS
    figure, ((axes,),) = frame(1.1 + 0.28 * max_loops if few else 3.2)
    for x, found in enumerate(bins):
        shares = [count / found.tokens for count in found.counts]
        for depth, share in enumerate(shares, start=1):
            if share > 0:
                axes.bar(
                    x,
                    1,
                    bottom=depth - 0.5,
                    width=0.94,
                    color=style.tone.light,
                    alpha=max(0.04, DARKEST * share),
                    linewidth=0,
                )
            if few and share >= 0.005:
                axes.annotate(
                    f"{100 * share:.0f}",
                    (x, depth),
                    ha="center",
                    va="center",
                    fontsize=SMALL_POINTS - 0.5,
                )
    means = [found.mean for found in bins]
    axes.plot(range(len(bins)), means, color=INK.light, linewidth=1, marker="_", markersize=11)
    axes.set_xticks(range(len(bins)), [found.name for found in bins])
    axes.set_ylim(0.5, max_loops + 0.5)
    axes.set_yticks(range(1, max_loops + 1) if few else range(4, max_loops + 1, 4))
    axes.grid(visible=False)
    axes.set_xlabel("later token (position in the output)")
    axes.set_ylabel("depth (loops); % of column")
    return figure


def mean_by_position(means: Sequence[float], mode: str, style: ModeStyle) -> Plot | None:
    """What is left of it without raw records: mean depths alone."""
    if not means:
        return None
    places = list(range(1, len(means) + 1))
    return Plot(
        name=f"exit-depths-by-position-{file_stem(mode)}",
        title=f"Mean depth of {label(mode)}, by position in the output",
        says=(
            f"Mean depth of later token 1: {means[0]:.2f} loops, of token {len(means)}: "
            f"{means[-1]:.2f}; least {min(means):.2f}, most {max(means):.2f}."
        ),
        draw=lambda: _draw_means(places, means, style),
        data={"position": places, "mean_depth": list(means)},
        notes=("Few outputs are long, so that the right end is of few tokens.",),
    )


def _draw_means(places: Sequence[int], means: Sequence[float], style: ModeStyle) -> Any:
    figure, ((axes,),) = frame(2.2)
    axes.plot(places, means, color=style.tone.light, linewidth=style.width)
    axes.set_ylim(0, None)
    axes.set_xlabel("later token (position in the output)")
    axes.set_ylabel("mean depth (loops)")
    return figure

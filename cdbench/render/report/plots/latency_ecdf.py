"""What share of requests waited at most so long: distributions of latency, mode by mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cdbench.bench.repeats import StoredRepeat, complete_blocks
from cdbench.metrics import latency
from cdbench.metrics.trace import Arrivals
from cdbench.render.formats import seconds
from cdbench.render.report.parts import Plot
from cdbench.render.report.plots.style import (
    BAND_ALPHA,
    frame,
    label,
    legend_below,
    look,
)
from cdbench.render.report.source import Styles

QUANTILES = 201
"""Points of a line, at even shares from 0 to 1: a run may have thousands of requests."""
LATENCIES = {
    "ttft": (latency.ttft, "time to first token", "from arrival to first token"),
    "tpot": (latency.tpot, "time per later token", "mean over a request's later tokens"),
    "e2e": (latency.e2e, "end-to-end latency", "from arrival to last token"),
}
SHARES: npt.NDArray[np.float64] = np.linspace(0.0, 1.0, QUANTILES)


@dataclass(frozen=True)
class Distribution:
    """Quantiles of one latency at ``SHARES``, seconds: mean, least and most over the timed runs."""

    mode: str
    requests: int
    runs: int
    mean_s: npt.NDArray[np.float64]
    least_s: npt.NDArray[np.float64]
    most_s: npt.NDArray[np.float64]

    @property
    def words(self) -> str:
        """Median and range of the line."""
        middle, last = float(self.mean_s[QUANTILES // 2]), float(self.mean_s[-1])
        return (
            f"{label(self.mode)}: half of {self.requests:,} requests within {seconds(middle)}, all "
            f"within {seconds(last)}"
        )


def distributions(repeats: Sequence[StoredRepeat], name: str, styles: Styles) -> list[Distribution]:
    """One latency of every mode, over the runs of complete blocks (all, where none is)."""
    runs = complete_blocks(repeats) or list(repeats)
    sample = LATENCIES[name][0]
    found = []
    for mode in styles:
        samples = [sample(run.trace).values for run in runs if run.trace.mode == mode]
        known = [np.quantile(np.asarray(values), SHARES) for values in samples if values]
        if known:
            each = np.stack(known)
            most = max(len(values) for values in samples)
            found.append(
                Distribution(
                    mode, most, len(known), each.mean(axis=0), each.min(axis=0), each.max(axis=0)
                )
            )
    return found


def latency_ecdfs(repeats: Sequence[StoredRepeat], styles: Styles) -> list[Plot]:
    """A picture for each latency that the runs have."""
    plots = []
    for name, (_, words, meaning) in LATENCIES.items():
        found = distributions(repeats, name, styles)
        if found:
            plots.append(_plot(name, words, meaning, found, styles, _queueing(repeats, name)))
    return plots


def _queueing(repeats: Sequence[StoredRepeat], name: str) -> tuple[str, ...]:
    at_once = any(run.trace.arrivals == Arrivals.ALL_AT_ONCE for run in repeats)
    if name != "e2e" or not at_once:
        return ()
    return ("All requests arrive at once, so most of it is queueing.",)


def _plot(
    name: str,
    words: str,
    meaning: str,
    found: Sequence[Distribution],
    styles: Styles,
    notes: tuple[str, ...],
) -> Plot:
    runs = max(one.runs for one in found)
    spread = f"mean of {runs} timed runs at each share, band from the least to the most of them"
    return Plot(
        name=f"latency-{name}",
        title=f"{words[0].upper()}{words[1:]}: share of requests within it",
        says="; ".join(one.words for one in found) + ".",
        draw=lambda: _draw(found, words, styles),
        data={
            one.mode: {
                "shares": [round(float(share), 3) for share in SHARES],
                "seconds": [float(f"{value:.5g}") for value in one.mean_s],
            }
            for one in found
        },
        notes=(
            f"{meaning[0].upper()}{meaning[1:]}. Line: {spread}; {QUANTILES} points at even "
            "shares. Further left is better.",
            *notes,
        ),
    )


def _draw(found: Sequence[Distribution], words: str, styles: Styles) -> Any:
    figure, ((axes,),) = frame(3.0)
    most_s = max(float(one.most_s[-1]) for one in found)
    scale, unit = (1.0, "s") if most_s >= 1 else (1e3, "ms")
    handles = []
    for place, one in enumerate(found):
        style = styles[one.mode]
        axes.fill_betweenx(
            SHARES,
            scale * one.least_s,
            scale * one.most_s,
            color=style.tone.light,
            alpha=BAND_ALPHA,
            linewidth=0,
        )
        drawn = look(style) | {"label": label(one.mode), "linewidth": min(style.width, 1.6)}
        # Markers at places of their own, so that lines that coincide can be told apart.
        every = (8 + 6 * place, 40)
        (line,) = axes.plot(scale * one.mean_s, SHARES, markevery=every, **drawn)
        handles.append(line)
    axes.set_xlim(0, None)
    axes.set_ylim(0, 1.01)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
    axes.set_xlabel(f"{words} ({unit}, ← better)")
    axes.set_ylabel("share of requests")
    legend_below(figure, handles)
    return figure

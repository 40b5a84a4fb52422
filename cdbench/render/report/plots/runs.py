"""Several runs side by side: the end-to-end speed-up over static that each of them measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cdbench.render.colours import INK
from cdbench.render.formats import ratio
from cdbench.render.report.parts import Plot
from cdbench.render.report.plots.style import SMALL_POINTS, ends, frame, label, look
from cdbench.render.report.source import ReportRun, Styles
from cdbench.render.run_report import comparison, timed_adaptive
from cdbench.schema import IntervalRecord

BASELINE = "static"
ROW_INCHES = 0.3


@dataclass(frozen=True)
class RunSpeedup:
    """One adaptive mode of one run over its own ``static``."""

    run: str
    mode: str
    speedup: IntervalRecord
    invalid: bool

    @property
    def name(self) -> str:
        mark = " (INVALID)" if self.invalid else ""
        return f"{label(self.run, 22)}{mark}, {label(self.mode, 12)}"


def run_speedups(runs: Sequence[ReportRun]) -> list[RunSpeedup]:
    """Every adaptive mode of every run that was timed beside static."""
    found = []
    for run in runs:
        for mode in timed_adaptive(run.result):
            pair = comparison(run.result, mode, BASELINE, "e2e")
            if pair is not None and pair.speedup.estimate is not None:
                invalid = run.result.validity.verdict == "INVALID"
                found.append(RunSpeedup(run.name, mode, pair.speedup, invalid))
    return found


def runs_plot(runs: Sequence[ReportRun], styles: Styles) -> Plot | None:
    """The picture; None where no run has such a speed-up."""
    found = run_speedups(runs)
    if not found:
        return None
    words = (
        f"{one.name} {ratio(one.speedup.estimate, one.speedup.low, one.speedup.high)}"
        for one in found
    )
    return Plot(
        name="runs-speed-up",
        title="End-to-end speed-up over static, run by run",
        says="; ".join(words) + ".",
        draw=lambda: _draw(found, styles),
        data={
            "rows": [
                {"run": one.run, "mode": one.mode, **one.speedup.model_dump(mode="json")}
                for one in found
            ]
        },
        notes=("Every run against its own static, with its interval over blocks.",),
    )


def _draw(found: Sequence[RunSpeedup], styles: Styles) -> Any:
    figure, ((axes,),) = frame(ROW_INCHES * len(found) + 0.7)
    for place, one in enumerate(found):
        style, speedup = styles[one.mode], one.speedup
        if sure := ends(speedup):
            axes.hlines(place, *sure, color=style.tone.light, linewidth=1.6)
        axes.plot([speedup.estimate], [place], **look(style, line=False))
        axes.annotate(
            ratio(speedup.estimate),
            (max(speedup.high or 0.0, speedup.estimate or 0.0), place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL_POINTS,
        )
    axes.axvline(1, color=INK.light, linewidth=0.8)
    axes.set_yticks(range(len(found)), [one.name for one in found])
    axes.set_ylim(len(found) - 0.5, -0.5)
    left, right = axes.get_xlim()
    axes.set_xlim(left, right + 0.14 * (right - left))
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:.4g}×")
    axes.set_xlabel("speed-up (→ better)")
    return figure

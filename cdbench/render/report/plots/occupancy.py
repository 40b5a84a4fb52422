"""Occupancy over time: how many rows core launches had, mode by mode, in one block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cdbench.bench.repeats import StoredRepeat, complete_blocks
from cdbench.metrics.trace import LaunchTrace, RunTrace
from cdbench.render.colours import MUTED
from cdbench.render.formats import percent, seconds
from cdbench.render.report.parts import Plot
from cdbench.render.report.plots.style import SMALL_POINTS, frame, label
from cdbench.render.report.source import Styles

SLICES = 240
"""Of the longest run that is shown: launches are averaged in each, since there may be thousands."""
MOST_MODES = 8
PANEL_INCHES = 0.92


@dataclass(frozen=True)
class Occupancy:
    """Decode rows of one timed run's core launches in equal slices of time from its start.

    ``rows`` is the mean over the launches that started in a slice, each weighted by its duration;
    NaN where none did.
    """

    mode: str
    width: int
    wall_s: float
    rows: npt.NDArray[np.float64]
    slice_s: float

    @property
    def words(self) -> str:
        """Its mean, and how long it took."""
        mean = float(np.nanmean(self.rows))
        return (
            f"{label(self.mode)} {mean:.3g} of {self.width} rows "
            f"({percent(mean / self.width)}) over {seconds(self.wall_s)}"
        )


def occupancy_of(trace: RunTrace, slice_s: float, slices: int) -> Occupancy | None:
    """The occupancy of one timed run; None without a core launch that decodes."""
    launches = trace.decode_launches("core")
    if not launches:
        return None
    zero_s = start_s(trace)
    place = np.array([int((x.start_s - zero_s) / slice_s) for x in launches])
    place = np.clip(place, 0, slices - 1)
    weight = np.array([max(x.duration_s, 1e-12) for x in launches])
    rows = np.array([x.decode_rows for x in launches], dtype=np.float64)
    total = np.bincount(place, weights=rows * weight, minlength=slices)
    weights = np.bincount(place, weights=weight, minlength=slices)
    mean = np.full(slices, np.nan)
    np.divide(total, weights, out=mean, where=weights > 0)
    return Occupancy(trace.mode, trace.width, trace.wall_s, mean, slice_s)


def start_s(trace: RunTrace) -> float:
    """The first arrival or launch, on the run's clock."""
    launches: Sequence[LaunchTrace] = trace.launches
    times = [r.arrival_s for r in trace.requests] + [x.start_s for x in launches]
    return min(times, default=0.0)


def occupancy(repeats: Sequence[StoredRepeat], styles: Styles) -> Plot | None:
    """A run of every mode in one block; None without launches."""
    if not repeats:
        return None
    block, first = _typical(complete_blocks(repeats) or repeats)
    shown = [first[mode] for mode in styles if mode in first][:MOST_MODES]
    slice_s = max((trace.wall_s for trace in shown), default=0.0) / SLICES
    found = [o for trace in shown if (o := occupancy_of(trace, slice_s, SLICES)) is not None]
    if not found:
        return None
    left_out = len(first) - len(shown)
    notes = [
        f"The first run of each mode in block {block}, whose walls are nearest to the medians of "
        "all blocks; one time axis. Each point: mean rows "
        f"of the core launches that started in a slice of {seconds(slice_s)}, weighted by their "
        "duration; gaps have none (prompts, prelude, coda). Dashed: the width."
    ]
    if left_out > 0:
        notes.append(f"{left_out} further modes are not shown.")
    return Plot(
        name="occupancy-over-time",
        title="Occupancy over time: rows of core launches",
        says=f"Mean over time: {'; '.join(o.words for o in found)}.",
        draw=lambda: _draw(found, styles),
        data={
            o.mode: {
                "width": o.width,
                "slice_s": o.slice_s,
                "rows": [None if np.isnan(r) else round(float(r), 2) for r in _trimmed(o.rows)],
            }
            for o in found
        },
        notes=tuple(notes),
    )


def _typical(repeats: Sequence[StoredRepeat]) -> tuple[int, dict[str, RunTrace]]:
    """The block whose walls are nearest to the medians, and its first run of each mode."""
    blocks: dict[int, dict[str, RunTrace]] = {}
    for run in sorted(repeats, key=lambda r: (r.block, r.order)):
        blocks.setdefault(run.block, {}).setdefault(run.trace.mode, run.trace)
    walls: dict[str, list[float]] = {}
    for firsts in blocks.values():
        for mode, trace in firsts.items():
            walls.setdefault(mode, []).append(trace.wall_s)
    medians = {mode: float(np.median(of_blocks)) for mode, of_blocks in walls.items()}

    def distance(block: int) -> float:
        missing = len(medians) - len(blocks[block])
        parted = (abs(np.log(t.wall_s / medians[mode])) for mode, t in blocks[block].items())
        return 1e3 * missing + float(sum(parted))

    block = min(blocks, key=lambda number: (distance(number), number))
    return block, blocks[block]


def _trimmed(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Without the slices after the last launch."""
    known = np.flatnonzero(~np.isnan(rows))
    return rows[: known[-1] + 1] if len(known) else rows[:0]


def _draw(found: Sequence[Occupancy], styles: Styles) -> Any:
    height = PANEL_INCHES * len(found) + 0.6
    figure, grid = frame(height, len(found), 1, sharex=True, sharey=True)
    for axes, one in zip(grid[:, 0], found, strict=True):
        style = styles[one.mode]
        times = one.slice_s * np.arange(len(one.rows))
        axes.fill_between(
            times, one.rows, step="post", color=style.tone.light, alpha=0.3, linewidth=0
        )
        axes.step(times, one.rows, where="post", color=style.tone.light, linewidth=1)
        axes.axhline(one.width, color=MUTED.light, linewidth=0.8, linestyle=(0, (3, 2)))
        axes.axvline(one.wall_s, color=MUTED.light, linewidth=0.8)
        axes.set_title(f"{label(one.mode)}: {seconds(one.wall_s)}", fontsize=SMALL_POINTS + 0.5)
    widest = max(one.width for one in found)
    grid[0, 0].set_ylim(0, 1.12 * widest)
    grid[0, 0].set_xlim(0, 1.02 * max(one.wall_s for one in found))
    grid[-1, 0].set_xlabel("time since the first arrival (s)")
    figure.supylabel("rows")
    return figure

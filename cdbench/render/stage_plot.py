"""Stage curves as a picture: time per launch and per row against rows, one line a context.

A row of two panels for each stage, both axes logarithmic; the dashed line is the floor. Drawn
without a display.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from cdbench.metrics.curves import CurveStage
from cdbench.schema.files import write_whole
from cdbench.schema.stages import StageCurves, StagePoint

PANEL_INCHES = (4.6, 2.9)
MICROSECOND = 1e6
MARKERS = "os^Dv"

MARK = "cdbench stage curves"
"""The title in the file, by which a picture is known again."""


def write_plot(path: Path, document: StageCurves) -> None:
    """Draw the curves into a .png or .svg file, whole or not at all."""
    picture = io.BytesIO()
    figure = draw(document)
    # Without the date the same curves give the same file.
    metadata = {"Title": MARK} | ({"Date": None} if path.suffix == ".svg" else {})
    figure.savefig(picture, format=path.suffix.removeprefix("."), metadata=metadata)
    write_whole(path, picture.getvalue())


def is_plot(path: Path) -> bool:
    """Whether a file is a picture that ``write_plot`` made, by the title that it keeps in it."""
    try:
        return MARK.encode() in path.read_bytes()
    except OSError:
        return False


def draw(document: StageCurves) -> Any:
    """The matplotlib figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    stages = document.curves().stages
    width, height = PANEL_INCHES
    figure = Figure(figsize=(2 * width, height * len(stages)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(stages), 2, squeeze=False)
    for stage, (launch, row) in zip(stages, panels, strict=True):
        points = [p for p in document.points if p.stage == stage]
        panel(launch, stage, points, per_row=False)
        panel(row, stage, points, per_row=True)
        row.legend(fontsize=7)
    figure.suptitle(_title(document))
    return figure


def panel(axes: Any, stage: CurveStage, points: list[StagePoint], per_row: bool) -> None:
    """One stage: a line and a marker of its own for each context, its spread, dashed its floor."""
    for place, context in enumerate(sorted({p.context for p in points})):
        line = sorted((p for p in points if p.context == context), key=lambda p: p.rows)
        rows = [p.rows for p in line]

        def scaled(times: list[float], rows: list[int] = rows) -> list[float]:
            share = rows if per_row else [1] * len(rows)
            return [t * MICROSECOND / n for t, n in zip(times, share, strict=True)]

        marker = MARKERS[place % len(MARKERS)]
        (drawn,) = axes.plot(rows, scaled([p.time_s for p in line]), marker=marker, markersize=3)
        drawn.set_label(f"context {context}")
        low, high = scaled([p.low_s for p in line]), scaled([p.high_s for p in line])
        axes.fill_between(rows, low, high, alpha=0.15, color=drawn.get_color(), linewidth=0)
        floor = scaled([p.floor_s for p in line])
        axes.plot(rows, floor, linestyle="--", linewidth=0.9, color=drawn.get_color())
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    row = "token" if stage == "prefill" else "row"
    axes.set_xlabel(f"{'prompt ' if stage == 'prefill' else ''}{row}s")
    axes.set_ylabel("µs")
    axes.set_title(f"{stage}, per {row if per_row else 'launch'}", fontsize=9)
    axes.grid(visible=True, which="major", linewidth=0.4, alpha=0.5)


def _title(document: StageCurves) -> str:
    key = document.key
    marks = [note for note in document.notes if note.startswith("random weights")]
    threads = f"{key.threads} thread{'s' if key.threads != 1 else ''}"
    facts = [key.device, threads, key.dtype, *marks]
    return f"Stage curves of {document.model} ({', '.join(facts)}); dashed: floor"

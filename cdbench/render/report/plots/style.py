"""How every picture looks, and the frame that it is drawn in."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from cdbench.render.colours import BAD, GOOD, GRID, INK, MUTED, OTHER, ModeStyle
from cdbench.render.html_table import printable
from cdbench.schema import IntervalRecord

WIDTH_INCHES = 4.3
"""On a telephone a picture this wide stands at its own size, on a screen it grows half again."""
FONT_POINTS = 8.5
SMALL_POINTS = 7.5
BAND_ALPHA = 0.16
NO_MODES = (INK, OTHER, MUTED, GOOD, BAD)
"""Lines that are of no mode, such as contexts."""
LABEL_CHARACTERS = 26
LEGEND_CHARACTERS = 62
HANDLE_CHARACTERS = 9

_RC: Any = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib, so that every machine measures it
    "font.size": FONT_POINTS,
    "axes.labelsize": FONT_POINTS,
    "axes.titlesize": FONT_POINTS,
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED.light,
    "axes.labelcolor": INK.light,
    "axes.titlecolor": INK.light,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.unicode_minus": False,
    "figure.facecolor": "none",
    "figure.labelsize": FONT_POINTS,
    "figure.constrained_layout.use": True,
    "grid.color": GRID.light,
    "grid.linewidth": 0.5,
    "grid.alpha": 1.0,
    "legend.fontsize": SMALL_POINTS,
    "legend.frameon": False,
    "legend.labelcolor": INK.light,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.5,
    "patch.linewidth": 0.7,
    "hatch.linewidth": 0.6,
    "text.color": INK.light,
    "text.parse_math": False,  # a dollar sign in a task's name is no formula
    "xtick.color": MUTED.light,
    "xtick.labelcolor": INK.light,
    "xtick.labelsize": SMALL_POINTS,
    "ytick.color": MUTED.light,
    "ytick.labelcolor": INK.light,
    "ytick.labelsize": SMALL_POINTS,
    "svg.fonttype": "none",  # text stays text
    "svg.image_inline": True,
    "pdf.fonttype": 42,  # fonts that journals take
}


@contextlib.contextmanager
def drawing(salt: str) -> Iterator[None]:
    """The house style, whatever matplotlib is configured to; ``salt`` seeds the ids in an SVG."""
    import matplotlib
    from matplotlib.rcsetup import cycler

    with matplotlib.rc_context(), warnings.catch_warnings():
        # A name may have characters that the measuring font lacks; a browser finds them elsewhere.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)
        matplotlib.rcParams["axes.prop_cycle"] = cycler(color=[tone.light for tone in NO_MODES])
        matplotlib.rcParams["svg.hashsalt"] = salt
        yield


def frame(height_inches: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """A figure without a display, and its axes as an array of rows and columns."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, height_inches))
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def look(style: ModeStyle, *, line: bool = True) -> dict[str, Any]:
    """Keywords of ``axes.plot`` for a mode; without ``line`` its marker alone."""
    return {
        "color": style.tone.light,
        "marker": style.marker,
        # What answers alike lies on one spot: an open shape around a filled one shows both.
        "fillstyle": "none" if style.open else "full",
        "markersize": 7.5 if style.open else 4.5,
        "linestyle": style.line if line else "none",
        "linewidth": style.width,
        "label": None,
    }


def label(name: str, most: int = LABEL_CHARACTERS) -> str:
    """A name as a picture can show it: nothing that no file may hold, and not too long."""
    shown = " ".join(printable(name).split())
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def legend_below(figure: Any, handles: Sequence[Any]) -> None:
    """The legend under the axes, where it hides nothing, in as many columns as its names allow."""
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    columns = max(1, min(3, LEGEND_CHARACTERS // (longest + HANDLE_CHARACTERS)))
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=min(columns, max(1, len(handles))),
        handlelength=3.2,
        columnspacing=1.2,
    )


def ends(interval: IntervalRecord) -> tuple[float, float] | None:
    """Where an interval begins and ends; None where there is none to draw."""
    if interval.low is None or interval.high is None:
        return None
    return interval.low, interval.high

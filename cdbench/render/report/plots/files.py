"""The pictures of a report as files of their own: on white, with their title and marks."""

from __future__ import annotations

import io
import re
import textwrap
from pathlib import Path

from cdbench.render.colours import PAPER
from cdbench.render.report.parts import Plot
from cdbench.render.report.plots.style import FONT_POINTS, drawing, label

FORMATS = ("svg", "pdf", "png")
MARK = "cdbench report figure"
"""In every file, by which a picture is known again."""
DOTS_PER_INCH = 200
LINE_CHARACTERS = 66
_UNDATED: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
"""Without a date the same run gives the same file."""


def picture(plot: Plot, ending: str, marks: str = "") -> bytes:
    """The file's content. ``marks``: what must be said of every number in it, such as INVALID."""
    file = io.BytesIO()
    with drawing(plot.name):
        figure = plot.draw()
        lines = (textwrap.fill(label(text, 400), LINE_CHARACTERS) for text in (plot.title, marks))
        title = "\n".join(line for line in lines if line)
        figure.suptitle(title, fontsize=FONT_POINTS + 0.5, x=0.01, ha="left")
        metadata = {"Title": MARK, **_UNDATED.get(ending, {})}
        figure.savefig(
            file, format=ending, facecolor=PAPER.light, dpi=DOTS_PER_INCH, metadata=metadata
        )
    return file.getvalue()


def is_picture(path: Path) -> bool:
    """Whether a file is a picture of a report, by the title that it keeps in it."""
    try:
        return MARK.encode() in path.read_bytes()
    except OSError:
        return False


def file_stem(text: str) -> str:
    """A name that any file system takes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "figure"

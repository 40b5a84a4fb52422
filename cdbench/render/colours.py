"""One colour, marker and line for every mode, the same in every picture and on every page.

The hues are those of Okabe and Ito (2008), which people with any common colour blindness tell
apart, darkened or lightened until they stand out on white and on near-black paper. What does not
adapt is grey. Colour is never alone: no two modes of a run share both marker and line, so that
pictures survive a grey printer too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

Dash = tuple[float, ...]
"""Lengths of strokes and gaps in line widths; empty: a solid line."""


@dataclass(frozen=True)
class Tone:
    """A colour as it is on light and on dark paper. ``name`` is its variable in a style sheet."""

    name: str
    light: str
    dark: str


INK = Tone("ink", "#1c2128", "#e6e9ed")
MUTED = Tone("muted", "#57606a", "#a3adb8")
GRID = Tone("grid", "#d5dae0", "#363d46")
PAPER = Tone("paper", "#ffffff", "#14181d")
RAISED = Tone("raised", "#f4f6f8", "#1d2229")
LINK = Tone("link", "#0a58a8", "#79b8ff")
GOOD = Tone("good", "#1a6b3c", "#6fd396")
BAD = Tone("bad", "#a3242b", "#ff9c96")

PAGE = (INK, MUTED, GRID, PAPER, RAISED, LINK, GOOD, BAD)
"""What pages and the frames of pictures are made of."""

STATIC = Tone("mode-static", "#7d8288", "#8f979f")
AUTO = Tone("mode-auto", "#93407a", "#f3b8d9")
LOCKSTEP = Tone("mode-lockstep", "#d15b00", "#f2863f")
CDB = Tone("mode-cdb", "#0072b2", "#4aa8e0")
DENSE = Tone("mode-dense", "#00916a", "#2cc499")
OTHER = Tone("mode-other", "#5a4500", "#f0d060")

MODES = (STATIC, AUTO, LOCKSTEP, CDB, DENSE, OTHER)


@dataclass(frozen=True)
class ModeStyle:
    """How a mode is drawn. ``marker``: matplotlib's letter for a shape, not filled if ``open``."""

    tone: Tone
    marker: str
    dash: Dash
    width: float = 1.3
    open: bool = False

    @property
    def line(self) -> str | tuple[float, Dash]:
        """The line style as matplotlib takes it."""
        return (0.0, self.dash) if self.dash else "solid"


_DEPTH_MARKERS = "v<>phd8H"
_DENSE_MARKERS = "PX*"
_OTHER_MARKERS = "+x1234"


def mode_styles(labels: Sequence[str]) -> dict[str, ModeStyle]:
    """The style of every mode named; several ``dense`` rows differ by marker and line."""
    dense = [label for label in dict.fromkeys(labels) if label.startswith("dense")]
    known = {label: _style(label, dense) for label in labels}
    others = [label for label, style in known.items() if style is None]
    return {
        label: _numbered(OTHER, _OTHER_MARKERS, others.index(label)) if style is None else style
        for label, style in known.items()
    }


def _style(label: str, dense: Sequence[str]) -> ModeStyle | None:
    if label == "static":
        return ModeStyle(STATIC, "s", ())
    if label == "static@auto":
        return ModeStyle(AUTO, "D", (5, 1.5))
    if label == "lockstep":
        return ModeStyle(LOCKSTEP, "^", (5, 1.5, 1, 1.5), open=True)
    if label == "cdb":
        return ModeStyle(CDB, "o", (), width=2.0)
    if label in dense:
        return _numbered(DENSE, _DENSE_MARKERS, dense.index(label))
    if depth := re.fullmatch(r"static@(\d+)", label):
        # Fixed depths are baselines too: grey, told apart by their shapes.
        return _numbered(STATIC, _DEPTH_MARKERS, int(depth[1]) - 1)
    return None


def _numbered(tone: Tone, markers: str, place: int) -> ModeStyle:
    """The marker says which; beyond the last one the gaps of the line grow."""
    rounds, index = divmod(place, len(markers))
    return ModeStyle(tone, markers[index], (1 + index % 3, 1.2 + rounds))

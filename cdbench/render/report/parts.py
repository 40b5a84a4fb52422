"""What a section of a report is made of; the page and the picture files are both made from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cdbench.render.table import Table


@dataclass(frozen=True)
class Plot:
    """One picture.

    ``name`` is its file's stem. ``says`` tells in numbers what it shows, for who cannot see it;
    ``notes`` stand below it. ``draw`` returns a matplotlib figure and is called within
    ``style.drawing``. ``data`` is what is drawn, as plain JSON.
    """

    name: str
    title: str
    says: str
    draw: Callable[[], Any]
    data: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prose:
    """Sentences, one paragraph each."""

    kind: ClassVar[str] = "prose"
    paragraphs: tuple[str, ...]
    muted: bool = False


@dataclass(frozen=True)
class Points:
    """A list."""

    kind: ClassVar[str] = "points"
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """Names and what they are."""

    kind: ClassVar[str] = "facts"
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Verdict:
    """VALID or INVALID, with its reasons."""

    kind: ClassVar[str] = "verdict"
    valid: bool
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Tabular:
    """A table."""

    kind: ClassVar[str] = "table"
    table: Table


@dataclass(frozen=True)
class Pictures:
    """Pictures beside one another where there is room."""

    kind: ClassVar[str] = "pictures"
    plots: tuple[Plot, ...]


@dataclass(frozen=True)
class Listing:
    """Text to copy as it is."""

    kind: ClassVar[str] = "listing"
    label: str
    content: str


@dataclass(frozen=True)
class Folded:
    """Parts that a reader opens."""

    kind: ClassVar[str] = "folded"
    summary: str
    parts: tuple[Part, ...]


Part = Prose | Points | Facts | Verdict | Tabular | Pictures | Listing | Folded


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it. ``key`` names it within its run."""

    key: str
    title: str
    parts: tuple[Part, ...]


def plots_of(parts: tuple[Part, ...]) -> list[Plot]:
    """Every picture among the parts, folded ones too, in order."""
    found: list[Plot] = []
    for part in parts:
        if isinstance(part, Pictures):
            found += part.plots
        elif isinstance(part, Folded):
            found += plots_of(part.parts)
    return found


def tables(*found: Table) -> tuple[Tabular, ...]:
    """The tables that have something in them."""
    return tuple(Tabular(table) for table in found if table.rows or table.notes)

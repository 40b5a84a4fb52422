"""The report as one HTML document that needs nothing else: no network, no script, no font.

The frame is ``page.html.jinja``; what stands in it is escaped by one function, also in attributes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from cdbench import __version__
from cdbench.render.colours import MODES, PAGE
from cdbench.render.html_table import escape, notes_html, table_html
from cdbench.render.report.document import Chapter, Report, data_of
from cdbench.render.report.parts import Plot, Section
from cdbench.render.report.plots.svg import inline_svg
from cdbench.render.table import Table

HERE = Path(__file__).parent
GENERATOR = "cdbench report"
"""What the page says of its maker, by which it is known again."""
MOST_DATA_BYTES = 2_000_000
"""Of the result that is embedded for one run, as JSON."""


@dataclass
class _Anchors:
    """Ids that nothing else on the page has."""

    count: int = 0

    def next(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"


def report_html(report: Report) -> str:
    """The page, in UTF-8 when it is written."""
    anchors = _Anchors()
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        finalize=_escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(
        table=lambda table: _table(table, anchors.next("t")),
        svg=lambda plot: _svg(plot, anchors.next("f")),
    )
    return environment.get_template("page.html.jinja").render(
        report=report,
        several=len(report.chapters) > 1,
        generator=GENERATOR,
        version=__version__,
        style=Markup(_style()),
        entries=list(_entries(report)),
        data=[(chapter.run.key, Markup(_data(chapter))) for chapter in report.chapters],
    )


def is_report(path: Path) -> bool:
    """Whether a file is a page that this module made."""
    try:
        with path.open(encoding="utf-8") as file:
            return f'<meta name="generator" content="{GENERATOR}' in file.read(2000)
    except (OSError, UnicodeDecodeError):
        return False


def _escaped(value: Any) -> Any:
    """Plain text escaped, and without what no page may hold; finished HTML as it is."""
    return Markup(escape(value)) if type(value) is str else value


def _table(table: Table, anchor: str) -> Markup:
    """The table in a region that scrolls by itself, reachable by keyboard, and its notes."""
    shown = table_html(table, classes="data", anchor=anchor)
    if not shown:
        return Markup(notes_html(table, anchor=anchor))
    named = escape(table.title or "table")
    region = (
        f'<div class="scroll" role="region" aria-label="{named}" tabindex="0">\n{shown}</div>\n'
    )
    return Markup(region + notes_html(table, anchor=anchor))


def _svg(plot: Plot, anchor: str) -> Markup:
    return Markup(inline_svg(plot, anchor))


def _style() -> str:
    """Colours from the one place that has them, then the rules of ``style.css``."""
    tones = (*PAGE, *MODES)
    light = "".join(f"--{tone.name}:{tone.light};" for tone in tones)
    dark = "".join(f"--{tone.name}:{tone.dark};" for tone in tones)
    night = f"@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}"
    rules = (HERE / "style.css").read_text(encoding="utf-8")
    return f":root{{color-scheme:light dark;{light}}}\n{night}\n{rules}"


def _data(chapter: Chapter) -> str:
    """JSON that cannot end the element it stands in."""
    document = data_of(chapter, MOST_DATA_BYTES)
    plain = json.dumps(document, separators=(",", ":"), allow_nan=False)
    for sign, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        plain = plain.replace(sign, code)
    return plain


@dataclass(frozen=True)
class Entry:
    """A line of the contents; ``inner`` below it."""

    target: str
    title: str
    inner: tuple[Entry, ...] = ()


def _entries(report: Report) -> Iterator[Entry]:
    if report.strip is not None:
        yield Entry(report.strip.key, report.strip.title)
    for chapter in report.chapters:
        inner = tuple(_section_entries(chapter.run.key, chapter.sections))
        if len(report.chapters) == 1:
            yield from inner
        else:
            yield Entry(chapter.run.key, chapter.run.name, inner)


def _section_entries(key: str, sections: Sequence[Section]) -> Iterator[Entry]:
    for section in sections:
        yield Entry(f"{key}-{section.key}", section.title)

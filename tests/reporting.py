"""What the tests of reports share: runs made up by hand, and a strict reader of pages."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

from cdbench.render.colours import mode_styles
from cdbench.render.html_table import escape
from cdbench.render.report.document import make_report
from cdbench.render.report.page import report_html
from cdbench.render.report.parts import Plot
from cdbench.render.report.source import ReportRun
from cdbench.schema import (
    Accuracy,
    ExitSettings,
    IntervalRecord,
    ModeAccuracy,
    ModeResult,
    Result,
)

VOID = {"meta", "link", "br", "hr", "img", "input", "wbr", "col"}
SHARES = {"static@1": 0.2, "static@2": 0.3, "static@3": 0.8, "static": 0.8, "cdb": 0.6}
"""Accuracy by mode: depth 2 lies below mixing 1 and 3, cdb at 2 loops above it."""
QUESTIONS = 500


def rate(share: float) -> IntervalRecord:
    return IntervalRecord(estimate=share, low=share - 0.05, high=share + 0.05, n=QUESTIONS)


def answered(result: Result, shares: dict[str, float] = SHARES) -> Result:
    """The result with a live pass: fixed depths beside its modes, cdb at 2 loops a token."""
    modes = dict(result.modes)
    for label in shares:
        if label.startswith("static@") and label not in modes:
            modes[label] = ModeResult(
                schedule="static",
                model="none",
                exit=ExitSettings(rule="none"),
                max_loops=int(label.partition("@")[2]),
            )
        elif label in modes:
            depth = 2.0 if label == "cdb" else float(modes[label].max_loops)
            modes[label] = modes[label].model_copy(update={"live": {"mean_depth": depth}})
    accuracy = Accuracy(
        baseline="static",
        modes={label: ModeAccuracy(rate=rate(share)) for label, share in shares.items()},
    )
    return result.model_copy(update={"modes": modes, "accuracy": accuracy})


def as_run(result: Result, raw: Any = None, name: str = "a-run", key: str = "run1") -> ReportRun:
    return ReportRun(key, name, result, raw, mode_styles(list(result.modes)))


def page_of(*runs: ReportRun) -> str:
    return report_html(make_report(runs))


class Page(HTMLParser):
    """A page read strictly: every element that opens must close, in order.

    ``elements`` has each with its attributes and its ancestors' tags; ``text`` all visible text.
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str], tuple[str, ...]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.headings: list[tuple[int, str]] = []
        self.errors: list[str] = []
        self._words: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        self.errors += [f"<{tag}> is never closed" for tag in self._open]

    @property
    def text(self) -> str:
        """Visible text, white space squeezed."""
        return " ".join(" ".join(self._words).split())

    def found(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        """Attributes of every element of a tag that has these."""
        return [
            attributes
            for name, attributes, _ in self.elements
            if name == tag and all(attributes.get(k) == v for k, v in wanted.items())
        ]

    def all_ids(self) -> list[str]:
        return [attributes["id"] for _, attributes, _ in self.elements if "id" in attributes]

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.errors.append(f"<{tag}> has an attribute twice: {names}")
        values = {name: value or "" for name, value in attrs}
        self.elements.append((tag, values, tuple(self._open)))
        if tag not in VOID:
            self._open.append(tag)
            if tag[0] == "h" and tag[1:].isdigit():
                self.headings.append((int(tag[1:]), ""))

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {n: v or "" for n, v in attrs}, tuple(self._open)))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.errors.append(f"</{tag}> where {self._open[-1:]} is open, line {self.getpos()[0]}")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside in self.raw:
            self.raw[inside].append(data)
            return
        if self._open and self._open[-1][0] == "h" and self._open[-1][1:].isdigit():
            level, words = self.headings[-1]
            self.headings[-1] = (level, words + data)
        self._words.append(data)


def sketched(plot: Plot, anchor: str) -> str:
    """Stands in for ``inline_svg`` where a test is not about pictures: drawing takes its time."""
    return (
        f'<svg class="plot" role="img" aria-labelledby="{anchor}-title" '
        f'aria-describedby="{anchor}-desc"><title id="{anchor}-title">{escape(plot.title)}</title>'
        f'<desc id="{anchor}-desc">{escape(plot.says)}</desc></svg>'
    )

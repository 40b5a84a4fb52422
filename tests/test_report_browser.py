"""The report in a real browser: nothing complains, nothing is fetched, nothing sticks out."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdbench.bench.raw import read_run
from cdbench.schema import Result, Validity
from tests.browser import Seen, View, find_browser, look
from tests.recorded import scripted_stages
from tests.reporting import SHARES, answered, as_run, page_of
from tests.test_raw_records import written

BROWSER = find_browser()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (apt install chromium)"),
]

VIEWS = {
    "wide": View(1280),
    "narrow": View(375, 800),
    "dark": View(1280, dark=True),
    "narrow-dark": View(375, 800, dark=True),
}
QUESTIONS = {
    "page width": "document.documentElement.scrollWidth",
    "view width": "document.documentElement.clientWidth",
    "sticking out": """[...document.querySelectorAll('body *')].filter(e =>
        !e.closest('.scroll, pre, .skip, svg') &&
        e.getBoundingClientRect().right > document.documentElement.clientWidth + 1
      ).map(e => e.tagName + '.' + e.className).slice(0, 5)""",
    "flat pictures": """[...document.querySelectorAll('svg.plot')].filter(e =>
        e.getBoundingClientRect().height < 60).length""",
    "pictures": "document.querySelectorAll('svg.plot').length",
    "text outside": """[...document.querySelectorAll('svg.plot')].flatMap(s => {
        const around = s.getBoundingClientRect();
        return [...s.querySelectorAll('text')].filter(t => {
          const r = t.getBoundingClientRect();
          return r.left < around.left - 3 || r.right > around.right + 3;
        }).map(t => t.textContent);
      })""",
    "ground": "getComputedStyle(document.body).backgroundColor",
    "ink": "getComputedStyle(document.querySelector('svg.plot text')).fill",
    "bar": "getComputedStyle(document.documentElement).getPropertyValue('--mode-cdb')",
}


OTHERS = {
    "static@auto": "static",
    "lockstep": "lockstep",
    "dense:demo-dense": "dense",
    "dense:another-dense-model-of-the-same-size": "dense",
}


def many_modes(result: Result) -> Result:
    """The result with as many modes as a legend must hold, all as fast as static."""
    static = result.modes["static"]
    more = {label: static.model_copy(update={"schedule": s}) for label, s in OTHERS.items()}
    return result.model_copy(update={"modes": {**result.modes, **more}})


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one of them INVALID, each with every section."""
    folder = tmp_path_factory.mktemp("browser")
    result, raw = read_run(written(folder / "run", stages=scripted_stages()))
    known = answered(many_modes(result), SHARES | dict.fromkeys(OTHERS, 0.7))
    bad = known.model_copy(update={"validity": Validity(verdict="INVALID", reasons=["by hand"])})
    path = folder / "report.html"
    runs = (as_run(known, raw), as_run(bad, raw, "another-run-with-a-long-name", "run2"))
    path.write_text(page_of(*runs), encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=list(VIEWS))
def seen(
    page: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Seen:
    assert BROWSER is not None
    folder = tmp_path_factory.mktemp(request.param)
    return look(BROWSER, page, VIEWS[request.param], QUESTIONS, folder)


def test_the_console_is_silent_and_only_the_page_was_asked_for(page: Path, seen: Seen) -> None:
    assert seen.console == []
    fetched = [url for url in seen.requests if not url.startswith("data:")]
    assert fetched == [page.resolve().as_uri()]


def test_the_page_never_scrolls_sideways(seen: Seen) -> None:
    assert seen.values["sticking out"] == []
    assert seen.values["page width"] <= seen.values["view width"]


def test_pictures_are_drawn_with_their_texts_inside_and_have_names(seen: Seen) -> None:
    assert seen.values["pictures"] > 16
    assert seen.values["flat pictures"] == 0
    assert seen.values["text outside"] == []
    named = [name for name in seen.names if "latency" in name.lower() or "depth" in name.lower()]
    assert len(named) >= 8


def test_a_picture_follows_the_colour_scheme(seen: Seen) -> None:
    light = seen.values["ground"] == "rgb(255, 255, 255)"
    assert seen.values["ink"] == ("rgb(28, 33, 40)" if light else "rgb(230, 233, 237)")
    assert seen.values["bar"].strip() == ("#0072b2" if light else "#4aa8e0")
    assert seen.picture.startswith(b"\x89PNG")
    assert seen.paper.startswith(b"%PDF")


def test_the_schemes_were_both_looked_at(page: Path, tmp_path: Path) -> None:
    assert BROWSER is not None
    grounds = set()
    for name in ("narrow", "narrow-dark"):
        folder = tmp_path / name
        folder.mkdir()
        asked = {"ground": QUESTIONS["ground"]}
        grounds.add(look(BROWSER, page, VIEWS[name], asked, folder).values["ground"])
    assert grounds == {"rgb(255, 255, 255)", "rgb(20, 24, 29)"}

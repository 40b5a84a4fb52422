"""The report as a page: whole, ordered, accessible, self-contained, whatever the run holds."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdbench.bench.raw import read_run
from cdbench.metrics.predictor import calls_over_time
from cdbench.metrics.trace import RunTrace
from cdbench.render.colours import BAD, GOOD, INK, LINK, MODES, MUTED, PAPER, RAISED, Tone
from cdbench.render.report import page as page_module
from cdbench.render.report.document import data_of, make_report
from cdbench.render.report.sections.predictor import predictor
from cdbench.render.report.source import ReportRun
from cdbench.schema import ModelFacts, Result, Validity
from tests.recorded import scripted_stages
from tests.reporting import Page, answered, as_run, page_of, sketched
from tests.test_raw_records import written

ORDER = (
    "Verdict",
    "Results",
    "Exit depths",
    "Accuracy against mean depth",
    "Throughput against latency",
    "Waterfall and bounds",
    "Occupancy over time",
    "Latency",
    "Speed-ups, block by block",
    "Validity",
    "Stage curves",
    "Manifest and configuration",
    "Command to reproduce",
)
HOSTILE = "</script><b>bold</b> & \"x\" $y$ 'z' \x00 ]]> <!--"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ReportRun:
    """Two modes timed in six blocks, with stage curves, raw records and answers."""
    directory = written(tmp_path_factory.mktemp("report") / "run", stages=scripted_stages())
    result, raw = read_run(directory)
    return as_run(answered(result), raw)


@pytest.fixture(scope="module")
def html(run: ReportRun) -> str:
    return page_of(run)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


@pytest.fixture
def sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures without their lines, for tests of what stands around them."""
    monkeypatch.setattr(page_module, "inline_svg", sketched)


def changed(run: ReportRun, **update: Any) -> ReportRun:
    return as_run(run.result.model_copy(update=update), run.raw)


def sound(html: str) -> Page:
    """The page, once everything that must hold of any page does."""
    page = Page(html)
    assert page.errors == []
    ids = page.all_ids()
    assert len(ids) == len(set(ids)), "an id stands twice"
    for _, attributes, _ in page.elements:
        for name in ("aria-labelledby", "aria-describedby"):
            assert set(attributes.get(name, "").split()) <= set(ids)
        target = attributes.get("href", "#")
        if target.startswith("#") and target != "#":
            assert target[1:] in ids, target
    levels = [level for level, _ in page.headings]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    return page


def test_a_page_is_whole_and_its_references_lead_somewhere(html: str) -> None:
    sound(html)


def test_sections_stand_in_their_order_the_verdict_first(page: Page) -> None:
    assert tuple(words for level, words in page.headings if level == 2) == ORDER
    assert page.text.index("VALID") < page.text.index("over static")


def test_nothing_is_loaded_and_nothing_runs(html: str, page: Page) -> None:
    for tag, attributes, _ in page.elements:
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes), tag
        assert attributes.get("href", "#").startswith(("#", "data:,"))
    assert {a.get("type") for a in page.found("script")} == {"application/json"}
    assert not page.found("iframe")
    style = "".join(page.raw["style"])
    assert "url(" not in style
    assert "@import" not in style
    assert not re.search(r"https?://(?!www\.w3\.org/)", html)
    (policy,) = page.found("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith("default-src 'none'")


def test_a_page_can_be_used_by_keyboard_and_screen_reader(page: Page) -> None:
    assert page.found("html", lang="en")
    for landmark in ("header", "nav", "main", "footer"):
        assert len(page.found(landmark)) == 1
    first = next(attributes for tag, attributes, _ in page.elements if tag == "a")
    assert first == {"class": "skip", "href": "#main"}
    regions = page.found("div", **{"class": "scroll"})
    assert regions
    assert all(r["tabindex"] == "0" and r["aria-label"] for r in regions)
    tables = [ancestors for tag, _, ancestors in page.elements if tag == "table"]
    assert len(regions) == len(tables), "every wide thing scrolls in a region of its own"
    headers = [a for tag, a, _ in page.elements if tag == "th"]
    assert all("scope" in attributes for attributes in headers)


def test_every_picture_says_in_numbers_what_it_shows(html: str, page: Page) -> None:
    pictures = page.found("svg")
    assert len(pictures) >= 8
    assert all(p["role"] == "img" and p["aria-labelledby"] for p in pictures)
    said = re.findall(r"<desc[^>]*>([^<]+)</desc>", html)
    assert len(said) == len(pictures)
    assert all(re.search(r"\d", words) for words in said)


def test_pictures_follow_the_colours_of_the_page_and_keep_text_as_text(html: str) -> None:
    pictures = re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)
    for picture in pictures:
        assert not re.search("#[0-9a-fA-F]{6}", picture), "a colour that would not follow the page"
        assert "<text" in picture
        assert "font-family" not in picture
    assert "depth (loops)" in "".join(pictures)


def test_the_page_alone_holds_the_result_and_what_the_pictures_show(
    run: ReportRun, page: Page
) -> None:
    (data,) = page.raw["script"]
    document = json.loads(data)
    assert Result.model_validate(document["result"]) == run.result
    assert document["left_out"] == []
    assert (document["run"], document["marks"]) == ("a-run", [])
    names = {plot.name for plot in make_report([run]).chapters[0].plots}
    assert set(document["figures"]) == names
    assert {"occupancy-over-time", "latency-e2e", "waterfall-cdb"} <= names


def test_a_result_that_is_too_large_loses_its_largest_sections_by_name(run: ReportRun) -> None:
    (chapter,) = make_report([run]).chapters
    whole = len(json.dumps(run.result.model_dump(mode="json")))
    document = data_of(chapter, whole // 2)
    assert document["left_out"]
    assert not set(document["left_out"]) & set(document["result"])
    assert len(json.dumps(document["result"])) <= whole // 2
    assert "modes" in document["result"]


def test_the_same_run_makes_the_same_page(run: ReportRun, html: str) -> None:
    assert page_of(run) == html


def test_hostile_names_stay_text(run: ReportRun) -> None:
    result = run.result
    cdb = result.modes["cdb"]
    counts = {HOSTILE: [3, 2, 1, 0], "$\\frac{": [1, 1, 0, 0]}
    modes = {
        **result.modes,
        "cdb": cdb.model_copy(
            update={
                "note": HOSTILE,
                "depth_histogram": [4, 3, 1, 0],
                "depth_histogram_by_task": counts,
            }
        ),
    }
    config = {**result.config, "model": HOSTILE}
    hostile = ReportRun(
        "run1",
        HOSTILE,
        result.model_copy(update={"modes": modes, "config": config}),
        None,
        run.styles,
    )
    html = page_of(hostile)
    page = sound(html)
    assert not page.found("b")
    assert "<b>bold</b>" in page.text
    assert "\x00" not in html
    assert "\ufffd" in page.text
    document = json.loads(page.raw["script"][0])
    assert document["result"]["modes"]["cdb"]["note"] == HOSTILE


@pytest.mark.usefixtures("sketches")
def test_an_invalid_run_is_marked_everywhere(run: ReportRun) -> None:
    reason = "a reason <of its own>"
    html = page_of(changed(run, validity=Validity(verdict="INVALID", reasons=[reason])))
    page = sound(html)
    assert page.found("li", **{"class": "bad"})
    assert page.found("div", **{"class": "verdict invalid"})
    words = page.text
    assert words.index(reason) < words.index("tokens/s")
    assert "Quote no number of this run." in words
    cells = re.findall(r'<td class="num[^"]*">([^<]+)', html)
    marked = [cell for cell in cells if re.match(r"[\d.,+]+", cell) and cell != "1"]
    assert marked
    assert all("†" in cell for cell in marked)
    assert "†" not in Page(page_of(run)).text


def test_an_interrupted_run_says_so_and_shows_no_empty_figure(run: ReportRun) -> None:
    validity = Validity(verdict="INVALID", reasons=["interrupted"])
    empty: dict[str, Any] = {
        "modes": {},
        "comparisons": [],
        "bounds": {},
        "blocks": [],
        "waterfall": None,
        "exits": None,
        "accuracy": None,
        "stages": None,
    }
    stopped = run.result.model_copy(update={"status": "interrupted", "validity": validity, **empty})
    page = sound(page_of(as_run(stopped)))
    assert not page.found("svg")
    assert "Nothing was measured before the interruption." in page.text
    titles = [words for level, words in page.headings if level == 2]
    assert titles == ["Verdict", "Validity", "Manifest and configuration", "Command to reproduce"]


@pytest.mark.usefixtures("sketches")
def test_a_result_alone_says_what_it_cannot_show(run: ReportRun) -> None:
    page = sound(page_of(as_run(run.result)))
    document = json.loads(page.raw["script"][0])
    assert not {"occupancy-over-time", "latency-e2e"} & set(document["figures"])
    assert page.text.count("This needs the run's raw records") == 2


@pytest.mark.usefixtures("sketches")
@pytest.mark.parametrize("mode", ["static", "cdb"])
def test_a_run_of_one_mode_has_a_page(run: ReportRun, mode: str) -> None:
    result = run.result.model_copy(
        update={
            "modes": {mode: run.result.modes[mode]},
            "comparisons": [],
            "bounds": {},
            "waterfall": None,
            "accuracy": None,
        }
    )
    page = sound(page_of(as_run(result)))
    assert "No ratio was formed" in page.text
    assert "No question was asked" in page.text
    assert ("No adaptive mode ran" in page.text) == (mode == "static")


@pytest.mark.usefixtures("sketches")
def test_random_weights_synthetic_depths_and_replay_are_marked(run: ReportRun) -> None:
    model = ModelFacts(
        name="m",
        model_type="ouro",
        parameters=7,
        max_loops=4,
        cost_ratio=0.1,
        kv_bytes_per_token=8,
        kv_layout="per-loop",
        dtype="float32",
        device="cpu",
        random_weights_seed=3,
    )
    workload = run.result.workload.model_copy(
        update={"synthetic": "drawn by hand", "replayed": ["tokens", "depths"]}
    )
    page = sound(page_of(changed(run, model=model, workload=workload)))
    badges = page.text[: page.text.index("Contents")]
    for mark in ("RANDOM WEIGHTS", "SYNTHETIC DEPTHS", "replayed tokens, depths"):
        assert mark in badges
    assert "The weights are random: nothing can be said about accuracy." in page.text
    assert "drawn by hand" in page.text


@pytest.mark.usefixtures("sketches")
def test_several_runs_have_a_strip_and_a_part_each(run: ReportRun) -> None:
    other = run.result.model_copy(update={"validity": Validity(verdict="INVALID", reasons=["one"])})
    runs = [run, ReportRun("run2", "b-run", other, run.raw, run.styles)]
    page = sound(page_of(*runs))
    second = [words for level, words in page.headings if level == 2]
    assert second == ["The runs side by side", "a-run", "b-run"]
    assert [words for level, words in page.headings if level == 3] == list(ORDER) * 2
    strip = page.text[page.text.index("The runs side by side") :]
    assert "no ratio is formed between runs" in strip
    assert "b-run (INVALID), cdb" in "".join(re.findall("<desc[^>]*>[^<]*", page_of(*runs)))
    assert len(page.raw["script"]) == 2


def test_looking_at_the_configuration_needs_no_script(run: ReportRun, page: Page) -> None:
    assert "prefill_tokens: 512" in page.text
    assert "cdbench run --from a-run" in page.text
    assert [a for a in page.found("details") if "open" not in a], "folded until it is asked for"


@pytest.mark.parametrize("paper", [PAPER, RAISED])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("tone", [INK, MUTED, LINK, GOOD, BAD])
def test_text_stands_out_from_its_ground(tone: Tone, paper: Tone, scheme: str) -> None:
    assert contrast(getattr(tone, scheme), getattr(paper, scheme)) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("tone", MODES)
def test_lines_and_bars_stand_out_from_the_paper(tone: Tone, scheme: str) -> None:
    assert contrast(getattr(tone, scheme), getattr(PAPER, scheme)) >= 3.0


def test_the_page_has_the_colours_that_were_checked(page: Page) -> None:
    style = "".join(page.raw["style"])
    light, dark = style.split("prefers-color-scheme: dark")
    for tone in (INK, PAPER, MUTED, *MODES):
        assert f"--{tone.name}:{tone.light};" in light
        assert f"--{tone.name}:{tone.dark};" in dark
    rules = style[style.index("box-sizing") :]
    assert not re.search("#[0-9a-fA-F]{3,6}", rules), "a colour that no test has checked"


def contrast(one: str, other: str) -> float:
    """WCAG 2: (lighter + 0.05) / (darker + 0.05) of relative luminances."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_contrast_by_hand() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.usefixtures("sketches")
def test_a_report_reads_its_run_from_disk(tmp_path: Path) -> None:
    """From the directory with all its sections; hand-made answers are not in it."""
    from cdbench.render.report.source import read_runs

    directory = written(tmp_path / "one", stages=scripted_stages())
    (found,) = read_runs([str(directory)])
    assert (found.name, found.key) == ("one", "run1")
    assert found.raw is not None
    sound(page_of(found))


def test_a_gate_is_told_over_time_and_only_where_there_is_one(run: ReportRun) -> None:
    ungated = run
    depths = [4, *[2] * 8, *[3] * 4]
    requests = [
        replace_trace(depths, called=[None, *[2] * 6, 4, 4, *[2] * 4]),
        replace_trace(depths, called=None),
    ]
    trace = SimpleNamespace(requests=requests, max_loops=4, earliest_call=2)
    # the first eight: six called in time, two missed; then four called a loop too early
    first, second = calls_over_time(cast(RunTrace, trace))
    assert (first.first, first.last, first.tokens) == (1, 8, 8)
    assert (first.calls.precision, first.calls.recall) == (1.0, 0.75)
    assert (second.first, second.last, second.tokens) == (9, 16, 4)
    assert (second.calls.precision, second.calls.recall) == (0.0, None)
    assert calls_over_time(cast(RunTrace, SimpleNamespace(requests=requests[1:]))) == []
    assert predictor(ungated) is None


def replace_trace(depths: list[int], called: list[int | None] | None) -> SimpleNamespace:
    return SimpleNamespace(requested_depths=depths, predicted_depths=called)

"""The pictures of a report: the numbers behind them by hand, their looks, and their files."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from cdbench.bench.repeats import StoredRepeat
from cdbench.metrics.trace import Arrivals, RunTrace
from cdbench.render.colours import CDB, MODES, STATIC, mode_styles
from cdbench.render.report.parts import Plot
from cdbench.render.report.plots.accuracy_depth import accuracy_depth, accuracy_points, envelope
from cdbench.render.report.plots.block_ratios import block_ratios
from cdbench.render.report.plots.depth_by_position import depth_by_position, position_bins
from cdbench.render.report.plots.depth_by_task import MOST_TASKS, depth_by_task
from cdbench.render.report.plots.files import MARK, file_stem, is_picture, picture
from cdbench.render.report.plots.latency_ecdf import QUANTILES, distributions, latency_ecdfs
from cdbench.render.report.plots.occupancy import SLICES, occupancy, occupancy_of
from cdbench.render.report.plots.svg import inline_svg
from cdbench.render.report.plots.waterfall import steps, waterfall_plot
from cdbench.schema import Comparison, IntervalRecord, Result, Waterfall, WaterfallRow
from tests.recorded import FACTS, scripted_blocks, scripted_stages
from tests.reporting import answered
from tests.test_raw_records import scripted_result

MANY = [
    "static",
    "static@auto",
    *(f"static@{d}" for d in range(1, 9)),
    "lockstep",
    "cdb",
    "dense:one",
    "dense:two",
    "dense:three",
    "something-new",
]
STYLES = mode_styles(["static", "cdb"])


@pytest.fixture(scope="module")
def result() -> Result:
    return answered(scripted_result(scripted_blocks(("static", "cdb"), 6), scripted_stages()))


@dataclass
class Launch:
    """A core launch by hand."""

    decode_rows: int
    start_s: float
    duration_s: float
    stage: str = "core"
    prefill_rows: int = 0
    depth_counts: tuple[int, ...] = ()
    context: int = 1
    runnable: int = 1


@dataclass
class Asked:
    """A request by hand: arrived at 0, its tokens at the times given."""

    id: str
    token_s: list[float]
    executed_depths: list[int]
    arrival_s: float = 0.0
    task: str | None = None
    prompt_tokens: int = 1
    stop_depth: int | None = None
    finish_reason: str = "length"
    error: str | None = None
    admitted_s: float | None = 0.0
    tokens: list[int] = field(default_factory=list)
    requested_depths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = [0] * len(self.token_s)
        self.requested_depths = self.executed_depths

    @property
    def finish_s(self) -> float:
        return self.token_s[-1]


def trace(mode: str = "cdb", **parts: object) -> RunTrace:
    whole: dict[str, object] = {
        "requests": (),
        "launches": (),
        "wall_s": 10.0,
        "width": 4,
        "max_residents": 4,
        "max_loops": 4,
        **parts,
    }
    return RunTrace(mode=mode, **whole)  # type: ignore[arg-type]


def stored(run: RunTrace, block: int = 0, order: int = 0) -> StoredRepeat:
    return StoredRepeat(block, order, run, FACTS["cdb"])


def drawn(plot: Plot | None) -> str:
    assert plot is not None
    svg = inline_svg(plot, "f1")
    ET.fromstring(svg)
    return svg


# What the pictures show.


def test_shares_by_task_are_of_later_tokens_and_the_mean_is_theirs(result: Result) -> None:
    cdb = result.modes["cdb"].model_copy(
        update={
            "depth_histogram": [6, 0, 0, 2],
            "depth_histogram_by_task": {"easy": [6, 0, 0, 0], "hard": [0, 0, 0, 2]},
        }
    )
    known = result.model_copy(update={"modes": {**result.modes, "cdb": cdb}, "exits": None})
    plot = depth_by_task(known, "cdb", STYLES["cdb"])
    assert plot is not None
    assert "all tasks (8 tokens, mean 1.75): depth 1 75.0%, depth 2 0.0%" in plot.says
    assert "hard (2 tokens, mean 4.00)" in plot.says
    assert plot.data == {"all tasks": [6, 0, 0, 2], "easy": [6, 0, 0, 0], "hard": [0, 0, 0, 2]}
    assert "75%" in drawn(plot)


def test_the_mean_of_a_task_has_the_interval_that_the_run_compared_it_with(
    result: Result,
) -> None:
    assert result.exits is not None
    known = {task.task: task for task in result.exits.tasks}
    plot = depth_by_task(result, "cdb", STYLES["cdb"])
    assert plot is not None
    for name, task in known.items():
        mean = task.mean_depth
        if mean.low is not None and list(task.histogram) == list(plot.data[name]):
            assert f"mean {mean.estimate:.2f} [{mean.low:.2f}, {mean.high:.2f}]" in plot.says


def test_many_tasks_show_the_largest_and_say_how_many_are_left_out(result: Result) -> None:
    by_task = {f"task-{n}": [n, 0, 0, 1] for n in range(1, 13)}
    cdb = result.modes["cdb"].model_copy(
        update={"depth_histogram": [78, 0, 0, 12], "depth_histogram_by_task": by_task}
    )
    plot = depth_by_task(result.model_copy(update={"modes": {"cdb": cdb}}), "cdb", STYLES["cdb"])
    assert plot is not None
    assert len(plot.data) == MOST_TASKS + 1
    assert "task-12" in plot.data
    assert "task-1" not in plot.data
    assert any("4 are not" in note for note in plot.notes)


def test_a_mode_without_later_tokens_has_no_histogram(result: Result) -> None:
    empty = result.modes["cdb"].model_copy(update={"depth_histogram": [0, 0, 0, 0]})
    known = result.model_copy(update={"modes": {"cdb": empty}})
    assert depth_by_task(known, "cdb", STYLES["cdb"]) is None
    assert depth_by_position([], 4, "cdb", STYLES["cdb"]) is None


def test_positions_are_binned_by_doubling_and_no_token_is_lost() -> None:
    depths = [4, 1, 2, 1, 3, 1, 1, 2, 4, 4, 4]  # a first token, then ten later ones
    requests = [Asked("a", [0.1] * 11, depths), Asked("b", [0.1] * 3, [4, 2, 2])]
    bins = position_bins(requests, 4)
    assert [b.name for b in bins] == ["1", "2", "3-4", "5-8", "9-10"]
    assert [b.counts for b in bins] == [
        (1, 1, 0, 0),
        (0, 2, 0, 0),
        (1, 0, 1, 0),
        (2, 1, 0, 1),
        (0, 0, 0, 2),
    ]
    assert [b.mean for b in bins] == [1.5, 2.0, 2.0, 2.0, 4.0]
    assert sum(b.tokens for b in bins) == 12
    svg = drawn(depth_by_position(requests, 4, "cdb", STYLES["cdb"]))
    assert ">9-10<" in svg


def test_accuracy_is_held_against_what_fixed_depths_reach_mixed(result: Result) -> None:
    """(1, 0.2), (2, 0.3), (3, 0.8), (4, 0.8): at 2 loops mixing 1 and 3 reaches 0.5."""
    found = accuracy_points(result)
    assert envelope(found) == [(1.0, 0.2), (3.0, 0.8), (4.0, 0.8)]
    plot = accuracy_depth(result, mode_styles(list(result.modes)))
    assert plot is not None
    assert "cdb 60.0% [55.0, 65.0] at 2.00 loops" in plot.says
    assert "at the depth of cdb the fixed depths reach 50.0% (+10.0 pt)" in plot.says
    assert "fixed depths, mixed" in drawn(plot)


def test_one_fixed_depth_makes_no_envelope(result: Result) -> None:
    known = answered(
        scripted_result(scripted_blocks(("static", "cdb"), 1)), {"static": 0.8, "cdb": 0.6}
    )
    plot = accuracy_depth(known, STYLES)
    assert plot is not None
    assert "reach" not in plot.says
    assert any("no envelope" in note for note in plot.notes)


def test_a_dense_model_is_a_line_across_since_it_has_no_loops(result: Result) -> None:
    assert result.accuracy is not None
    dense = result.modes["static"].model_copy(update={"schedule": "dense", "live": {}})
    modes = {**result.modes, "dense:d": dense}
    rates = {**result.accuracy.modes, "dense:d": result.accuracy.modes["static"]}
    known = result.model_copy(
        update={
            "modes": modes,
            "accuracy": result.accuracy.model_copy(update={"modes": rates}),
        }
    )
    plot = accuracy_depth(known, mode_styles(list(modes)))
    assert plot is not None
    assert "dense:d 80.0% [75.0, 85.0] without loops" in plot.says
    assert (4.0, 0.8) in envelope(accuracy_points(known))
    assert "dense:d (no loops)" in drawn(plot)


def test_occupancy_is_a_mean_weighted_by_time_and_empty_slices_are_gaps() -> None:
    """Slice 0: 4 rows for 3 s and 1 row for 1 s: 3.25; slice 1: nothing; slice 2: 2 rows."""
    launches = [
        Launch(4, 0.0, 3.0),
        Launch(1, 3.0, 1.0),
        Launch(9, 5.0, 1.0, stage="coda"),
        Launch(2, 8.5, 1.0),
    ]
    found = occupancy_of(trace(launches=launches), slice_s=4.0, slices=3)
    assert found is not None
    np.testing.assert_allclose(found.rows, [3.25, np.nan, 2.0])
    assert occupancy_of(trace(), 1.0, 3) is None


def test_occupancy_shows_one_run_of_each_mode_of_one_block() -> None:
    runs = [
        StoredRepeat(r.block, r.order, r.trace, FACTS[r.trace.mode])
        for r in scripted_blocks(("static", "cdb"), 2)
    ]
    plot = occupancy(runs, STYLES)
    assert plot is not None
    assert list(plot.data) == ["static", "cdb"]
    assert all(len(series["rows"]) <= SLICES for series in plot.data.values())
    assert plot.says.count("of 2 rows") == 2
    assert "static: " in drawn(plot)


def test_the_block_that_is_shown_has_walls_near_the_medians() -> None:
    """Walls 9, 5 and 4 s: the middle one is typical, the first was slowed by something else."""
    runs = [
        stored(trace(launches=[Launch(3, 0.0, 1.0)], wall_s=wall_s), block)
        for block, wall_s in enumerate((9.0, 5.0, 4.0))
    ]
    plot = occupancy(runs, STYLES)
    assert plot is not None
    assert "in block 1," in plot.notes[0]
    assert "over 5.00 s" in plot.says


def test_latencies_are_quantiles_and_their_band_the_range_over_the_runs() -> None:
    def run(factor: float, block: int) -> StoredRepeat:
        requests = [Asked(str(n), [factor * n, factor * 2 * n], [4, 1]) for n in (1, 2, 3)]
        return stored(trace(requests=requests, arrivals=Arrivals.CLOSED_LOOP, mode="cdb"), block)

    (found,) = distributions([run(1.0, 0), run(2.0, 1)], "e2e", STYLES)
    middle = QUANTILES // 2
    assert (found.requests, found.runs) == (3, 2)
    assert (found.least_s[middle], found.mean_s[middle], found.most_s[middle]) == (4.0, 6.0, 8.0)
    assert (found.mean_s[0], found.mean_s[-1]) == (3.0, 9.0)
    (first,) = distributions([run(1.0, 0)], "ttft", STYLES)
    assert first.mean_s[middle] == 2.0


def test_all_at_once_has_no_time_to_first_token_and_its_end_to_end_is_called_queueing() -> None:
    at_once = stored(trace(requests=[Asked("a", [1.0, 2.0], [4, 1])]))
    plots = latency_ecdfs([at_once], STYLES)
    assert [plot.name for plot in plots] == ["latency-tpot", "latency-e2e"]
    assert "queueing" in " ".join(plots[1].notes)
    assert latency_ecdfs([], STYLES) == []


def test_thousands_of_requests_and_launches_stay_small() -> None:
    requests = [Asked(str(n), [0.001 * n + 0.001, 0.002 * n + 0.01], [4, 1]) for n in range(5000)]
    launches = [Launch(n % 4 + 1, 0.001 * n, 0.0009) for n in range(9000)]
    runs = [stored(trace(requests=requests, launches=launches))]
    plots = [*latency_ecdfs(runs, STYLES), occupancy(runs, STYLES)]
    for plot in plots:
        assert plot is not None
        assert len(drawn(plot)) < 60_000
        assert len(json.dumps(plot.data)) < 10_000


def test_steps_of_the_waterfall_follow_one_another() -> None:
    def row(effect: str, speedup: float, factor: float) -> WaterfallRow:
        return WaterfallRow(
            effect=effect,
            speedup=IntervalRecord(estimate=speedup, low=speedup - 0.1, high=speedup + 0.1, n=6),
            factor=IntervalRecord(estimate=factor, n=6),
            over_t=None,
            mode_t=None,
        )

    found = Waterfall(
        rows=[
            row("loops_saved", 2.0, 2.0),
            row("host_time", 1.5, 0.75),
            row("prefill_and_first_tokens", 1.2, 0.8),
        ]
    )
    assert [(s.before, s.to) for s in steps(found)] == [(1.0, 2.0), (2.0, 1.5), (1.5, 1.2)]
    plot = waterfall_plot(found, "cdb", STYLES["cdb"])
    assert plot is not None
    assert "host time 0.75×, so far 1.50×" in plot.says
    svg = drawn(plot)
    assert "host time = decode" in svg
    assert "×0.8" not in svg, "a measured step shows its speed-up, not its factor"
    assert waterfall_plot(Waterfall(reason="none"), "cdb", STYLES["cdb"]) is None


def test_block_ratios_show_every_block_and_the_interval(result: Result) -> None:
    pair = Comparison(
        mode="cdb",
        over="static",
        scope="e2e",
        speedup=IntervalRecord(estimate=2.0, low=1.9, high=2.1, n=2),
        log_ratios=[float(np.log(1.6)), float(np.log(2.5))],
    )
    known = result.model_copy(update={"comparisons": [pair]})
    plot = block_ratios(known, "e2e", STYLES)
    assert plot is not None
    assert plot.says == "cdb over static 2.00× [1.90, 2.10], blocks from 1.60× to 2.50×."
    assert plot.data["cdb over static"]["ratios"] == pytest.approx([1.6, 2.5])
    assert block_ratios(known, "decode", STYLES) is None
    assert "cdb over" in drawn(plot)


# How they look.


def test_no_two_modes_share_marker_and_line() -> None:
    looks = [(style.marker, style.dash) for style in mode_styles(MANY).values()]
    assert len(set(looks)) == len(MANY)


def test_a_mode_has_one_colour_whatever_stands_beside_it_and_static_is_grey() -> None:
    alone, among = mode_styles(["cdb"]), mode_styles(MANY)
    assert alone["cdb"] == among["cdb"]
    assert among["static"].tone is STATIC
    for scheme in ("light", "dark"):
        red, green, blue = rgb(getattr(STATIC, scheme))
        assert max(red, green, blue) - min(red, green, blue) < 0.08, "grey"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["normal", "protan", "deutan", "tritan"])
def test_modes_differ_to_eyes_that_lack_a_cone(kind: str, scheme: str) -> None:
    """Of full strength, by the matrices of Machado, Oliveira and Fernandes (2009)."""
    seen = [lab(CONES[kind] @ linear(getattr(tone, scheme))) for tone in MODES]
    for (one, a), (other, b) in itertools.combinations(zip(MODES, seen, strict=True), 2):
        distance = float(np.linalg.norm(a - b))
        assert distance >= 10, f"{one.name} and {other.name}: {distance:.1f}"


CONES = {
    "normal": np.eye(3),
    "protan": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deutan": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritan": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue


def linear(colour: str) -> np.ndarray:
    values = np.array(rgb(colour))
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    """CIELAB of linear sRGB under D65."""
    to_xyz = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.0721750],
            [0.0193339, 0.1191920, 0.9503041],
        ]
    )
    scaled = to_xyz @ np.clip(light, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    root = np.where(scaled > 0.008856, np.cbrt(scaled), 7.787 * scaled + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def test_a_picture_is_the_same_whatever_matplotlib_is_set_to(result: Result) -> None:
    plot = block_ratios(result, "e2e", STYLES)
    plain = drawn(plot)
    assert drawn(plot) == plain
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30, "axes.grid": False}):
        assert drawn(plot) == plain


def test_two_pictures_on_a_page_share_no_id(result: Result) -> None:
    plot = block_ratios(result, "e2e", STYLES)
    assert plot is not None
    one, other = inline_svg(plot, "f1"), inline_svg(plot, "f2")
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (one, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for svg, anchor in ((one, "f1"), (other, "f2")):
        referred = re.findall(r'(?:href="#|url\(#)([^")]+)', svg)
        assert referred
        assert all(name.startswith(f"{anchor}-") and f'id="{name}"' in svg for name in referred)


def test_a_name_with_dollars_and_controls_is_drawn_as_it_is(result: Result) -> None:
    cdb = result.modes["cdb"].model_copy(
        update={"depth_histogram_by_task": {"$x$ \x07 <i>": [1, 0, 0, 1], "b": [1, 0, 0, 0]}}
    )
    known = result.model_copy(update={"modes": {"cdb": cdb}, "exits": None})
    svg = drawn(depth_by_task(known, "cdb", STYLES["cdb"]))
    assert "$x$ \ufffd &lt;i&gt;" in svg


# As files.


@pytest.mark.parametrize(
    ("ending", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")]
)
def test_a_file_is_the_same_each_time_and_is_known_again(
    result: Result, tmp_path: Path, ending: str, start: bytes
) -> None:
    plot = block_ratios(result, "e2e", STYLES)
    assert plot is not None
    content = picture(plot, ending, "INVALID; RANDOM WEIGHTS")
    assert content.startswith(start)
    assert picture(plot, ending, "INVALID; RANDOM WEIGHTS") == content
    path = tmp_path / "one"
    path.write_bytes(content)
    assert MARK.encode() in content
    assert is_picture(path)
    path.write_bytes(b"something else")
    assert not is_picture(path)
    assert not is_picture(tmp_path / "absent")


def test_a_file_carries_its_title_and_marks_on_white(result: Result) -> None:
    plot = block_ratios(result, "e2e", STYLES)
    assert plot is not None
    svg = picture(plot, "svg", "INVALID; RANDOM WEIGHTS").decode()
    assert plot.title in svg
    assert "INVALID; RANDOM WEIGHTS" in svg
    assert "#ffffff" in svg
    assert CDB.light in svg


def test_names_of_files_are_plain() -> None:
    assert file_stem("dense:../My Model é") == "dense-my-model"
    assert file_stem("***") == "figure"


def test_other_modes_are_drawn_too() -> None:
    """A mode of a later version has a style, so that its run can be shown."""
    style = mode_styles(["new", "newer"])
    assert style["new"].tone is style["newer"].tone
    assert style["new"].marker != style["newer"].marker

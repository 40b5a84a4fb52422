"""docs/performance.md: its tables are those of the committed records, digit for digit."""

from __future__ import annotations

import json
import shutil
from math import exp
from pathlib import Path
from typing import Any

import pytest

from cdbench.errors import UsageError
from scripts import performance_page as page
from scripts.performance_tables import best_over_auto, gains, over_all_cells

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "results" / "reference" / "waterfall" / "bench-ouro.json"
"""A run of the bench size with a waterfall."""


def text_with(name: str, between: str = "") -> str:
    return f"before\n<!-- figures: {name} -->\n{between}<!-- end of figures -->\nafter\n"


def test_the_page_is_as_the_records_have_it() -> None:
    """If this fails, run `python scripts/performance_page.py`."""
    assert page.main(["--check"]) == 0


def test_the_page_has_every_section_once() -> None:
    names = [found[1] for found in page.REGION.findall(page.PAGE.read_text())]
    assert sorted(names) == sorted(page.SECTIONS)


def test_every_committed_record_is_on_the_page() -> None:
    shown = {file for file, _ in page.FROM_FILE.values()}
    assert {file.name for file in page.RECORDS.glob("*.json")} <= shown


def test_every_committed_record_says_where_it_comes_from() -> None:
    """In itself, or beside itself where it is the summary of a sweep."""
    for file in page.RECORDS.glob("*.json"):
        manifest = page.RECORDS / page.MANIFESTS / file.name
        found = json.loads((manifest if manifest.is_file() else file).read_text())
        assert {"git", "command", "cpu"} <= set(found.get("manifest", found)), file.name


@pytest.mark.parametrize("name", page.SECTIONS)
def test_a_section_without_a_record_says_so(name: str, tmp_path: Path) -> None:
    made = page.filled(text_with(name, "old figures 1.23\n"), tmp_path)
    assert page.NO_RECORD in made
    assert "1.23" not in made
    assert made.startswith("before\n")
    assert made.endswith("after\n")
    assert page.filled(made, tmp_path) == made, "making it again changes nothing"


def test_an_unknown_section_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        page.filled(text_with("nothing"), tmp_path)


DENSE: dict[str, Any] = {
    "settings": [
        {
            "dtype": "float32",
            "lengths": "equal",
            "contestants": {
                "cdbench dense": {"median_wall_s": 2.0, "tokens_per_s": 512.0},
                "generate": {
                    "median_wall_s": 2.5,
                    "tokens_per_s": 409.6,
                    "cdbench_over_it": {"estimate": 1.25, "low": 1.2, "high": 1.3, "n": 6},
                    "tokens": {"token_agreement": 0.995},
                },
            },
            "not_run": {"continuous batching": "does not run on a CPU: no kernel"},
        }
    ]
}


def test_a_figure_changed_by_hand_is_found(tmp_path: Path) -> None:
    (tmp_path / "dense.json").write_text(json.dumps(DENSE))
    target = tmp_path / "page.md"
    target.write_text(text_with("dense"))
    arguments = ["--page", str(target), "--records", str(tmp_path)]
    assert page.main([*arguments, "--check"]) == 1
    assert page.main(arguments) == 0
    made = target.read_text()
    for figure in ("1.25×", "[1.20, 1.30]", "99.5%", "no kernel", "float32, equal lengths"):
        assert figure in made
    assert page.main([*arguments, "--check"]) == 0
    target.write_text(made.replace("1.25×", "1.35×"))
    assert page.main([*arguments, "--check"]) == 1


def test_the_bench_set_is_shown_from_its_results(tmp_path: Path) -> None:
    (tmp_path / page.BENCH).mkdir()
    shutil.copy(RESULT, tmp_path / page.BENCH / "1-bench-ouro-float32.json")
    made = page.filled(text_with("bench"), tmp_path)
    result = json.loads(RESULT.read_text())
    assert "bench-ouro, float32" in made
    realised = result["bounds"]["cdb"]["flop_bound"]["realised"]["estimate"]
    assert f"{100 * realised:.1f}%" in made
    static = result["modes"]["static"]["metrics"]["ms_per_loop"]
    assert f"{static:.1f}" in made
    assert "fill and drain" in made
    assert "synthetic depths" in made


def sweep_with(tmp_path: Path, state: str = "finished", name: str = page.BENCH_SET) -> Path:
    """A sweep directory with one cell, whose result is the reference run."""
    sweep, cell = tmp_path / "sweep", tmp_path / "sweep" / "round-1" / "abc"
    cell.mkdir(parents=True)
    shutil.copy(RESULT, cell / "result.json")
    document = {
        "name": name,
        "verb": "run",
        "status": "complete",
        "seed": 0,
        "rounds": 1,
        "base": {},
        "varied": ["dtype"],
        "columns": [],
        "cells": [
            {
                "number": 3,
                "hash": "abc",
                "changes": {"dtype": "float32"},
                "rounds": [{"round": 1, "state": state, "directory": "round-1/abc"}],
            }
        ],
    }
    (sweep / "sweep.json").write_text(json.dumps(document))
    return sweep


def test_the_cells_of_a_sweep_are_kept(tmp_path: Path) -> None:
    records = tmp_path / "records"
    assert page.main(["--take", str(sweep_with(tmp_path)), "--records", str(records)]) == 0
    (kept,) = (records / page.BENCH).iterdir()
    assert kept.name == "3-bench-ouro-float32.json"
    assert kept.read_bytes() == RESULT.read_bytes()


def test_of_another_sweep_the_summary_is_kept_and_a_manifest(tmp_path: Path) -> None:
    sweep, records = sweep_with(tmp_path, name="bench.lag"), tmp_path / "records"
    assert page.take(sweep, records) == [
        records / "lag.json",
        records / page.MANIFESTS / "lag.json",
    ]
    assert (records / "lag.json").read_bytes() == (sweep / "sweep.json").read_bytes()
    kept = json.loads((records / page.MANIFESTS / "lag.json").read_text())
    assert kept == json.loads(RESULT.read_text())["manifest"]


def test_a_cell_that_has_not_finished_is_left_out(tmp_path: Path) -> None:
    for name in (page.BENCH_SET, "bench.lag"):
        sweep = sweep_with(tmp_path / name, "failed", name)
        assert page.take(sweep, tmp_path / "records") == []
    with pytest.raises(UsageError):
        page.take(tmp_path / "nothing", tmp_path)


def cells(**figures: tuple[float, float, float] | None) -> dict[str, Any]:
    """A sweep over minimums: name → estimate and ends of the figure."""
    keys = ("estimate", "low", "high")
    return {
        "cells": [
            {
                "changes": {"layers": "2-4-2", page.MINIMUM: name},
                "figures": {} if f is None else {page.DECODE: dict(zip(keys, f, strict=True), n=6)},
            }
            for name, f in figures.items()
        ]
    }


def test_the_best_fixed_minimum_is_compared_with_auto() -> None:
    """Half-widths of 3 and 4 in a thousand of a log make one of 5."""
    one = (1.4, 1.4, 1.4)
    two = (1.53, 1.53 * exp(-0.003), 1.53 * exp(0.003))
    auto = (1.5, 1.5 * exp(-0.004), 1.5 * exp(0.004))
    (found,) = best_over_auto(
        cells(one=one, two=two, auto=auto), page.MINIMUM, page.DECODE
    ).values()
    assert found is not None
    assert found.estimate == pytest.approx(1.02)
    assert [found.low, found.high] == pytest.approx([1.02 * exp(-0.005), 1.02 * exp(0.005)])


@pytest.mark.parametrize(
    "figures", [{"one": None, "auto": (1.5, 1.4, 1.6)}, {"one": (1.2, 1.1, 1.3)}]
)
def test_nothing_is_compared_where_a_cell_is_missing(figures: dict[str, Any]) -> None:
    found = best_over_auto(cells(**figures), page.MINIMUM, page.DECODE)
    assert found == {"layers=2-4-2": None}


def test_cells_that_were_measured_apart_are_pooled_as_one_ratio() -> None:
    """Half-widths of 3 and 4 in a thousand of a log make one of 5 of the sum: half for the mean."""
    one = (0.98, 0.98 * exp(-0.003), 0.98 * exp(0.003))
    two = (1.02, 1.02 * exp(-0.004), 1.02 * exp(0.004))
    found = over_all_cells(cells(one=one, two=two), page.DECODE)
    assert found is not None
    centre = (0.98 * 1.02) ** 0.5
    assert found.n == 2
    assert found.estimate == pytest.approx(centre)
    assert [found.low, found.high] == pytest.approx([centre * exp(-0.0025), centre * exp(0.0025)])


@pytest.mark.parametrize("missing", [None, (1.0, None, None)])
def test_nothing_is_pooled_where_a_cell_has_no_interval(missing: Any) -> None:
    assert over_all_cells(cells(one=(0.9, 0.8, 1.0), two=missing), page.DECODE) is None
    assert over_all_cells({"cells": []}, page.DECODE) is None


def test_what_a_switch_gains_is_the_ratio_of_two_cells() -> None:
    on, off = (1.1, 1.1 * exp(-0.003), 1.1 * exp(0.003)), (1.0, exp(-0.004), exp(0.004))
    document = cells(on=on, off=off)
    for cell, switch in zip(document["cells"], (True, False), strict=True):
        cell["changes"] = {"model": "configs/models/m", "dtype": "float32", "switch": switch}
    (found,) = gains(document, "switch", page.DECODE).items()
    assert found[0] == "m, float32"
    assert found[1] is not None
    assert found[1].estimate == pytest.approx(1.1)
    assert [found[1].low, found[1].high] == pytest.approx([1.1 * exp(-0.005), 1.1 * exp(0.005)])
    document["cells"].pop()
    assert gains(document, "switch", page.DECODE) == {"m, float32": None}

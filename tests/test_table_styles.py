"""Every style on hand-made runs: what its table says, what its caption says, what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdbench.errors import UsageError
from cdbench.render.export import FORMATS, export
from cdbench.render.styles import STYLES, make_tables
from cdbench.render.styles.points import Measured, read_points
from cdbench.render.styles.published import all_published
from cdbench.render.table import Cell, Table
from cdbench.schema import ModelFacts, Result
from tests.tabled import (
    CONFIG,
    INVALID,
    MODEL,
    answered_run,
    at_threshold,
    at_width,
    served_run,
    timed_run,
    written,
    written_sweep,
)


def speedups(path: Path) -> list[str]:
    return [written(path / "one", timed_run())]


def thresholds(path: Path) -> list[str]:
    results = [at_threshold(0.9, 3.0, 1.2), at_threshold(0.5, 1.6, 1.8, validity=INVALID)]
    changes = [{"exit": "cdf@0.9"}, {"exit": "cdf@0.5"}]
    return [written_sweep(path / "sweep", results, changes, varied=["exit"])]


def widths(path: Path) -> list[str]:
    results = [at_width(8, 1.2), at_width(32, 1.9)]
    changes = [{"engine.max_residents": 8}, {"engine.max_residents": 32}]
    return [written_sweep(path / "sweep", results, changes)]


def rates(path: Path) -> list[str]:
    results = [served_run(40), served_run(80)]
    changes = [{"workload.arrivals": f"open-loop:{rate}"} for rate in (40, 80)]
    highest = ["cdb: keeps up with 80 requests/s or more"]
    return [written_sweep(path / "sweep", results, changes, sustained=highest)]


def answers(path: Path) -> list[str]:
    return [written(path / "answers", answered_run())]


def ablated(path: Path) -> list[str]:
    engine = {**CONFIG["engine"], "coda_min_rows": 8}
    other = timed_run(config={**CONFIG, "engine": engine})
    return [written(path / "coda-1", timed_run()), written(path / "coda-8", other)]


MADE: dict[str, Callable[[Path], list[str]]] = {
    "speedup": speedups,
    "exit-sweep": thresholds,
    "width-sweep": widths,
    "serving": rates,
    "accuracy-by-depth": answers,
    "waterfall": speedups,
    "ablation": ablated,
}


def measured_for(style: str, path: Path) -> Measured:
    return read_points(MADE[style](path))


def made(style: str, *runs: str) -> Table:
    (table,) = make_tables(style, read_points(runs))
    return table


def column(table: Table, header: str) -> list[Cell]:
    """The cells under a header, which must be there once."""
    (at,) = [i for i, c in enumerate(table.columns) if c.full_title == header]
    return [row.cells[at] for row in table.rows]


def said(table: Table) -> str:
    return " ".join([*table.caption, *table.notes, *table.footnotes()])


def test_every_style_is_tried() -> None:
    assert set(MADE) == set(STYLES)


@pytest.mark.parametrize("style", MADE)
@pytest.mark.parametrize("name", FORMATS)
def test_every_style_is_written_in_every_format(style: str, name: str, tmp_path: Path) -> None:
    tables = make_tables(style, measured_for(style, tmp_path))
    assert all(table.rows for table in tables)
    text = export(tables, name)
    assert "demo-ouro" in text
    assert "float32" in text
    assert "Some CPU 2.0GHz" in text


# --- speed-ups ---


def test_speed_ups_have_their_intervals_bounds_and_shares(tmp_path: Path) -> None:
    table = made("speedup", *speedups(tmp_path))
    assert [cell.value for cell in column(table, "mode")] == ["lockstep", "cdb"]
    cdb = column(table, "end to end, over static")[1]
    assert (cdb.value, cdb.low, cdb.high) == pytest.approx((1.8, 1.75, 1.85), abs=0.002)
    assert cdb.n == 6
    assert column(table, "decoding, over static")[1].value == pytest.approx(2.0)
    assert [cell.value for cell in column(table, "decoding, flop_bound")] == [2.5, 2.5]
    assert column(table, "decoding, realised flop")[1].value == 0.8
    assert column(table, "decoding, realised time")[1].value == pytest.approx(0.9)
    lockstep = column(table, "end to end, over lockstep")
    assert [cell.value for cell in lockstep] == ["-", pytest.approx(1.8 / 1.3)]


def test_the_best_is_marked_where_intervals_are_apart_and_only_there(tmp_path: Path) -> None:
    table = made("speedup", *speedups(tmp_path))
    assert [c.best for c in column(table, "end to end, over static")] == [False, True]
    # One number alone is the best of nothing.
    assert [c.best for c in column(table, "end to end, over dense:small")] == [False, False]
    assert not any(c.best for c in column(table, "decoding, flop_bound"))


def test_a_caption_says_model_hardware_work_scope_and_n(tmp_path: Path) -> None:
    words = said(made("speedup", *speedups(tmp_path)))
    for part in (
        "Model: demo-ouro",
        "loops R: 4",
        "exit rule: cdf@0.5;",
        "hardware: cpu, Some CPU 2.0GHz, 1 thread;",
        "dtype: float32",
        "KV layout: per-loop",
        "width: 16",
        "requests: 32; mean prompt tokens: 20; mean output tokens: 16",
        "arrivals: all-at-once",
        "blocks: 6",
        "end to end with prompts and first tokens, decoding of later tokens alone",
        "Replayed in every timed mode: tokens, lengths, depths of one recorded run.",
        "No accuracy: the runs have no live pass",
    ):
        assert part in words
    assert "varies" not in words


def test_what_differs_between_runs_is_said_to_and_becomes_a_column(tmp_path: Path) -> None:
    other = MODEL.model_copy(update={"kv_layout": "shared", "dtype": "bfloat16"})
    config = {**CONFIG, "dtype": "bfloat16", "kv": {"layout": "shared"}}
    runs = [
        written(tmp_path / "a", timed_run()),
        written(tmp_path / "b", timed_run(model=other, config=config)),
    ]
    table = made("speedup", *runs)
    assert "dtype: varies; KV layout: varies" in said(table)
    assert [cell.value for cell in column(table, "KV layout")] == ["per-loop"] * 2 + ["shared"] * 2
    assert [group for group, _ in table.groups()] == ["a", "b"]
    titles = [c.full_title for c in table.columns]
    assert titles.count("dtype") == 1
    assert "layout" not in titles


def test_a_key_that_no_fact_speaks_of_becomes_a_column_too(tmp_path: Path) -> None:
    table = made("speedup", *ablated(tmp_path))
    assert [cell.value for cell in column(table, "coda_min_rows")] == ["1", "1", "8", "8"]


def test_a_key_that_follows_from_another_is_no_column(tmp_path: Path) -> None:
    """Residents were set; what a default makes of them was not."""
    runs = []
    for name, residents in (("a", 8), ("b", 32)):
        found = at_width(residents, 1.5)
        engine = {**CONFIG["engine"], "max_residents": residents, "min_free": residents // 8}
        given = {"engine": {"max_residents": residents}}
        manifest = found.manifest.model_copy(update={"given": given})
        changes = {"manifest": manifest, "config": {**CONFIG, "engine": engine}}
        runs.append(written(tmp_path / name, found.model_copy(update=changes)))
    titles = [c.name for c in made("ablation", *runs).columns]
    assert "engine.max_residents" in titles
    assert "engine.min_free" not in titles


def test_a_key_that_came_to_the_same_is_no_column(tmp_path: Path) -> None:
    """``auto`` and ``float32`` are float32 on this machine."""
    config = {**CONFIG, "dtype": "auto"}
    runs = [written(tmp_path / "a", timed_run()), written(tmp_path / "b", timed_run(config=config))]
    table = made("speedup", *runs)
    assert "dtype: float32" in said(table)
    assert "dtype" not in [c.full_title for c in table.columns]


def test_runs_by_two_versions_of_the_code_are_said_to_be(tmp_path: Path) -> None:
    other = timed_run().manifest.model_copy(update={"cdbench_version": "0.2.0"})
    runs = [
        written(tmp_path / "a", timed_run()),
        written(tmp_path / "b", timed_run(manifest=other)),
    ]
    assert "Runs were measured by 2 versions of the code" in said(made("speedup", *runs))


# --- marks ---


def test_random_weights_and_synthetic_depths_are_marked_with_how_many(tmp_path: Path) -> None:
    random = MODEL.model_copy(update={"random_weights_seed": 0})
    work = timed_run().workload.model_copy(update={"synthetic": "half of the tokens at depth 1"})
    strange = timed_run(model=random, workload=work)
    alone = made("speedup", written(tmp_path / "a", strange))
    assert "RANDOM WEIGHTS: timings only" in said(alone)
    assert "SYNTHETIC depths: half of the tokens at depth 1." in said(alone)
    assert "demo-ouro (random weights, seed 0)" in said(alone)
    both = made("speedup", str(tmp_path / "a"), written(tmp_path / "b", timed_run()))
    assert "RANDOM WEIGHTS (1 of 2 runs)" in said(both)


def test_invalid_numbers_have_daggers_and_their_run_is_named_with_its_reason(
    tmp_path: Path,
) -> None:
    table = made("exit-sweep", *thresholds(tmp_path))
    speeds = column(table, "end to end, over static")
    assert [cell.invalid for cell in speeds] == [False, True]
    assert speeds[1].formatted().value == "1.80×†"
    assert [cell.invalid for cell in column(table, "threshold")] == [False, False]
    words = said(table)
    assert "INVALID (1 of 2 runs): quote no number with a dagger" in words
    assert "† cell 2 is INVALID: other processes took 44% of the cores (and 1 more)." in words


def test_an_invalid_run_makes_nothing_bold(tmp_path: Path) -> None:
    table = made("speedup", written(tmp_path / "a", timed_run(validity=INVALID)))
    assert all(cell.invalid for cell in column(table, "decoding, over static"))
    assert not any(cell.best for row in table.rows for cell in row.cells)


def test_an_interrupted_run_is_marked(tmp_path: Path) -> None:
    found = timed_run(status="interrupted", validity=INVALID)
    table = made("speedup", written(tmp_path / "a", found))
    assert "INTERRUPTED" in said(table)


# --- sweeps ---


def test_thresholds_are_rows_and_none_is_best(tmp_path: Path) -> None:
    table = made("exit-sweep", *thresholds(tmp_path))
    assert [cell.value for cell in column(table, "threshold")] == [0.9, 0.5]
    assert [cell.value for cell in column(table, "mean depth")] == [3.0, 1.6]
    assert [cell.value for cell in column(table, "end to end, over static")] == pytest.approx(
        [1.2, 1.8]
    )
    assert not any(cell.best for row in table.rows for cell in row.cells)
    assert "exit rule: varies" in said(table)
    assert table.title == "cdb by exit threshold"


def test_accuracy_stands_beside_the_thresholds_where_it_was_asked(tmp_path: Path) -> None:
    found = answered_run()
    table = made("exit-sweep", written(tmp_path / "a", found))
    (rate,) = column(table, "accuracy")
    assert rate.value == 0.94
    assert column(table, "accuracy verdict")[0].value == "cannot tell from static"
    assert not any(c.group == "end to end" for c in table.columns)
    assert "blocks" not in said(table)


def test_widths_are_rows_and_no_run_is_best_among_others(tmp_path: Path) -> None:
    table = made("width-sweep", *widths(tmp_path))
    assert [cell.value for cell in column(table, "width")] == [8, 32]
    # Intervals are apart, and still do not hold how far two runs of one thing lie apart.
    one, other = column(table, "end to end, over static")
    assert one.high is not None
    assert other.low is not None
    assert one.high < other.low
    assert not any(cell.best for row in table.rows for cell in row.cells)
    assert column(table, "ms per loop, static")[0].value == 1.0
    assert column(table, "occupancy")[0].value == 0.9
    assert "width: varies" in said(table)


def test_of_a_sweep_without_its_cells_the_kept_figures_show(tmp_path: Path) -> None:
    (sweep,) = thresholds(tmp_path)
    alone = tmp_path / "alone" / "sweep.json"
    alone.parent.mkdir()
    alone.write_bytes((Path(sweep) / "sweep.json").read_bytes())
    table = made("ablation", str(alone))
    assert [cell.value for cell in column(table, "cdb/static")] == pytest.approx([1.2, 1.8])
    assert [cell.value for cell in column(table, "threshold")] == ["0.9", "0.5"]
    assert "hardware: not recorded" in said(table)
    shown = made("exit-sweep", str(alone))
    assert [cell.value for cell in column(shown, "mean depth")] == [3.0, 1.6]
    assert [cell.value for cell in column(shown, "exit rule")] == ["cdf@0.9", "cdf@0.5"]
    assert [cell.invalid for cell in column(shown, "mean depth")] == [False, True]
    with pytest.raises(UsageError, match=r"result.json is not there.*cdbench"):
        made("serving", str(alone))


def test_cells_that_have_not_finished_are_left_out_and_said_to_be(tmp_path: Path) -> None:
    (sweep,) = widths(tmp_path)
    file = Path(sweep) / "sweep.json"
    file.write_text(file.read_text().replace('"state": "finished"', '"state": "pending"', 1))
    table = made("width-sweep", sweep)
    assert len(table.rows) == 1
    assert "1 of 2 cells of made have not finished." in said(table)


# --- serving ---


def test_rates_are_groups_with_percentiles_of_every_mode(tmp_path: Path) -> None:
    table = made("serving", *rates(tmp_path))
    groups = [group for group, _ in table.groups()]
    assert groups == ["arrivals open-loop:40", "arrivals open-loop:80"]
    assert column(table, "ttft, p90")[0].value == pytest.approx(0.3)
    assert not any(c.title == "p99" for c in table.columns)
    assert [cell.best for cell in column(table, "goodput")] == [False, True] * 2
    assert [cell.value for cell in column(table, "keeps up")] == ["no", "yes"] * 2
    words = said(table)
    assert "Goodput: finished requests per second with ttft ≤ 1 s and tpot ≤ 0.05 s." in words
    assert "Highest sustained rates: cdb: keeps up with 80 requests/s or more." in words


# --- accuracy ---


def test_answers_by_depth_with_verdicts_task_by_task(tmp_path: Path) -> None:
    table = made("accuracy-by-depth", *answers(tmp_path))
    assert [cell.value for cell in column(table, "mode")] == ["static@2", "static", "cdb"]
    assert [cell.value for cell in column(table, "most loops")] == [2, 4, 4]
    assert [cell.value for cell in column(table, "mean depth")] == [2.0, 4.0, 1.75]
    assert [cell.value for cell in column(table, "accuracy verdict")] == [
        "worse than static",
        "baseline",
        "cannot tell from static",
    ]
    low, full, _ = column(table, "by task, sum_1")
    assert (low.value, full.value) == (0.6, 0.95)
    assert full.low == pytest.approx(0.8883, abs=1e-4)  # Wilson of 95 of 100
    assert low.note is not None
    assert "worse than static on this task" in low.note
    assert "blocks" not in said(table)


def test_fixed_depths_that_answer_alike_under_two_thresholds_show_once(tmp_path: Path) -> None:
    again = answered_run()
    cdb = again.modes["cdb"]
    loose = cdb.model_copy(update={"exit": cdb.exit.model_copy(update={"threshold": 0.2})})
    other = again.model_copy(update={"modes": {**again.modes, "cdb": loose}})
    table = made("accuracy-by-depth", *answers(tmp_path), written(tmp_path / "loose", other))
    modes = [cell.value for cell in column(table, "mode")]
    assert modes == ["static@2", "static", "cdb", "cdb"]
    assert "Fixed depths that answer alike in several runs show once" in said(table)


def ouro(**model: Any) -> Result:
    """``answered_run`` as if its second task were one that others have figures of."""
    found = answered_run()
    assert found.accuracy is not None
    modes = {
        label: mode.model_copy(update={"tasks": {"gsm8k": mode.tasks["sum_1"]}})
        for label, mode in found.accuracy.modes.items()
    }
    facts = ModelFacts(**{**MODEL.model_dump(), "name": "Ouro-1.4B", **model})
    return found.model_copy(
        update={
            "model": facts,
            "accuracy": found.accuracy.model_copy(update={"modes": modes}),
            "config": {**CONFIG, "model": "checkpoints/Ouro-1.4B/"},
        }
    )


def test_published_figures_stand_beside_ours_and_name_who_published_them(tmp_path: Path) -> None:
    table = made("accuracy-by-depth", written(tmp_path / "a", ouro()))
    shown = column(table, "gsm8k, published")
    assert [cell.value for cell in shown] == ["-", pytest.approx(0.7892), "-"]
    assert shown[1].note is not None
    assert "published, not measured here: Ouro report, arXiv 2510.25741" in shown[1].note
    assert [cell.value for cell in column(table, "gsm8k, here")] == [0.6, 0.95, 0.94]
    shared = made("accuracy-by-depth", written(tmp_path / "b", ouro(kv_layout="shared")))
    assert column(shared, "gsm8k, published")[1].value == pytest.approx(0.7885)


@pytest.mark.parametrize("change", [{"random_weights_seed": 1}, {"kv_layout": "slots:3"}])
def test_other_weights_or_layouts_have_no_published_figure(
    change: dict[str, Any], tmp_path: Path
) -> None:
    table = made("accuracy-by-depth", written(tmp_path / "a", ouro(**change)))
    assert [c.full_title for c in table.columns if "published" in c.full_title] == []


def test_published_figures_are_shares_that_name_their_source() -> None:
    assert len(all_published()) >= 9
    for figure in all_published():
        assert "arXiv" in figure.by
        assert all(0 <= share <= 100 for share in figure.percent.values())
        assert list(figure.percent) == sorted(figure.percent)


# --- waterfall and ablation ---


def test_a_waterfall_keeps_its_rows_and_gets_caption_and_daggers(tmp_path: Path) -> None:
    table = made("waterfall", written(tmp_path / "a", timed_run(validity=INVALID)))
    assert table.rows[0].cells[0].value == "loops saved"
    assert table.rows[-1].cells[1].formatted().value == "1.80×†"
    assert "Model: demo-ouro" in said(table)
    assert "† a is INVALID" in said(table)


def test_an_ablation_has_a_row_for_each_setting(tmp_path: Path) -> None:
    runs = ablated(tmp_path)
    table = made("ablation", *runs)
    assert table.title == "Ablation of engine.coda_min_rows"
    assert [cell.value for cell in column(table, "coda_min_rows")] == ["1", "8"]
    assert [cell.value for cell in column(table, "cdb/static")] == pytest.approx([1.8, 1.8])
    assert [c.name for c in table.columns][:2] == ["", "engine.coda_min_rows"]


def test_an_ablation_of_the_exit_rule_marks_nothing_best(tmp_path: Path) -> None:
    runs = [
        written(tmp_path / "a", at_threshold(0.9, 3.0, 1.2)),
        written(tmp_path / "b", at_threshold(0.5, 1.6, 1.8)),
    ]
    table = made("ablation", *runs)
    assert [cell.value for cell in column(table, "threshold")] == ["0.9", "0.5"]
    assert not any(cell.best for row in table.rows for cell in row.cells)


def test_rows_of_two_runs_are_never_best_even_at_an_open_gap(tmp_path: Path) -> None:
    """Keys that change neither work nor answers: the gap may be the machine's all the same."""
    engine = {**CONFIG["engine"], "coda_min_rows": 8}
    slow, fast = at_width(16, 1.2), at_width(16, 1.9)
    other = fast.model_copy(update={"config": {**fast.config, "engine": engine}})
    table = made("ablation", written(tmp_path / "a", slow), written(tmp_path / "b", other))
    assert [c.value for c in column(table, "cdb/static")] == pytest.approx([1.2, 1.9])
    assert not any(cell.best for row in table.rows for cell in row.cells)


def test_accuracy_of_two_runs_is_not_best_without_pairing(tmp_path: Path) -> None:
    one = written(tmp_path / "a", answered_run())
    alone = made("accuracy-by-depth", one)
    worst = min(column(alone, "accuracy"), key=lambda cell: float(cell.value or 0))
    assert not worst.best
    second = answered_run(config={**CONFIG, "seed": 2})
    two = made("accuracy-by-depth", one, written(tmp_path / "b", second))
    assert not any(cell.best for row in two.rows for cell in row.cells)


def test_an_exit_key_that_nobody_set_shows_as_it_ran(tmp_path: Path) -> None:
    unset = {**CONFIG["exit"], "rule": None, "threshold": None}
    config = {**CONFIG, "exit": unset, "engine": {**CONFIG["engine"], "coda_min_rows": 8}}
    runs = [
        written(tmp_path / "card", timed_run(config=config)),
        written(tmp_path / "named", timed_run()),
    ]
    table = made("ablation", *runs)
    # Both ran cdf@0.5, so that the exit is nothing that they differ in.
    assert table.title == "Ablation of engine.coda_min_rows"
    other = written(tmp_path / "other", at_threshold(0.9, 3.0, 1.2))
    shown = made("ablation", runs[0], other)
    assert [c.value for c in column(shown, "threshold")] == ["0.5", "0.9"]
    assert "rule" not in [c.full_title for c in shown.columns]


# --- refusals ---


@pytest.mark.parametrize(
    ("style", "run", "words"),
    [
        ("speedup", answered_run(), "no speed-up of an adaptive mode.*cdbench run --work equal"),
        ("width-sweep", answered_run(), "no adaptive mode that was timed.*cdbench sweep"),
        ("serving", timed_run(), "did not arrive by themselves.*open-loop"),
        ("accuracy-by-depth", timed_run(), "no accuracy.*cdbench run --work live"),
        ("waterfall", served_run(), "no waterfall.*stages=measure"),
        ("ablation", timed_run(), "is one run; name two or more"),
    ],
)
def test_a_style_without_data_names_what_is_missing_and_the_command(
    style: str, run: Result, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        made(style, written(tmp_path / "a", run))
    assert "\n" not in str(refused.value)


def test_an_exit_sweep_needs_an_adaptive_mode(tmp_path: Path) -> None:
    found = timed_run()
    modes = {"static": found.modes["static"]}
    with pytest.raises(UsageError, match="no adaptive mode with a mean depth"):
        made("exit-sweep", written(tmp_path / "a", timed_run(modes=modes, comparisons=[])))


def test_runs_alike_or_unlike_in_everything_are_no_ablation(tmp_path: Path) -> None:
    runs = [written(tmp_path / name, timed_run()) for name in ("a", "b")]
    with pytest.raises(UsageError, match="the same configuration"):
        made("ablation", *runs)
    other = {**CONFIG, **{f"key{n}": n for n in range(6)}}
    runs.append(written(tmp_path / "c", timed_run(config=other)))
    with pytest.raises(UsageError, match="differ in 6 keys"):
        made("ablation", *runs)


def test_a_run_named_twice_is_refused(tmp_path: Path) -> None:
    run = written(tmp_path / "a", timed_run())
    with pytest.raises(UsageError, match="named twice"):
        read_points([run, f"{run}/"])


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [written(tmp_path / place / "same", timed_run()) for place in ("x", "y")]
    names = [point.name for point in read_points(runs).points]
    assert len(set(names)) == 2

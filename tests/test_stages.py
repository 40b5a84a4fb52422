"""Stage curves: what is launched for them, what is made of it, floors, keys, files, the command."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cdbench.bench.plan import Plan, make_plan
from cdbench.cli.main import main
from cdbench.config import load_config
from cdbench.errors import UsageError
from cdbench.render.stage_plot import draw, is_plot
from cdbench.render.stage_table import stage_table
from cdbench.runtime.core import ExitPolicy, LaunchRecord, Stage
from cdbench.schema.files import read_document, write_document
from cdbench.schema.stages import (
    StageCurves,
    StageFloors,
    StagePassPoint,
    StagePassRecord,
    StagePoint,
    StageWork,
)
from cdbench.stages import floors as floors_module
from cdbench.stages import meter
from cdbench.stages.cells import (
    Cell,
    CellKind,
    Company,
    Launches,
    Streams,
    decode_requests,
    prefill_requests,
    read_launches,
)
from cdbench.stages.floors import stage_work
from cdbench.stages.grid import (
    checked_contexts,
    chunk_sizes,
    grid_contexts,
    later_contexts,
    widths,
)
from cdbench.stages.key import differences, stage_key
from cdbench.stages.meter import StageMeter, affordable_positions, affordable_width, pass_order
from cdbench.stages.points import MIN_PASSES, REDRAWN, redrawn_curves
from cdbench.stages.saved import read_curves, uncovered
from cdbench.workloads.resolve import free_bytes
from tests import recorded, staged, tiny

TEXTS = [[5, 7, 9, 11, 13], [2, 3, 4]]


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floors are enough to divide by: no test looks at how fast this machine is, or collects."""
    monkeypatch.setattr("gc.collect", lambda: 0)
    monkeypatch.setattr(floors_module, "ARRAY_BYTES", {"cpu": 1 << 12})
    monkeypatch.setattr(floors_module, "MATRIX_SIZE", {"cpu": 16})


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A workload file for the fixtures' vocabularies."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = [{"prompt": [3 + i, 5, 7, 2 * i], "max_new_tokens": 9} for i in range(4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def plan(prompts: str, exit_rule: str = "cdf@0.5", **changes: Any) -> Plan:
    keys = {
        "model": str(tiny.FIXTURE),
        "dense": "",
        "modes": "static,cdb",
        "work": "equal",
        "workload.source": prompts,
        "exit.rule": exit_rule,
        "engine.max_residents": 3,
        "engine.prefill_tokens": 16,
        "device": "cpu",
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    return make_plan(load_config(None, (), keys))


class SteppingClock(tiny.StepClock):
    """Each reading is ``step_s`` later than the last, so every launch takes just that."""

    step_s = 1.0

    def now(self) -> float:
        self.time_s += self.step_s
        return self.time_s


# The grid.


def test_widths_double_and_end_at_three_quarters_and_the_width_itself() -> None:
    assert widths(1) == [1]
    assert widths(2) == [1, 2]
    assert widths(8) == [1, 2, 4, 6, 8]
    assert widths(12) == [1, 2, 4, 8, 9, 12]


def test_chunks_halve_and_never_hold_more_than_the_residents_can_bring() -> None:
    assert chunk_sizes(512, residents=64, max_positions=256) == [64, 128, 256, 512]
    assert chunk_sizes(512, residents=1, max_positions=100) == [12, 25, 50, 100]
    assert chunk_sizes(3, residents=8, max_positions=100) == [1, 3]


def test_contexts_of_later_tokens_by_hand() -> None:
    assert later_contexts([(10, 2), (4, 5), (50, 1)]) == (5, 6, 7, 8, 11)
    assert grid_contexts((5, 6, 70, 80, 110), max_positions=200) == (5, 70, 110)
    # A cell needs a prompt, and a position after its context.
    assert grid_contexts((2, 2, 50, 99, 99), max_positions=99) == (3, 50, 98)
    with pytest.raises(UsageError, match="no request has a later token"):
        later_contexts([(4, 1)])


@pytest.mark.parametrize(
    ("later", "measured"),
    [
        ((5, 6, 8), (8,)),
        ((5, 5, 20), (20,)),
        ((5, 5, 21), (5, 21)),
        ((5, 18, 31), (5, 31)),
        ((5, 50, 60), (5, 60)),
        ((5, 21, 37), (5, 21, 37)),
    ],
)
def test_contexts_near_a_larger_one_are_measured_with_it(
    later: tuple[int, ...], measured: tuple[int, ...]
) -> None:
    assert grid_contexts(later, max_positions=99) == measured


def test_contexts_that_do_not_fit_the_model_are_refused(prompts: str) -> None:
    made = plan(prompts)
    assert checked_contexts(made, [40, 8, 8]) == (8, 40)
    for wrong in (2, 512):
        with pytest.raises(UsageError, match=f"contexts: {wrong} cannot be measured.*3 to 511"):
            checked_contexts(made, [8, wrong])
    with pytest.raises(UsageError, match="none given"):
        checked_contexts(made, [])


def test_streams_are_the_text_and_none_begins_as_another() -> None:
    streams = Streams(TEXTS, vocab_size=20)
    assert streams.tokens(1, 8) == [1, 0, 2, 3, 4, 5, 7, 9]
    assert streams.tokens(2, 5) == [2, 0, 5, 7, 9], "text begins anew"
    assert streams.tokens(7, 1) == [7]
    assert len({tuple(streams.tokens(i, 2)) for i in range(400)}) == 400


def test_a_chunk_is_shared_out_evenly_among_prompts_of_the_workloads_length() -> None:
    def lengths(rows: int, context: int, most: int) -> list[int]:
        cell = Cell("prefill", rows, context)
        return [len(r.prompt) for r in prefill_requests(cell, Streams(TEXTS, 20), most)]

    assert lengths(16, 5, most=9) == [4, 4, 4, 4]
    assert lengths(10, 4, most=9) == [4, 3, 3]
    assert lengths(16, 4, most=3) == [6, 5, 5]
    assert lengths(3, 100, most=3) == [3]


# What a cell launches.


def test_rows_are_equal_or_as_ragged_as_the_workload_below_the_longest() -> None:
    equal, ragged = Company(4, 99), Company(4, 99, contexts=(2, 10, 20, 30, 40, 50))
    assert equal.row_contexts(Cell("plain", 3, 40)) == [40, 40, 40]
    # Below 40 lie 2, 10, 20, 30 and 40 itself; the quarter and three quarters of them, then 40.
    assert ragged.row_contexts(Cell("plain", 3, 40)) == [10, 30, 40]
    assert ragged.row_contexts(Cell("plain", 1, 40)) == [40]
    assert ragged.row_contexts(Cell("plain", 2, 4)) == [3, 4], "a prompt has a token or more"
    assert ragged.row_contexts(Cell("plain", 2, 1)) == [1, 1], "nothing lies below"


def test_scripted_depths_are_the_workloads_and_add_up_to_the_same_for_every_row() -> None:
    cell = Cell("with_exit", 8, 40)
    recorded = Company(4, 99, depths=(1, 1, 3))
    scripts = [recorded.script(cell, row) for row in range(50)]
    assert {sum(script[:-2]) for script in scripts} == {3 * 4}
    assert {tuple(script[-2:]) for script in scripts} == {(1, 1)}, "all rows leave at once"
    # Only what is left before them may be another depth.
    assert {depth for script in scripts for depth in script[:-3]} == {1, 3}
    assert scripts == [recorded.script(cell, row) for row in range(50)], "the same in every pass"
    mixed = {d for row in range(50) for d in Company(4, 99).script(cell, row)}
    assert mixed == {1, 2, 3, 4}


def test_a_long_context_leaves_room_for_the_tokens_that_follow() -> None:
    company = Company(4, 50, contexts=(20, 30, 49), depths=(1,))
    requests = decode_requests(
        Cell("with_exit", 3, 49), Streams(TEXTS, 20), company, ExitPolicy("cdf", 0.5)
    )
    assert [len(r.force or ()) for r in requests] == [15] * 3
    assert [r.positions for r in requests] == [27, 37, 50]


@pytest.mark.parametrize("model", [tiny.FIXTURE, tiny.HUGINN_FIXTURE])
@pytest.mark.parametrize("rule", ["latent-diff@0.1", "kl@0.01"])
def test_a_cell_launches_all_its_rows_at_its_context(model: Path, rule: str, prompts: str) -> None:
    made = plan(prompts, rule, model=str(model), exit__max_loops=3)
    meter = StageMeter(made, [20], TEXTS, width=2)
    loops, reads_out = meter.plan.max_loops, rule.startswith("kl")
    for cell in meter.cells:
        for _ in range(2):  # from the prompts themselves, and from their cached prefixes
            records = meter._instruments[cell.kind].run(meter._requests(cell))
        if cell.kind == "prefill":
            assert not [r for r in records if r.decode_rows]
            chunks = [r.prefill_rows for r in records if r.stage is Stage.CORE]
            assert chunks == [cell.rows] * loops
            continue
        decode = [r for r in records if r.decode_rows]
        core = [r for r in decode if r.stage is Stage.CORE]
        shared = 0 if cell.kind == "plain" else 2
        assert [r.decode_rows for r in core] == [cell.rows] * (3 * loops + shared)
        # A prompt longer than a chunk runs alone; all of it but the last token was found cached.
        assert sum(r.prefill_rows for r in records if r.stage is Stage.CORE) == cell.rows * loops
        codas = [r.decode_rows for r in decode if r.stage is Stage.CODA]
        preludes = [r.decode_rows for r in decode if r.stage is Stage.PRELUDE]
        if cell.kind == "plain":
            assert [r.context for r in core] == [c for c in (19, 20, 21) for _ in range(loops)]
            assert codas == [cell.rows] * 3
            assert preludes == [*(1 for _ in range(cell.rows)), cell.rows, cell.rows]
        else:
            assert {r.context - 20 for r in core} <= set(range(-6, 7))
            assert preludes[-2:] == [cell.rows] * 2
            mixed = {
                len(set([] if r.decode_loops is None else r.decode_loops.tolist())) for r in core
            }
            assert mixed == ({1} if cell.rows == 1 else {1, 2})
            if reads_out:
                assert codas == [cell.rows] * (3 * loops + 2)
            else:
                assert sum(codas) > 5 * cell.rows
                assert codas[-3:] == [cell.rows] * 3


def test_an_engine_with_little_memory_and_a_wide_coda_still_fills_its_cells(prompts: str) -> None:
    pressed = plan(
        prompts, kv__budget_bytes=100_000, engine__coda_min_rows=3, kv__layout="first-shared"
    )
    meter = StageMeter(pressed, [20], TEXTS, width=4)
    meter.one_pass()
    rows = {p.rows for p in meter.curves().points if p.stage == "core"}
    assert rows == {1, 2, 3, 4}


# What is made of the launches.


def record(stage: Stage, rows: int, took_s: float, prefill: int = 0) -> LaunchRecord:
    return LaunchRecord(stage, rows, prefill, None, 9, 4, 0.0, took_s)


def test_launches_of_a_cell_are_averaged_by_stage_without_those_held_up() -> None:
    core = [record(Stage.CORE, 4, t) for t in (1.0, 2.0, 3.0, 60.0)]  # median 2.5, limit 7.5
    first, fewer = record(Stage.PRELUDE, 4, 40.0), record(Stage.PRELUDE, 3, 50.0)
    prelude = record(Stage.PRELUDE, 4, 0.5)
    prompt = record(Stage.CORE, 0, 40.0, prefill=7)
    # A prelude right after the prompts has no token before it whose slots it would settle.
    records = [prompt, first, *core, fewer, prelude]
    assert list(read_launches(Cell("plain", 4, 9), records)) == [
        Launches("prelude", 0.5, 1),
        Launches("core", 2.0, 4),
    ]
    assert list(read_launches(Cell("with_exit", 4, 9), records)) == [
        Launches("prelude_with_exit", 0.5, 1),
        Launches("core_with_exit", 2.0, 4),
    ]
    assert list(read_launches(Cell("prefill", 7, 9), records)) == [Launches("prefill", 40.0, 1)]


def test_a_point_is_the_quartile_of_its_passes_with_the_fastest_and_the_slowest(
    prompts: str,
) -> None:
    clock = SteppingClock()
    meter = StageMeter(plan(prompts), [8, 20], TEXTS, width=2, clock=clock)
    with pytest.raises(ValueError, match="no pass"):
        meter.curves()
    for step_s in (4.0, 1.0, 2.0):
        clock.step_s = step_s
        meter.one_pass()
    document = meter.curves()
    loops = 4
    for point in document.points:
        # Prefill: a prelude, the loops, and the readout of the first tokens.
        unit = loops + 2 if point.stage == "prefill" else 1
        # Of 1, 2 and 4 the lower quartile lies half way from the first to the second.
        assert (point.low_s, point.time_s, point.high_s) == (unit, 1.5 * unit, 4 * unit)
        assert point.passes == 3
    launches = {p.stage: p.launches for p in document.points if p.rows == 2}
    assert launches["core"] == 3 * 3 * loops
    assert launches["core_with_exit"] == 3 * (3 * loops + 2)
    assert (launches["prelude"], launches["coda"]) == (3 * 2, 3 * 3)
    assert launches["prelude_with_exit"] >= 3 * 2
    assert launches["coda_with_exit"] >= 3 * 3
    assert document.passes == 3
    assert document.contexts == [8, 20]


def test_a_pass_that_is_broken_off_leaves_nothing_and_a_whole_one_its_means(
    prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = StageMeter(plan(prompts), [8], TEXTS, width=1, clock=SteppingClock())
    meter.one_pass()
    before, timed = meter.curves().points, 0
    one_cell = meter._time

    def breaks_off(cell: Cell, keep: bool) -> None:
        nonlocal timed
        timed += 1
        if timed > 2:
            raise KeyboardInterrupt
        one_cell(cell, keep)

    with monkeypatch.context() as patched:
        patched.setattr(meter, "_time", breaks_off)
        with pytest.raises(KeyboardInterrupt):
            meter.one_pass()
    assert (meter.passes, meter.curves().points) == (1, before)
    meter.one_pass()
    last = {(p.stage, p.rows, p.context): p.launches for p in meter.kept[-1].points}
    assert (meter.kept[-1].number, len(last)) == (1, len(before))
    assert all(p.launches == 2 * last[p.stage, p.rows, p.context] for p in meter.curves().points)


EVERY_STAGE = [
    "prelude",
    "prelude_with_exit",
    "core",
    "core_with_exit",
    "coda",
    "coda_with_exit",
    "prefill",
]


@pytest.mark.parametrize(
    ("rule", "stages"),
    [
        ("cdf@0.5", [*EVERY_STAGE]),
        ("kl@0.01", [*EVERY_STAGE]),
        ("none", ["prelude", "core", "coda", "prefill"]),
        ("fixed:2", ["prelude", "core", "coda", "prefill"]),
    ],
)
def test_stages_that_the_rule_costs_nothing_in_are_not_measured_again(
    rule: str, stages: list[str], prompts: str
) -> None:
    meter = StageMeter(plan(prompts, rule), [8], TEXTS)
    meter.one_pass()
    document = meter.curves()
    curves = document.curves()
    assert list(curves.stages) == stages
    assert Counter(p.stage for p in document.points) == {
        stage: 4 if stage == "prefill" else 3 for stage in stages
    }
    assert curves.widest("core_with_exit") == curves.widest("coda_with_exit") == 3
    assert curves.prefill_token_s(16) > 0


def test_the_order_of_a_pass_is_drawn_anew_and_repeats_with_the_seed(
    prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def orders(seed: int) -> list[list[Cell]]:
        meter, seen = StageMeter(plan(prompts), [8, 20], TEXTS, seed=seed), []
        monkeypatch.setattr(meter, "_time", lambda cell, keep: seen.append(cell))
        meter.one_pass()
        meter.one_pass()
        size = len(meter.cells)
        return [seen[size : 2 * size], seen[2 * size :]]

    first, second = orders(0)
    assert first != second
    assert sorted(map(str, first)) == sorted(map(str, second))
    assert orders(0) == [first, second]
    assert orders(1) != [first, second]


def test_a_launch_with_and_without_the_rule_is_timed_one_after_the_other() -> None:
    kinds: tuple[CellKind, ...] = ("plain", "with_exit")
    cells = [Cell(k, rows, context) for k in kinds for rows in (1, 2, 3) for context in (8, 20)]
    prompts = [Cell("prefill", rows, 8) for rows in (1, 2)]
    orders = [pass_order([*cells, *prompts], random.Random(seed)) for seed in range(8)]
    for order in orders:
        assert sorted(map(str, order)) == sorted(map(str, [*cells, *prompts]))
        decoding = [cell for cell in order if cell.kind != "prefill"]
        for one, other in zip(decoding[::2], decoding[1::2], strict=True):
            assert (one.rows, one.context) == (other.rows, other.context)
            assert {one.kind, other.kind} == set(kinds)
    assert len({order[0].kind for order in orders}) > 1, "neither of the two always comes first"


def test_random_states_are_measured_without_cached_prefixes(prompts: str) -> None:
    made = plan(prompts, "none", model=str(tiny.HUGINN_FIXTURE), state_init="random")
    meter = StageMeter(made, [8], TEXTS, width=1)
    meter.one_pass()
    assert meter.curves().key.state_init == "random"


# Floors.


def test_a_floor_is_the_longer_of_moving_and_computing() -> None:
    work = StageWork(
        weight_bytes=100, row_bytes=10, position_bytes=2, row_flops=50, position_flops=4
    )
    floors = StageFloors(bandwidth_bytes_per_s=10, matmul_flops_per_s=100, work={"core": work})
    # One row at context 5: (100 + 10 + 10) / 10 s against (50 + 20) / 100 s.
    assert floors.floor_s("core", 1, 5) == pytest.approx(12.0)
    # 100 rows: (100 + 2000) / 10 s against 7000 / 100 s; at a tenth of the rate it is computing.
    assert floors.floor_s("core_with_exit", 100, 5) == pytest.approx(210.0)
    slow = floors.model_copy(update={"matmul_flops_per_s": 10.0})
    assert slow.floor_s("core", 100, 5) == pytest.approx(700.0)


def test_a_floor_is_that_of_attention_that_pads_to_the_longest_row() -> None:
    work = StageWork(
        weight_bytes=0.0, row_bytes=2.0, position_bytes=1.0, row_flops=0.0, position_flops=0.0
    )
    floors = StageFloors(bandwidth_bytes_per_s=1, matmul_flops_per_s=1, work={"core": work})
    padded = floors.floor_s("core", 2, 10)  # rows that attend to 10 and to 4 positions
    assert padded == 2 * floors.floor_s("core", 1, 10)
    assert padded > floors.floor_s("core", 1, 10) + floors.floor_s("core", 1, 4)
    for text in (StageFloors.__doc__, StagePoint.model_fields["floor_s"].description):
        assert "longest one's context" in " ".join((text or "").split())


def test_the_help_names_every_width_that_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stages", "--help"]) == 0
    assert "three quarters of engine.width" in " ".join(
        capsys.readouterr().out.replace("`", "").split()
    )


def test_what_a_stage_moves_and_computes_by_hand() -> None:
    model = staged.staged(torch.float32)
    work = stage_work(model, max_loops=4)
    # 2 core layers: 2 kv heads · 4 · K and V · 4 bytes; hidden 16, read and written.
    kv = 2 * 2 * 4 * 4
    assert work["core"].position_bytes == 2 * kv
    assert work["core"].row_bytes == 2 * 16 * 4 + 2 * kv
    assert work["coda"].row_bytes == 2 * 16 * 4 + kv
    assert work["core"].position_flops == 2 * 4 * 4 * 4
    assert work["core"].row_flops == model.flops_per_token().core
    assert work["core"].weight_bytes == 4 * model.flops_per_token().core / 2
    assert work["prefill"].row_flops == pytest.approx(
        model.flops_per_token().prelude + 4 * model.flops_per_token().core
    )
    assert work["prefill"].position_flops == (1 + 4 * 2) * 4 * 4 * 4 / 2


def test_measured_floors_are_positive() -> None:
    floors = floors_module.measure_floors(tiny.ouro(torch.float32), 4)
    assert floors.bandwidth_bytes_per_s > 0
    assert floors.matmul_flops_per_s > 0


# The document and its key.


@pytest.fixture(scope="module")
def document(prompts: str) -> StageCurves:
    meter = StageMeter(
        plan(prompts), [8, 20], TEXTS, later_contexts=[5, 8, 20], clock=SteppingClock()
    )
    meter.one_pass()
    return meter.curves()


def test_redrawn_curves_are_of_whole_passes_and_always_the_same() -> None:
    """A pass's points are fast or slow together; the lower quartile moves among five such."""
    passes = [
        StagePassRecord(
            number=number,
            points=[
                StagePassPoint(stage="core", rows=rows, context=9, mean_s=rows * pace, launches=4)
                for rows in (1, 2)
            ],
        )
        for number, pace in enumerate((1.0, 2.0, 3.0, 4.0, 5.0))
    ]
    drawn = redrawn_curves(passes)
    times = [curves.launch_s("core", 1, 9) for curves in drawn]
    assert times == [curves.launch_s("core", 1, 9) for curves in redrawn_curves(passes)]
    assert times != [curves.launch_s("core", 1, 9) for curves in redrawn_curves(passes, seed=1)]
    assert all(c.launch_s("core", 2, 9) == 2 * t for c, t in zip(drawn, times, strict=True))
    # The least but one of five draws: 1 at times, above 2 in a third of all.
    assert (min(times), np.median(times)) == (1.0, 2.0)
    assert 3.0 <= max(times) <= 5.0


def test_too_few_passes_or_torn_ones_are_not_drawn_again() -> None:
    passes = recorded.scripted_passes(MIN_PASSES)
    assert len(redrawn_curves(passes)) == REDRAWN
    assert redrawn_curves(passes[1:]) == []
    torn = passes[0].model_copy(update={"points": passes[0].points[1:]})
    assert redrawn_curves([torn, *passes[1:]]) == []
    holed = [p.model_copy(update={"points": p.points[1:]}) for p in passes]
    assert redrawn_curves(holed) == [], "one point is missing from all of them"


def test_saved_curves_come_back_and_stand_for_the_same_plan(
    document: StageCurves, prompts: str, tmp_path: Path
) -> None:
    write_document(tmp_path / "stages.json", document)
    again = read_curves(tmp_path, plan(prompts, "cdf@0.9"))
    assert again == document
    assert again.curves().launch_s("core", 2, 10) == pytest.approx(1.0)
    assert read_curves(tmp_path / "stages.json", plan(prompts)) == document


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"dtype": "float64"}, r"\(dtype: float32, now float64\)"),
        ({"kv__layout": "shared"}, r"\(kv_layout: per-loop, now shared\)"),
        ({"exit_rule": "none"}, r"\(exit_rule: cdf, now none\)"),
        ({"exit__max_loops": 3}, r"\(max_loops: 4, now 3\)"),
        ({"weights": "random:7"}, r"\(model: .*; weights: checkpoint, now random:7\)"),
    ],
)
def test_saved_curves_of_something_else_are_refused_and_the_difference_named(
    document: StageCurves, prompts: str, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    write_document(tmp_path / "stages.json", document)
    with pytest.raises(UsageError, match=named):
        read_curves(tmp_path, plan(prompts, **changes))


def test_curves_of_equal_rows_do_not_stand_for_a_run(
    document: StageCurves, prompts: str, tmp_path: Path
) -> None:
    write_document(tmp_path / "stages.json", document.model_copy(update={"rows": "equal"}))
    with pytest.raises(UsageError, match="without --contexts"):
        read_curves(tmp_path, plan(prompts))


def test_every_field_of_the_key_counts(document: StageCurves) -> None:
    for name, value in document.key.model_dump().items():
        other: Any = value + 1 if isinstance(value, int) else f"{value}?"
        (difference,) = differences(document.key, document.key.model_copy(update={name: other}))
        assert difference.startswith(f"{name}: ")


def test_the_key_follows_the_threads_and_the_code(
    prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(prompts)
    before = stage_key(made)
    assert before == stage_key(made)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr("cdbench.stages.key.TIMED_PACKAGES", ("models",))
    assert [d.partition(":")[0] for d in differences(before, stage_key(made))] == [
        "code_version",
        "threads",
    ]


def test_what_is_no_stage_curves_is_not_read(prompts: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"stages\.json"):
        read_curves(tmp_path, plan(prompts))
    (tmp_path / "stages.json").write_text('{"kind": "other"}')
    with pytest.raises(UsageError, match="must be a cdbench file"):
        read_curves(tmp_path, plan(prompts))


# The command.


@pytest.fixture
def arguments(prompts: str) -> list[str]:
    keys = {
        "workload.source": prompts,
        "engine.max_residents": 1,
        "engine.prefill_tokens": 8,
        "device": "cpu",
    }
    sets = [part for name, value in keys.items() for part in ("--set", f"{name}={value}")]
    model = str(tiny.FIXTURE)
    return ["stages", "--model", model, "--exit", "cdf@0.5", "--passes", "1", *sets]


def test_the_command_writes_and_prints_and_replaces_only_when_told(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new"
    assert main([*arguments, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert "core_with_exit" in printed.out
    assert "GFLOP/s" in printed.out
    assert "measuring stages (1 passes)" in printed.err
    # Prompts of 4 tokens and 9 more: later tokens at 5 to 12, which are near.
    document = read_document(StageCurves, out / "stages.json")
    assert (document.contexts, document.rows) == ([12], "ragged")
    assert main([*arguments, "--out", str(out)]) == 2
    assert "add --force" in capsys.readouterr().err
    assert main([*arguments, "--out", str(out), "--force", "--contexts", "9"]) == 0
    document = read_document(StageCurves, out / "stages.json")
    assert (document.contexts, document.rows) == ([9], "equal")
    assert not list(tmp_path.rglob("*.partial"))


def test_the_command_draws(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "pictures" / "curves.svg"
    one = [*arguments, "--exit", "none", "--contexts", "8", "--out", str(tmp_path)]
    assert main([*one, "--plot", str(picture)]) == 0
    assert str(picture) in capsys.readouterr().out
    assert "<svg" in picture.read_text()
    assert is_plot(picture)
    # A picture is replaced as the curves are.
    again = [*one, "--plot", str(picture)]
    assert main([*again[:-3], str(tmp_path / "other.json"), *again[-2:]]) == 2
    assert f"--plot {picture}: exists" in capsys.readouterr().err
    before = picture.stat().st_ino
    assert main([*again, "--force"]) == 0
    assert picture.stat().st_ino != before
    assert {path.name for path in tmp_path.iterdir()} == {"pictures", "stages.json"}


def test_a_picture_has_two_panels_a_stage_and_a_line_and_a_floor_a_context(
    document: StageCurves,
) -> None:
    core = [p for p in document.points if p.stage == "core"]
    figure = draw(document.model_copy(update={"points": core}))
    launch, row = figure.axes
    assert [len(panel.lines) for panel in (launch, row)] == [4, 4]
    rows, times = launch.lines[0].get_data()
    assert list(rows) == [1, 2, 3]
    assert list(times) == pytest.approx([1e6] * 3)
    assert list(row.lines[0].get_ydata()) == pytest.approx([1e6, 5e5, 1e6 / 3])
    assert list(launch.lines[1].get_ydata()) == pytest.approx(
        [p.floor_s * 1e6 for p in core if p.context == 8]
    )


def test_a_table_has_a_row_a_point_by_stage_context_and_rows(document: StageCurves) -> None:
    table = stage_table(document)
    places = [tuple(cell.value for cell in row.cells[:3]) for row in table.rows]
    assert places[:6] == [("prelude", b, c) for c in (8, 20) for b in (1, 2, 3)]
    assert len(places) == len(set(places)) == len(document.points)
    by_place = {(p.stage, p.rows, p.context): p for p in document.points}
    for place, row in zip(places, table.rows, strict=True):
        point = by_place[place]  # type: ignore[index]
        _, _, _, launch, per_row, floor, above = row.cells
        assert (launch.value, launch.low, launch.high) == (
            point.time_s,
            point.low_s,
            point.high_s,
        )
        assert per_row.value == pytest.approx(point.time_s / point.rows)
        assert above.value == pytest.approx(point.time_s / point.floor_s)
        assert floor.value == point.floor_s


def test_json_is_one_document_and_random_weights_are_marked(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = [*arguments, "--set", "weights=random:3", "--contexts", "8"]
    assert main([*changed, "--out", str(tmp_path / "a.json"), "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    document = StageCurves.model_validate_json(printed.out)
    assert document == read_document(StageCurves, tmp_path / "a.json")
    assert document.notes[0] == "random weights (seed 3)"
    assert main([*changed, "--out", str(tmp_path / "b.json")]) == 0
    assert "random weights (seed 3)" in capsys.readouterr().out


def test_without_out_it_goes_among_the_runs_and_nothing_is_left_of_a_refusal(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "--contexts", "9999"]) == 2
    assert not list(tmp_path.iterdir())
    assert main([*arguments, "--contexts", "8"]) == 0
    (written,) = tmp_path.glob("results/runs/*-stages-*/stages.json")
    assert read_document(StageCurves, written).passes == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--contexts", "8,long"], "no list of whole numbers"),
        (["--contexts", "8,1"], "contexts: 1 cannot be measured"),
        (["--plot", "curves.jpg"], ".jpg is no picture"),
        (["--exit", "kl@-1"], "threshold -1"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_measured(
    arguments: list[str],
    flags: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, *flags]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_other_files_are_not_replaced_even_by_force(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "result.json"
    other.write_text("{}")
    assert main([*arguments, "--out", str(other), "--force"]) == 2
    assert "holds no stage curves" in capsys.readouterr().err
    assert other.read_text() == "{}"


def test_saved_curves_reach_a_quarter_beyond_their_contexts_and_no_wider(
    document: StageCurves,
) -> None:
    low, high = document.contexts[0], document.contexts[-1]
    assert uncovered(document, [low, high], width=3) is None
    assert uncovered(document, [low, int(high * 1.2)], width=1) is None
    why = uncovered(document, [low, high * 2], width=3)
    assert why is not None
    assert f"{low} to {high}" in why
    assert "reach 3 rows, launches here have up to 4" in (uncovered(document, [low], 4) or "")
    # The stage that reaches least decides.
    points = [p for p in document.points if (p.stage, p.rows) != ("coda", 3)]
    less = document.model_copy(update={"points": points})
    assert "reach 2 rows" in (uncovered(less, [low], 3) or "")


def test_saved_curves_reach_down_as_far_as_contexts_are_measured_as_one(
    document: StageCurves,
) -> None:
    later = range(5, 21)
    only = document.model_copy(update={"contexts": list(grid_contexts(later, max_positions=99))})
    assert only.contexts == [20]
    assert uncovered(only, later, width=3) is None
    assert uncovered(only, [4, *later], width=3) is not None


def test_cells_are_no_wider_than_free_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(load_config(flags={"work": "equal", "dense": "", "model": "demo-ouro"}))
    assert affordable_width(plan, 64, 100) == 64
    positions = affordable_positions(plan)
    monkeypatch.setattr(meter, "free_bytes", lambda device: 400 * free_bytes(device) // positions)
    assert 300 <= affordable_positions(plan) <= 500
    assert affordable_width(plan, 64, 100) in (3, 4, 5)
    assert affordable_width(plan, 64, 1000) == 1

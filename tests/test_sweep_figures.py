"""A sweep's figures: over the blocks of all rounds, by the names of its columns."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from cdbench.bench.validity import RunFacts, TimedFacts, judge
from cdbench.config import parse_config
from cdbench.errors import UsageError
from cdbench.schema import (
    BlockRecord,
    BoundRecord,
    Comparison,
    IntervalRecord,
    Manifest,
    Result,
)
from cdbench.schema.stages import StageCurves
from cdbench.schema.sweep import CellRound
from cdbench.sweep.figures import Figure, columns, parse_figure, value
from cdbench.sweep.stage_figures import stage_columns, stage_value
from cdbench.sweep.summary import FEW_BLOCKS, marks, mixed_code, pooled_reasons
from tests.test_schema import MANIFEST, small_result

BASE = {"model": "demo-ouro", "modes": ["static", "cdb"], "work": ["equal"]}


def timed_result(walls: dict[str, list[float]], threads: int = 2, **changes: Any) -> Result:
    """Modes' walls of each block; both runs of a block take half of it. 100 tokens a run."""
    blocks = [
        BlockRecord(
            index=index,
            order=order,
            mode=mode,
            wall_s=wall / 2,
            metrics={"output_throughput": 100 / (wall / 2), "mean_depth": 2.0, "ttft": None},
        )
        for mode, each in walls.items()
        for index, wall in enumerate(each)
        for order in (0, 1)
    ]
    logs = [math.log(s / c) for s, c in zip(walls["static"], walls["cdb"], strict=True)]
    comparison = [
        Comparison(
            mode="cdb",
            over="static",
            scope=scope,
            speedup=IntervalRecord(estimate=1.0, n=len(logs)),
            log_ratios=logs,
        )
        for scope in ("e2e", "decode")
    ]
    manifest = Manifest.model_validate({**MANIFEST.model_dump(), "torch_threads": threads})
    return small_result(blocks=blocks, comparisons=comparison, manifest=manifest, **changes)


def test_figures_are_taken_over_the_blocks_of_all_rounds() -> None:
    first = timed_result({"static": [4.0, 4.0, 4.0], "cdb": [2.0, 2.0, 2.0]})
    second = timed_result({"static": [4.0, 4.0, 4.0], "cdb": [1.0, 1.0, 1.0]})
    ratio = value(parse_figure("cdb/static", ["static", "cdb"]), [first, second])
    assert ratio is not None
    assert ratio.estimate == pytest.approx(math.sqrt(2 * 4))
    assert ratio.n == 6
    assert ratio.low is not None
    assert ratio.low < math.sqrt(8) < (ratio.high or 0)
    rate = value(Figure("metric", "cdb", "output_throughput"), [first, second])
    assert rate is not None
    assert rate.estimate == pytest.approx((100 + 200) / 2)
    one = value(Figure("metric", "cdb", "output_throughput"), [first])
    assert one == IntervalRecord(estimate=100.0, n=3)  # no spread and too few blocks
    depth = value(Figure("metric", "cdb", "mean_depth"), [first, second])
    assert depth == IntervalRecord(estimate=2.0, n=6)
    assert value(Figure("metric", "cdb", "ttft"), [first]) is None  # undefined is never 0


def test_a_torn_block_does_not_count() -> None:
    result = timed_result({"static": [4.0, 4.0], "cdb": [2.0, 1.0]})
    torn = result.model_copy(update={"blocks": result.blocks[:-1]})
    rate = value(Figure("metric", "cdb", "output_throughput"), [torn])
    assert rate is not None
    assert (rate.estimate, rate.n) == (100.0, 1)


def test_realised_is_the_speedup_over_static_by_each_rounds_own_bound() -> None:
    rounds = [
        timed_result(
            {"static": [3.0] * 6, "cdb": [2.0] * 6},
            bounds={"cdb": {"flop_bound": BoundRecord(value=bound, scope="decode")}},
        )
        for bound in (2.0, 1.5)
    ]
    found = value(parse_figure("cdb.realised.flop_bound", ["cdb"]), rounds)
    assert found is not None
    assert found.estimate == pytest.approx(math.sqrt((1.5 / 2.0) * (1.5 / 1.5)))
    assert value(parse_figure("cdb.realised.time_bound", ["cdb"]), rounds) is None


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_share_of_a_time_bound_holds_how_far_off_the_bounds_may_be(rounds: int) -> None:
    spread = IntervalRecord(estimate=2.0, low=2.0 / 1.1, high=2.0 * 1.1, n=7)
    bound = BoundRecord(value=2.0, scope="decode", over_passes=spread)
    result = timed_result(
        {"static": [3.0] * 6, "cdb": [2.0] * 6}, bounds={"cdb": {"time_bound": bound}}
    )
    found = value(parse_figure("cdb.realised.time_bound", ["cdb"]), [result] * rounds)
    assert found is not None
    assert found.estimate == pytest.approx(0.75)
    # Blocks are all alike. The rounds' bounds are each off by themselves.
    off = 1.1 ** (1 / math.sqrt(rounds))
    assert (found.low, found.high) == pytest.approx((0.75 / off, 0.75 * off))


def test_percentiles_and_accuracy_come_from_the_results() -> None:
    low, high = (
        small_result(
            modes={
                "cdb": small_result()
                .modes["cdb"]
                .model_copy(update={"percentiles": {"tpot": {"p90": seconds}}})
            }
        )
        for seconds in (0.1, 0.3)
    )
    figure = parse_figure("cdb.tpot.p90", ["cdb"])
    found = value(figure, [low, high])
    assert found == IntervalRecord(estimate=0.2, n=2)
    assert value(figure, [low, small_result()]) is None  # p90 undefined in one round
    accuracy = value(parse_figure("cdb.accuracy", ["cdb"]), [low])
    assert accuracy is not None
    assert accuracy.estimate == 1.0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("dcb.tpot", "starts with no mode"),
        ("cdb.tpto", "did you mean 'tpot'"),
        ("cdb.mean_depth.p90", "is not kept"),
        ("cdb.tpot.p42", "is not kept"),
        ("cdb/lockstep", "is no mode of the sweep"),
    ],
)
def test_a_column_that_cannot_be_is_refused(text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        parse_figure(text, ["static", "cdb"])


@pytest.mark.parametrize(
    "text",
    [
        "cdb.output_throughput",
        "static@2.tpot.p99",
        "cdb/static@2",
        "cdb/dense:a.b.decode",
        "dense:a.b.accuracy",
        "cdb.realised.flop_bound",
    ],
)
def test_a_column_reads_back_as_written(text: str) -> None:
    assert parse_figure(text, ["static@2", "dense:a.b", "cdb"]).name == text


def test_the_usual_columns_suit_the_modes_and_the_arrivals() -> None:
    def names(**tree: Any) -> list[str]:
        return [figure.name for figure in columns((), [parse_config({**BASE, **tree})])]

    assert names() == [
        "cdb.mean_depth",
        "cdb.output_throughput",
        "cdb/static",
        "cdb/static.decode",
        "cdb.realised.flop_bound",
    ]
    assert "cdb.accuracy" in names(work=["live", "equal"])
    assert names(work=["live"]) == ["cdb.accuracy"]
    assert names(modes=["static"]) == ["static.mean_depth", "static.output_throughput"]


def rounds_of(*reasons: list[str]) -> list[CellRound]:
    return [
        CellRound(round=n, state="finished", directory="x", verdict="INVALID", reasons=found)
        for n, found in enumerate(reasons, start=1)
    ]


def test_the_blocks_of_all_rounds_count_together() -> None:
    for blocks in (1, 2):
        few = judge(RunFacts(timed=TimedFacts(blocks=blocks, requests=700))).reasons
        assert len(few) == 1
        assert FEW_BLOCKS.fullmatch(few[0])  # the sentence a run says is the one recognised
    three = timed_result({"static": [1.0] * 3, "cdb": [1.0] * 3})
    assert pooled_reasons(rounds_of(few, few), [three, three]) == []
    assert pooled_reasons(rounds_of(few, [*few, "a busy CPU"]), [three, three]) == [
        "round 2: a busy CPU"
    ]
    assert pooled_reasons(rounds_of(few), [three]) == few  # one round alone is too few
    two = timed_result({"static": [1.0] * 2, "cdb": [1.0] * 2})
    assert pooled_reasons(rounds_of(few, few), [two, two]) == [
        "4 blocks were timed over 2 rounds; an interval needs 6"
    ]


def test_what_must_be_said_of_models_and_code_is_said_once() -> None:
    plain = timed_result({"static": [1.0], "cdb": [1.0]})
    assert marks([plain]) == []
    assert mixed_code([plain, plain]) == []
    other = timed_result({"static": [1.0], "cdb": [1.0]}, threads=1)
    assert mixed_code([plain, other]) == ["cells were measured on 2 machines: compare none of them"]


def curves(*points: tuple[str, int, int, float]) -> StageCurves:
    """A document of points (stage, rows, context, seconds) and nothing else."""
    names = ("stage", "rows", "context", "time_s")
    document: dict[str, Any] = {
        "points": [
            SimpleNamespace(
                **dict(zip(names, point, strict=True)),
                low_s=point[3] / 2,
                high_s=point[3] * 2,
                passes=5,
            )
            for point in points
        ]
    }
    return StageCurves.model_construct(**document)


def test_stage_columns_are_the_middle_context_of_each_document() -> None:
    first = curves(
        ("core", 1, 10, 1.0), ("core", 4, 10, 2.0), ("core", 4, 20, 3.0), ("core", 4, 30, 9.0)
    )
    second = curves(("core", 1, 10, 2.0), ("core", 4, 10, 5.0))
    assert stage_value("core[1]", [first, second]) == IntervalRecord(
        estimate=1.5, low=0.5, high=4.0, n=10
    )
    widest = stage_value("core[width]", [first, second])
    assert widest is not None
    assert widest.estimate == pytest.approx((3.0 + 5.0) / 2)
    assert stage_value("coda[1]", [first]) is None
    assert stage_value("core[2]", [first]) is None
    assert stage_columns(["core[8]"]) == ("core[8]",)
    for wrong, named in (("core", "write core"), ("croe[1]", "did you mean 'core'")):
        with pytest.raises(UsageError, match=named):
            stage_columns([wrong])

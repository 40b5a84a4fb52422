"""What a sweep prints: every figure at every width, and what an estimate comes from."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from cdbench.cli.sweep import show
from cdbench.render.formats import Kind
from cdbench.render.sweep_report import figure_kind, plan_table, summary_tables
from cdbench.render.terminal import make_console
from cdbench.schema import IntervalRecord
from cdbench.schema.sweep import CellRound, SweepCell, SweepDocument, SweepEstimate
from cdbench.sweep.file import read_sweep, sweep_names

MADE = {Kind.RATIO: 1.234, Kind.PERCENT: 0.876, Kind.SECONDS: 0.0123, Kind.NUMBER: 3456.0}


def document(columns: list[str], **changes: Any) -> SweepDocument:
    """Three finished cells with hand-made figures, each with an interval."""
    cells = [
        SweepCell(
            number=number,
            hash=f"{number:012d}",
            changes={"exit": f"cdf@0.{number}", "engine.max_residents": 10 * number},
            rounds=[CellRound(round=1, state="finished", directory="x")],
            verdict="VALID",
            figures={name: figure(name, number) for name in columns},
        )
        for number in (1, 2, 3)
    ]
    fields: dict[str, Any] = {
        "name": "made",
        "verb": "run",
        "status": "complete",
        "seed": 0,
        "rounds": 1,
        "base": {},
        "varied": ["exit", "engine.max_residents"],
        "columns": columns,
        "cells": cells,
    }
    return SweepDocument(**{**fields, **changes})


def figure(name: str, number: int) -> IntervalRecord:
    estimate = MADE[figure_kind(name)] * (1 + number / 100)
    return IntervalRecord(estimate=estimate, low=0.97 * estimate, high=1.03 * estimate, n=6)


def printed(made: SweepDocument, width: int) -> str:
    stream = io.StringIO()
    show(made, make_console(stream, width))
    return stream.getvalue()


def numbers(text: str) -> set[str]:
    return set(re.findall(r"[\d,.]+[×%]?", text))


@pytest.mark.parametrize("name", sweep_names())
@pytest.mark.parametrize("width", [120, 80, 60, 40])
def test_every_figure_of_every_shipped_sweep_shows_at_every_width(name: str, width: int) -> None:
    made = document(list(read_sweep(name).show))
    text = printed(made, width)
    assert "Not shown" not in text
    assert max(map(len, text.splitlines())) <= width
    assert numbers(text) >= {number for number in numbers(printed(made, 400)) if "." in number}
    assert text.count("VALID") == 3


def test_headers_are_words_with_units_and_tables_are_even() -> None:
    names = ["cdb.mean_depth", "cdb/static.decode", "cdb.realised.flop_bound", "cdb.goodput"]
    made = document(names)
    two = list(summary_tables(made, lambda table: len(table.columns) <= 6))
    assert [[c.header for c in table.columns[3:]] for table in two] == [
        ["cdb mean depth (loops/token) ↓", "cdb/static decode ↑"],
        ["cdb realised flop bound ↑", "cdb goodput (req/s) ↑", "verdict"],
    ]
    assert two[0].notes == ()
    assert two[1].notes
    (one,) = summary_tables(made, lambda table: False)
    assert len(one.columns) == 3 + 4 + 1


def test_a_sweep_without_figures_still_shows_its_cells() -> None:
    (table,) = summary_tables(document([]), lambda table: True)
    titles = [column.title for column in table.columns]
    assert titles == ["cell", "exit", "max_residents", "verdict"]


@pytest.mark.parametrize(
    ("estimate", "said", "left"),
    [
        (
            SweepEstimate(
                seconds=None, cells_left=2, finished=0, left_per_cell={"000000000001": 2}
            ),
            "2 runs left; no estimate: no cell has finished here",
            None,
        ),
        (
            SweepEstimate(
                seconds=600.0,
                cells_left=2,
                finished=1,
                per_cell={"000000000001": 300.0},
                left_per_cell={"000000000001": 2},
            ),
            "2 runs left, about 10 min (estimate from 1 finished cell)",
            600.0,
        ),
    ],
)
def test_an_estimate_says_what_it_comes_from_and_nothing_where_it_knows_nothing(
    estimate: SweepEstimate, said: str, left: float | None
) -> None:
    made = document([], status="planned", estimate=estimate)
    assert said in printed(made, 120)
    assert plan_table(made).rows[0].cells[-1].value == left

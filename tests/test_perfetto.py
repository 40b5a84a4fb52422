"""The Chrome trace: one lane per stage, every launch in it once, at its time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cdbench.metrics.trace import RunTrace
from cdbench.render.perfetto import chrome_trace, of_blocks, write_trace
from cdbench.schema.launches import StoredLaunch
from tests.recorded import scripted_blocks, scripted_run


@dataclass(frozen=True)
class Run:
    block: int
    order: int
    trace: RunTrace


# A prompt of 6 tokens, then 3 tokens of which one is at loop 3; a launch that carries both.
LAUNCHES = (
    StoredLaunch("prelude", 0, 6, (), 6, 2, 10.0, 0.000_25),
    StoredLaunch("core", 0, 6, (), 6, 2, 10.001, 0.004),
    StoredLaunch("core", 3, 0, (2, 0, 1), 8, 2, 10.0055, 0.001),
    StoredLaunch("core", 2, 0, (1, 1), 8, 1, 10.007, 0.001),
    StoredLaunch("coda", 1, 0, (), 8, 1, 10.0085, 0.000_5),
    StoredLaunch("core", 2, 4, (2,), 9, 1, 10.01, 0.002),
)


def run(launches: Sequence[StoredLaunch] = LAUNCHES, block: int = 0, order: int = 3) -> Run:
    trace = RunTrace("cdb", [], launches, wall_s=1.0, width=8, max_residents=8, max_loops=4)
    return Run(block, order, trace)


def events(document: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def lanes(document: dict[str, Any], process: int = 1) -> dict[int, str]:
    return {
        event["tid"]: event["args"]["name"]
        for event in events(document, "M")
        if event["name"] == "thread_name" and event["pid"] == process
    }


def test_slices_by_hand() -> None:
    document = chrome_trace([run()])
    named = lanes(document)
    found = [(named[e["tid"]], e["name"], e["ts"], e["dur"]) for e in events(document, "X")]
    assert found == [
        ("prefill", "prelude 6 prompt rows", 0.0, 250.0),
        ("prefill", "core 6 prompt rows", 1000.0, 4000.0),
        ("core", "core 3 rows, 1×2 3×1", 5500.0, 1000.0),
        ("core", "core 2 rows, 1×1 2×1", 7000.0, 1000.0),
        ("coda", "coda 1 rows", 8500.0, 500.0),
        ("core", "core 2 rows, 4 prompt rows, 1×2", 10000.0, 2000.0),
    ]
    third = events(document, "X")[2]["args"]
    assert third == {
        "decode_rows": 3,
        "prefill_rows": 0,
        "context": 8,
        "runnable": 2,
        "rows_at_loop": {"1": 2, "3": 1},
    }


def test_counters_change_where_the_value_does() -> None:
    document = chrome_trace([run()])
    found = [(e["name"], e["ts"], e["args"]) for e in events(document, "C")]
    assert found == [
        ("requests", 0.0, {"runnable": 2}),
        ("core", 5500.0, {"rows": 3}),
        ("requests", 7000.0, {"runnable": 1}),
        ("core", 7000.0, {"rows": 2}),
    ]


def test_a_process_is_one_timed_run_and_names_its_place_and_width() -> None:
    document = chrome_trace([run(), run(block=1, order=0)])
    names = {
        e["pid"]: e["args"]["name"] for e in events(document, "M") if e["name"] == "process_name"
    }
    assert names == {1: "cdb, block 0, place 3, width 8", 2: "cdb, block 1, place 0, width 8"}
    assert list(lanes(document, 2).values()) == ["prelude", "core", "coda", "prefill"]


def test_every_launch_is_a_slice_and_none_overlaps_another_in_its_lane() -> None:
    made = scripted_run("cdb", seed=3)
    document = chrome_trace([made])
    slices = events(document, "X")
    assert len(slices) == len(made.trace.launches)
    for lane in lanes(document):
        own = [e for e in slices if e["tid"] == lane]
        assert own
        # to the nanosecond that times are rounded to
        assert all(a["ts"] + a["dur"] <= b["ts"] + 2e-3 for a, b in pairwise(own))
    first, last = made.trace.launches[0], made.trace.launches[-1]
    assert slices[-1]["ts"] == pytest.approx((last.start_s - first.start_s) * 1e6, abs=1e-3)


def test_times_count_from_the_first_arrival() -> None:
    made = scripted_run("static")
    arrival_s = made.trace.requests[0].arrival_s
    first = events(chrome_trace([made]), "X")[0]
    expected = (made.trace.launches[0].start_s - arrival_s) * 1e6
    assert first["ts"] == pytest.approx(expected, abs=1e-3)


def test_only_the_first_block_is_drawn_unless_others_are_chosen() -> None:
    runs = scripted_blocks(["static", "cdb"], 3)
    assert [r.block for r in of_blocks(runs)] == [0] * 4
    assert {r.block for r in of_blocks(runs, {1, 2})} == {1, 2}


def test_the_file_is_one_json_document_written_whole(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.json", [run()])
    document = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert document == chrome_trace([run()])
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]
    for event in document["traceEvents"]:
        assert event["ph"] in "MXC"
        assert isinstance(event["pid"], int)
        assert event["ph"] == "M" or event["ts"] >= 0


def test_a_run_without_launches_is_an_empty_process() -> None:
    assert events(chrome_trace([run(())]), "X") == []

"""Work counted, and the script that counts it tick by tick: on blocks with known counts."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cdbench.runtime.intake import Intake
from cdbench.stats.agreement import common_prefix
from scripts import work_per_tick as ticks
from scripts.counting import Work, counted

Capture = pytest.CaptureFixture[str]


# Counting.


def test_operations_and_the_elements_they_touch() -> None:
    a, b = torch.zeros(2, 3), torch.zeros(2, 3)
    with counted() as work:
        a + b
    assert (work.operations, work.elements) == (1, 18)


def test_of_rows_that_are_picked_only_those_count() -> None:
    pool, rows = torch.zeros(1000, 4), torch.tensor([5, 7, 9])
    with counted() as reading:
        pool.index_select(0, rows)
    assert reading.elements == 3 + 12
    values = torch.ones(3, 4)
    with counted() as writing:
        pool.index_copy_(0, rows, values)
    assert writing.elements == 3 + 12


def test_a_view_touches_nothing_and_an_output_given_counts_once() -> None:
    a, out = torch.zeros(2, 3), torch.empty(2, 3)
    with counted() as viewing:
        a.view(6)
    assert viewing.elements == 0
    with counted() as adding:
        torch.add(a, a, out=out)
    assert adding.elements == 6 + 6


def counts_of(times: int) -> Work:
    with counted() as work:
        for _ in range(times):
            common_prefix([1, 2], [1, 2])
    return work


def test_calls_and_lines_are_exact() -> None:
    ten, twenty, thirty = (counts_of(n) for n in (10, 20, 30))
    more = {name: vars(twenty)[name] - vars(ten)[name] for name in vars(ten)}
    assert more == {name: vars(thirty)[name] - vars(twenty)[name] for name in vars(ten)}
    # The function itself, and from within it `min`, `len` twice and `zip` (a type: no call).
    assert more["calls"] >= 4 * 10
    assert more["lines"] >= 10
    assert more["operations"] == 0


def test_a_loop_of_the_package_shows_as_lines_and_others_code_does_not() -> None:
    def lines_of(length: int) -> int:
        same = [1] * length
        with counted() as work:
            common_prefix(same, same)
        return work.lines

    assert lines_of(30) - lines_of(20) == lines_of(20) - lines_of(10) > 0
    with counted() as work:
        for _ in range(10):
            json.dumps({})
    assert (work.calls, work.lines) == (0, 0)


def test_who_watched_before_watches_again() -> None:
    def watch(*_: object) -> None:
        return None

    sys.setprofile(watch)
    traced = sys.gettrace()
    try:
        with counted():
            assert sys.getprofile() is not watch
        assert sys.getprofile() is watch
        assert sys.gettrace() is traced
    finally:
        sys.setprofile(None)


# Work per tick.


def test_waiting_requests_add_no_work_to_a_tick() -> None:
    network = ticks.small_model()
    found = [ticks.stretch(network, "cdb", 8, waiting, 80) for waiting in (10, 300)]
    assert found[0].work == found[1].work
    assert found[0].admitted == found[1].admitted > 0
    assert not ticks.grows_with_queue(found)


def test_a_look_at_every_waiting_request_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Intake.offers

    def looks_at_all(self: Intake) -> bool:
        for request in self.arrivals.waiting:
            common_prefix(request.prompt, ())
        return right(self)

    monkeypatch.setattr(Intake, "offers", looks_at_all)
    network = ticks.small_model()
    assert ticks.grows_with_queue(
        [ticks.stretch(network, "cdb", 8, waiting, 30) for waiting in (10, 60)]
    )


def test_a_queue_that_runs_dry_is_refused() -> None:
    with pytest.raises(ValueError, match="do not last"):
        ticks.stretch(ticks.small_model(), "static", 4, 2, 150)


def test_growth_is_per_tick_and_over_the_ratio_of_widths() -> None:
    narrow = ticks.Stretch("cdb", 8, 10, 10, 0, Work(100, 1000, 100, 100))
    wide = ticks.Stretch("cdb", 32, 10, 20, 0, Work(200, 8000, 400, 800))
    assert ticks.growth([wide, narrow]) == {
        "cdb": {"operations": 0.25, "elements": 1.0, "calls": 0.5, "lines": 1.0}
    }


def test_counts_of_other_modes_are_not_compared() -> None:
    one = ticks.Stretch("cdb", 8, 10, 10, 2, Work(1, 1, 1, 1))
    other = ticks.Stretch("static", 8, 10, 10, 3, Work(2, 2, 2, 2))
    assert not ticks.grows_with_queue([one, other])
    assert ticks.grows_with_queue([one, replace(one, admitted=3)])


def test_the_ticks_are_written_down(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "new" / "ticks.json"
    assert ticks.main(["--tiny", "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["flat_in_waiting"] is True
    assert [one["waiting"] for one in document["by_waiting"]] == [10, 100]
    assert [one["width"] for one in document["by_width"]] == [8, 16]
    first = document["by_width"][0]
    assert first["per_tick"]["operations"] == first["work"]["operations"] / first["ticks"]
    assert "A tick by width" in capsys.readouterr().out

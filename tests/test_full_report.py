"""What `run --full` adds: tables only where there is something in them, and what they say."""

from __future__ import annotations

import pytest

from cdbench.bench.derived import break_evens
from cdbench.render.formats import Kind
from cdbench.render.full_report import full_tables, latency_table
from cdbench.render.markdown import to_markdown
from cdbench.render.verdict import looks_line, validity_lines
from cdbench.schema import Result, Validity
from cdbench.schema.environment import Environment, Spread
from cdbench.schema.looks import LooksRecord
from cdbench.stats.looks import looks_for
from tests.recorded import scripted_blocks, scripted_stages
from tests.test_raw_records import scripted_result


@pytest.fixture(scope="module")
def result() -> Result:
    return scripted_result(scripted_blocks(("static", "cdb"), 6), scripted_stages())


def shown(result: Result) -> str:
    return "\n".join(to_markdown(table) for table in full_tables(result))


def test_prices_and_the_machine_show_only_where_they_are_known(result: Result) -> None:
    plain = shown(result)
    assert "break-even" not in plain
    assert "foreign_cores" not in plain
    seen = Environment(
        repeats=24,
        wall_s=10.0,
        compute_threads=2,
        figures={"foreign_cores": Spread(median=0.25, low=0.0, high=0.5, n=24)},
        unreadable=["temperature_c"],
    )
    known = result.model_copy(
        update={"break_even": break_evens(2.0, result.comparisons), "environment": seen}
    )
    printed = shown(known)
    assert "cdb against static" in printed
    assert "the machine over 24 timed repeats" in printed
    assert "foreign_cores" in printed
    assert "does not tell: temperature_c" in printed


def test_a_speed_up_over_static_says_how_it_would_move_with_other_requests(
    result: Result,
) -> None:
    """Around itself; 3 requests are too few for an interval. Other pairs say nothing."""
    for found in result.comparisons:
        if (found.mode, found.over) != ("cdb", "static"):
            assert found.over_requests is None
            continue
        assert found.over_requests is not None
        assert found.over_requests.estimate == pytest.approx(found.speedup.estimate)
        assert (found.over_requests.low, found.over_requests.n) == (None, 3)
    assert "bootstrap over the requests" in shown(result)


def test_break_even_follows_from_the_end_to_end_speed_up(result: Result) -> None:
    (found,) = break_evens(2.0, result.comparisons)
    (speedup,) = [c for c in result.comparisons if (c.mode, c.scope) == ("cdb", "e2e")]
    ratio, price = found.price_ratio.estimate, found.baseline_price_per_hour.estimate
    assert ratio == speedup.speedup.estimate
    assert price == pytest.approx(2.0 / (ratio or 0.0))
    assert break_evens(None, result.comparisons) == []


def test_percentiles_with_too_few_requests_say_how_few(result: Result) -> None:
    table = latency_table(result)
    assert [column.title for column in table.columns] == ["mode", "latency", "p50"]
    cells = [row.cells[2] for row in table.rows]
    assert all((cell.value, cell.kind, cell.n) == (None, Kind.SECONDS, 3) for cell in cells)
    assert any("3 requests are too few for p90, p95, p99" in note for note in table.notes)


def test_a_run_that_waited_for_an_interval_says_how_it_ended(result: Result) -> None:
    assert looks_line(result) == ""
    looks = looks_for(6, 0.05)
    look = looks.after([0.3, 0.301] * 3)
    assert look is not None
    waited = result.model_copy(update={"looks": LooksRecord.of(looks, look)})
    line = looks_line(waited)
    assert "looks planned after 6, 12, 24 blocks for a half-width of 5.0%: reached after 6" in line
    assert "99.99" in line


def test_reasons_and_flags_each_have_a_line(result: Result) -> None:
    judged = Validity(verdict="INVALID", reasons=["one", "two"], flags=["three"])
    lines = validity_lines(result.model_copy(update={"validity": judged}))
    assert lines == ["INVALID:", "- one", "- two", "mind: three"]
    assert validity_lines(result) == ["VALID"]

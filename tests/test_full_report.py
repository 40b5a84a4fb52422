"""What `run --full` adds: tables only where there is something in them, and what they say."""

from __future__ import annotations

import io

import pytest

from cdbench.bench.derived import break_evens
from cdbench.cli.run import print_report
from cdbench.metrics.registry import METRICS
from cdbench.render.asked import asked_tables
from cdbench.render.formats import Kind
from cdbench.render.full_report import LAUNCHES, RATES, WHERE_KNOWN, full_tables, latency_table
from cdbench.render.markdown import to_markdown
from cdbench.render.metric_table import metric_column
from cdbench.render.table import Column, Table
from cdbench.render.terminal import make_console, print_table
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


def printed(result: Result, width: int = 100, *, full: bool = False) -> str:
    stream = io.StringIO()
    print_report(result, "somewhere", make_console(stream, width), full)
    return stream.getvalue()


def priced(result: Result) -> Result:
    """As if targets and a price had been given."""
    slo = {"ttft_s": None, "tpot_s": 0.05, "e2e_s": 2.0}
    asked = {"goodput": 12.5, "cost_per_million_tokens": 3.25}
    modes = {
        label: mode.model_copy(update={"metrics": {**mode.metrics, **asked}})
        for label, mode in result.modes.items()
    }
    config = {**result.config, "slo": slo, "price_per_hour": 2.0}
    return result.model_copy(update={"modes": modes, "config": config})


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("full", [False, True])
def test_what_targets_and_a_price_make_of_it_is_shown_at_any_width(
    result: Result, width: int, full: bool
) -> None:
    known = priced(result)
    assert all(column.priority == 0 for table in asked_tables(known) for column in table.columns)
    shown = " ".join(printed(known, width, full=full).split())
    for wanted in ("12.5", "3.25", "tpot ≤ 0.05 s and e2e ≤ 2 s", "currency of 2 per hour"):
        assert wanted in shown
    assert "12.5" not in printed(result, width, full=full)


def test_goodput_that_was_asked_for_and_is_undefined_is_said_to_be(result: Result) -> None:
    known = priced(result)
    nothing = {**known.modes["cdb"].metrics, "goodput": None}
    modes = {**known.modes, "cdb": known.modes["cdb"].model_copy(update={"metrics": nothing})}
    (table,) = asked_tables(known.model_copy(update={"modes": modes}))
    (cdb,) = [row for row in table.rows if row.cells[0].value == "cdb"]
    assert cdb.cells[1].formatted().line == "n/a"


@pytest.mark.parametrize("full", [False, True])
def test_a_run_stopped_in_its_first_block_prints_no_empty_table(result: Result, full: bool) -> None:
    nothing: dict[str, object] = {"metrics": {}, "intervals": {}, "percentiles": {}}
    modes = {label: mode.model_copy(update=nothing) for label, mode in result.modes.items()}
    cut: dict[str, object] = {
        "blocks": result.blocks[:1],
        "comparisons": [],
        "bounds": {},
        "waterfall": None,
    }
    stopped = result.model_copy(update={**cut, "modes": modes, "status": "interrupted"})
    shown = printed(stopped, full=full)
    for title in ("latency", "rates", "launches", "bounds", "speed-up"):
        assert title not in shown


def test_a_table_without_rows_has_no_header() -> None:
    stream = io.StringIO()
    print_table(Table((Column("mode"),), (), "a title"), make_console(stream, 80))
    assert stream.getvalue() == ""
    print_table(Table((Column("mode"),), (), "a title", ("why",)), make_console(stream, 80))
    assert stream.getvalue() == "a title\nwhy\n"


def test_every_metric_says_its_unit_in_its_header_or_beside_its_value() -> None:
    for name, kind in (*RATES, *WHERE_KNOWN, *LAUNCHES):
        header, unit = metric_column(name, kind).header, METRICS[name].unit
        assert unit in header or kind in (Kind.PERCENT, Kind.BYTES)


def test_an_invalid_run_says_so_before_its_first_number(result: Result) -> None:
    judged = Validity(verdict="INVALID", reasons=["too few blocks"], flags=[])
    shown = " ".join(printed(result.model_copy(update={"validity": judged})).split())
    assert shown.index("INVALID") < shown.index("mode ")
    assert shown.index("- too few blocks") < shown.index("full-depth static")
    assert "INVALID" not in printed(result)


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

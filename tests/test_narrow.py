"""Any width: what is printed fits, and no number and no interval is broken over two lines."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from cdbench.cli import output
from cdbench.cli.run import print_report
from cdbench.render.formats import Kind
from cdbench.render.layout import fit
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.render.terminal import make_console, print_table, print_whole
from cdbench.render.wrapping import longest_word, squeeze, wrap
from cdbench.schema import Result, read_result

REFERENCE = Path(__file__).parent.parent / "results" / "reference" / "demo-cpu"
NUMBER = re.compile(r"\[[-+]?\d[^\[\]]*\]|(?<![\w.])[-+]?\d[\d,.]*(?:×|%| (?:ms|µs|s|MB|kB|pt)\b)?")


def numbers(shown: str) -> set[str]:
    """Every interval, and every number with its unit, that stands whole on some line."""
    lines = shown.splitlines()
    found = [match.rstrip(".,") for line in lines for match in NUMBER.findall(line)]
    # "1 loops" at a line's end and "1" are the same number.
    return {match for match in found if match}


@pytest.fixture(scope="module")
def reference() -> Result:
    return read_result(REFERENCE)


def report(result: Result, width: int, full: bool) -> str:
    stream = io.StringIO()
    print_report(result, "results/somewhere", make_console(stream, width), full)
    return stream.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("full", [False, True])
def test_a_report_fits_and_breaks_no_number(reference: Result, width: int, full: bool) -> None:
    shown = report(reference, width, full)
    assert max(cell_len(line) for line in shown.splitlines()) <= width
    known = numbers(report(reference, 1000, full))
    assert numbers(shown) <= known


def test_the_words_that_end_a_report_keep_all_their_numbers(reference: Result) -> None:
    def ending(width: int) -> str:
        return report(reference, width, full=False).split("\nVALID\n")[1]

    assert numbers(ending(40)) == numbers(ending(1000))


def test_an_interval_stays_with_its_value() -> None:
    said = "cdb did it 1.27× [1.14, 1.42] as fast (-0.3 pt [-0.9, +0.3]) at a 95 % level."
    for width in range(20, 90):
        whole = "\n".join(wrap(said, width))
        for piece in ("1.27× [1.14, 1.42]", "-0.3 pt [-0.9, +0.3]", "95 %"):
            assert piece in whole
    assert longest_word(said) == len("(-0.3 pt [-0.9, +0.3])")


@settings(deadline=None)
@given(st.text("ab 1.×[],%-", max_size=60), st.integers(1, 30))
def test_wrapping_loses_nothing_but_blanks(content: str, width: int) -> None:
    lines = wrap(content, width)
    assert "".join("".join(lines).split()) == "".join(content.split())
    squeezed = list(squeeze(lines, width))
    assert "".join(squeezed) == "".join(lines)
    assert all(len(line) <= width or any(sign.isdigit() for sign in line) for line in squeezed)
    assert all(len(line) <= max(width, longest_word(content)) for line in lines)


def cells(kind: Kind) -> st.SearchStrategy[Cell]:
    value = st.floats(-1e9, 1e9) | st.none()
    reach = st.none() | st.floats(0, 1e6)

    def cell(parts: tuple[float | None, float | None]) -> Cell:
        middle, half = parts
        if middle is None or half is None:
            return Cell(middle, kind)
        return Cell(middle, kind, middle - half, middle + half)

    return st.tuples(value, reach).map(cell)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    words = st.lists(
        st.sampled_from(["of", "every", "token", "dense:demo"]), min_size=1, max_size=7
    )
    kinds = draw(st.lists(st.sampled_from(list(Kind)), min_size=1, max_size=6))
    columns = [Column("row", align="left")]
    columns += [Column(" ".join(draw(words)), priority=draw(st.integers(0, 3))) for _ in kinds]
    rows = [
        Row(
            (
                text(" ".join(draw(words))),
                *(
                    text(" ".join(draw(words))) if kind is Kind.TEXT else draw(cells(kind))
                    for kind in kinds
                ),
            )
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    return Table(tuple(columns), tuple(rows), "a title")


@settings(deadline=None, max_examples=60)
@given(tables(), st.sampled_from([40, 60, 80]))
def test_every_number_of_a_table_is_whole_at_any_width(table: Table, width: int) -> None:
    stream = io.StringIO()
    print_table(table, make_console(stream, width))
    lines = stream.getvalue().splitlines()
    kept = table.select(fit(table, width).keep)
    for cell in (cell for row in kept.rows for cell in row.cells if cell.kind is not Kind.TEXT):
        for part in cell.formatted():
            assert any(part in line for line in lines)
    widest = max(
        longest_word(part) for row in kept.rows for c in row.cells for part in c.formatted()
    )
    # A number that is wider than the terminal is left whole.
    assert max(map(cell_len, lines)) <= max(width, widest + 4)


def test_a_table_too_wide_for_a_grid_becomes_a_record_a_row() -> None:
    columns = (Column("mode", align="left"), *(Column(f"over {m}") for m in ("static", "lockstep")))
    row = Row((text("dense:demo-dense"), *(Cell(1.5, Kind.RATIO, 1.4, 1.6) for _ in range(2))))
    stream = io.StringIO()
    print_table(Table(columns, (row,)), make_console(stream, 34))
    assert stream.getvalue().splitlines() == [
        "mode: dense:demo-dense",
        "  over static    1.50×",
        "                 [1.40, 1.60]",
        "  over lockstep  1.50×",
        "                 [1.40, 1.60]",
    ]


def test_a_path_is_never_broken() -> None:
    stream = io.StringIO()
    path = "/tmp/" + "directory/" * 12 + "result.json"
    print_whole(make_console(stream, 40), f"Written to {path}")
    assert f"Written to {path}\n" == stream.getvalue()


def test_lists_break_no_number_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "40")
    output.print_rows(
        ("NAME", "WEIGHT BYTES", "MEANING"),
        [("demo-dense-small", "14,314,344", "so many " * 9)] * 2,
    )
    shown = stream.getvalue()
    assert "14,314,344" in shown
    assert max(map(len, shown.splitlines())) <= 40

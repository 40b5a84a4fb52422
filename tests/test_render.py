"""How numbers read, and tables at any width, in any encoding, with and without colour."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from cdbench.render import formats
from cdbench.render.bars import bars, depth_bars
from cdbench.render.formats import Kind, format_value
from cdbench.render.layout import GAP, fit
from cdbench.render.markdown import to_markdown
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.render.terminal import make_console, print_lines, print_table, print_whole


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def speed_table() -> Table:
    columns = (
        Column("mode", align="left"),
        Column("accuracy", direction="up", note="share of answers right"),
        Column("depth", "loops", direction="down", priority=3),
        Column("output", "tok/s", direction="up", priority=2),
        Column("over static", direction="up"),
        Column("over dense:demo-dense", direction="up", priority=1),
    )
    rows = (
        _row("static", 0.97, 4.0, 812.0, None, 0.71),
        _row("cdb", 0.968, 1.93, 1290.4, 1.52, 1.08, emphasis=True),
        _row("dense:demo-dense", 0.99, None, 1190.0, 1.41, None, group="without loops"),
    )
    return Table(columns, rows, title="Demo", notes=("Prompts are real text.",))


def _row(
    mode: str,
    accuracy: float,
    depth: float | None,
    rate: float,
    over_static: float | None,
    over_dense: float | None,
    **options: object,
) -> Row:
    def ratio(value: float | None) -> Cell:
        if value is None:
            return Cell(None, Kind.RATIO, note="the mode itself, or not measured")
        return Cell(value, Kind.RATIO, value - 0.03, value + 0.03, n=6)

    cells = (
        text(mode),
        Cell(accuracy, Kind.PERCENT, accuracy - 0.01, accuracy + 0.008),
        Cell(depth),
        Cell(rate, low=rate - 20, high=rate + 20),
        ratio(over_static),
        ratio(over_dense),
    )
    return Row(cells, **options)  # type: ignore[arg-type]


def printed(table: Table, width: int, stream: io.StringIO | None = None) -> str:
    target = io.StringIO() if stream is None else stream
    print_table(table, make_console(target, width))
    return target.getvalue()


# --- numbers ---


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (formats.ratio(1.52, 1.49, 1.55), "1.52× [1.49, 1.55]"),
        (formats.ratio(1.5234), "1.52×"),
        (formats.ratio(1.52, 1.2, 1.8), "1.52× [1.20, 1.80]"),
        (formats.ratio(0.896942, 0.896942 - 1e-14, 0.896942 + 1e-14), "0.90× [0.90, 0.90]"),
        (formats.ratio(1.5, 0.2, 25), "1.50× [0.20, 25.00]"),
        (formats.ratio(None), "n/a"),
        (formats.percent(0.953), "95.3%"),
        (formats.percent(0.953, 0.941, 0.962), "95.3% [94.1, 96.2]"),
        (formats.percent(0.95, 0.7, 0.99), "95.0% [70.0, 99.0]"),
        (formats.percent(0.0), "0.0%"),
        (formats.points(-0.003, -0.009, 0.002), "-0.3 pt [-0.9, +0.2]"),
        (formats.points(0.0), "0.0 pt"),
        (formats.points(-0.00001), "0.0 pt"),
        (formats.si_bytes(512), "512 B"),
        (formats.si_bytes(1_234_567), "1.23 MB"),
        (formats.si_bytes(999_900), "1.00 MB"),
        (formats.si_bytes(32e9), "32 GB"),
        (formats.seconds(0.0123), "12.3 ms"),
        (formats.seconds(2.5), "2.50 s"),
        (formats.seconds(4.2e-5), "42.0 µs"),
        (formats.seconds(0.0), "0 s"),
    ],
)
def test_one_reading_per_number(got: str, expected: str) -> None:
    assert got == expected


@pytest.mark.parametrize(
    ("formatted", "expected"),
    [
        (format_value(1234.5), "1,234"),
        (format_value(1234.5, low=1180.0, high=1280.0), "1,230 [1,180, 1,280]"),
        (format_value(0.01234), "0.0123"),
        (format_value(1234567, Kind.COUNT), "1,234,567"),
        (format_value(2.5, Kind.COUNT), "2.50"),
        (format_value(None, n=8), "n/a (n=8)"),
        (format_value(math.nan), "n/a"),
        (format_value(1.5, Kind.RATIO, n=3), "1.50× (n=3)"),
        (format_value(1.5, Kind.RATIO, 1.5, 1.5), "1.50× [1.50, 1.50]"),
        (format_value("static"), "static"),
    ],
)
def test_digits_follow_the_uncertainty(formatted: formats.Formatted, expected: str) -> None:
    assert formatted.line == expected


@settings(deadline=None)
@given(
    st.floats(-1e15, 1e15),
    st.sampled_from(list(Kind)),
    st.none() | st.floats(0, 1e12),
)
def test_any_number_can_be_formatted(value: float, kind: Kind, reach: float | None) -> None:
    low, high = (None, None) if reach is None else (value - reach, value + reach)
    shown = format_value(value, kind, low, high).line
    assert shown
    assert "nan" not in shown
    assert formats.can_print(formats.asciify(shown), "ascii")


def test_ascii_stands_in_for_signs() -> None:
    assert formats.for_encoding("1.52× ↑ δ", "ascii") == "1.52x ^ delta"
    assert formats.for_encoding("1.52× ↑ δ", "utf-8") == "1.52× ↑ δ"
    assert not formats.can_print("×", "no-such-encoding")


# --- table ---


def test_a_row_must_fit_its_columns() -> None:
    with pytest.raises(ValueError, match="row 1 has 1 cells for 2 columns"):
        Table((Column("a"), Column("b")), (Row((text("x"),)),))


def test_equal_notes_share_a_mark() -> None:
    marks = speed_table().footnotes()
    assert marks == {"share of answers right": "a", "the mode itself, or not measured": "b"}


def test_many_footnotes_have_distinct_marks() -> None:
    rows = tuple(Row((Cell(1, note=str(i)),)) for i in range(800))
    marks = list(Table((Column("a"),), rows).footnotes().values())
    assert len(set(marks)) == 800
    assert marks[25:28] == ["z", "aa", "ab"]


def test_markdown() -> None:
    table = Table(
        (Column("mode", align="left"), Column("speed-up", direction="up", note="over static")),
        (
            Row((text("a|b"), Cell(1.52, Kind.RATIO, 1.49, 1.55)), emphasis=True),
            Row((text("c"), Cell(None, Kind.RATIO, n=3)), group="others"),
        ),
        title="T",
        notes=("A note.",),
    )
    assert to_markdown(table) == (
        "**T**\n"
        "\n"
        "| mode | speed-up ↑ (a) |\n"
        "| :--- | ---: |\n"
        "| **a\\|b** | **1.52× [1.49, 1.55]** |\n"
        "| **others** |  |\n"
        "| c | n/a (n=3) |\n"
        "\n"
        "A note.\n"
        "\n"
        "(a) over static\n"
    )


# --- terminal ---


def test_a_wide_terminal_shows_everything_on_one_line() -> None:
    shown = printed(speed_table(), 140)
    assert "1.52× [1.49, 1.55]" in shown
    assert "Not shown" not in shown
    assert "(a) share of answers right" in shown
    assert "Prompts are real text." in shown
    assert "without loops" in shown


@pytest.mark.parametrize("width", [60, 70, 80])
def test_a_narrow_terminal_keeps_what_matters(width: int) -> None:
    shown = printed(speed_table(), width)
    assert max(cell_len(line) for line in shown.splitlines()) <= width
    assert any(line.startswith("dense:demo-dense ") for line in shown.splitlines())
    for word in (
        "mode",
        "accuracy",
        "static",
        "dense:demo-dense",
        "1.52×",
        "[1.49, 1.55]",
        "96.8%",
    ):
        assert word in shown


def test_dropped_columns_are_named_least_priority_first() -> None:
    table = speed_table()
    shown = printed(table, 60)
    assert "Not shown at this width: depth" in " ".join(shown.split())
    assert fit(table, 60).keep[:2] == (0, 1)
    assert 4 in fit(table, 1).keep
    assert fit(table, 1).keep == (0, 1, 4)


@settings(deadline=None)
@given(st.integers(1, 200))
def test_what_fits_is_no_wider_than_asked(width: int) -> None:
    table = speed_table()
    layout = fit(table, width)
    if layout.widths is not None:
        assert sum(layout.widths) + GAP * (len(layout.keep) - 1) <= width
    else:
        assert all(table.columns[i].priority == 0 for i in layout.keep)


def test_even_a_tiny_terminal_prints() -> None:
    assert "cdb" in printed(speed_table(), 20)


@pytest.mark.parametrize(
    ("stream", "no_colour", "coloured"),
    [(Terminal(), None, True), (Terminal(), "1", False), (io.StringIO(), None, False)],
)
def test_colour_only_in_a_terminal_that_wants_it(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, no_colour: str | None, coloured: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_colour is not None:
        monkeypatch.setenv("NO_COLOR", no_colour)
    assert ("\x1b[" in printed(speed_table(), 100, stream)) is coloured


def test_a_pipe_is_wide_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert make_console(io.StringIO()).width == 120
    monkeypatch.setenv("COLUMNS", "66")
    assert make_console(io.StringIO()).width == 66


def test_an_ascii_stream_gets_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    print_table(speed_table(), make_console(stream, 140))
    stream.flush()
    shown = raw.getvalue().decode("ascii")
    assert "1.52x [1.49, 1.55]" in shown
    assert "?" not in shown


# --- bars ---


HOSTILE = "a\x1b[2J\x07\x9b31m\x7f\r\u202eb\u2028c"


def test_nothing_acts_on_a_terminal_but_a_line_break() -> None:
    assert formats.visible("a\tb\nc× é") == "a b\nc× é"
    shown = formats.visible(HOSTILE)
    assert len(shown) == len(HOSTILE)
    assert all(c.isprintable() for c in shown)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [120, 12])
def test_hostile_names_do_not_reach_the_terminal(width: int, encoding: str) -> None:
    table = Table(
        (Column(HOSTILE, note=HOSTILE),), (Row((text(HOSTILE),), HOSTILE),), HOSTILE, (HOSTILE,)
    )
    bytes_out = io.BytesIO()
    console = make_console(io.TextIOWrapper(bytes_out, encoding=encoding), width)
    print_table(table, console)
    print_lines(console, HOSTILE)
    print_whole(console, HOSTILE)
    console.file.flush()
    printed = bytes_out.getvalue().decode(encoding)
    assert "[2J" in printed
    assert all(c.isprintable() or c == "\n" for c in printed)


def test_depth_bars() -> None:
    lines = depth_bars([50, 25, 0, 25], width=46)
    assert [line.split()[:2] for line in lines] == [["depth", str(d)] for d in (1, 2, 3, 4)]
    assert lines[0].endswith("50.0%   50")
    assert lines[2].endswith("0.0%    0")
    assert lines[0].count("█") == 2 * lines[1].count("█")
    assert "█" not in lines[2]
    assert {len(line) for line in lines} == {46}


def test_bars_in_ascii() -> None:
    lines = depth_bars([3, 1], width=41, encoding="latin-1")
    assert lines[0].count("#") == 3 * lines[1].count("#")
    assert all(line.isascii() for line in lines)


def test_what_is_not_zero_is_never_invisible() -> None:
    assert "▏" in bars({"a": 1_000_000, "b": 1})[1]
    assert "#" in bars({"a": 1_000_000, "b": 1}, encoding="ascii")[1]


def test_no_tokens_is_said() -> None:
    assert depth_bars([0, 0]) == ["no tokens"]
    assert depth_bars([]) == ["no tokens"]


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=9), st.integers(1, 90))
def test_bars_share_one_width(counts: list[int], width: int) -> None:
    assert len({len(line) for line in depth_bars(counts, width=width)}) == 1

"""Every format shows the one table IR: golden files, raw numbers, and texts that survive."""

from __future__ import annotations

import csv
import io
import json
import os
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdbench.errors import UsageError
from cdbench.render.best import mark_best
from cdbench.render.csv_table import FIELDS, plain, to_csv
from cdbench.render.export import FORMATS, Options, as_text, export, format_of
from cdbench.render.formats import Kind
from cdbench.render.html_table import notes_html, table_html, to_html
from cdbench.render.json_table import document, to_json
from cdbench.render.markdown import to_markdown
from cdbench.render.raw_values import column_names
from cdbench.render.table import Cell, Column, Row, Table, text

GOLDEN = Path(__file__).parent / "golden"
REWRITE = "CDBENCH_REWRITE_GOLDEN"
"""Set to 1, the tests write the golden files anew: read the difference before it is kept."""


def speeds() -> Table:
    """All that a table can hold: groups both ways, notes, a dagger, a best cell, undefined ones."""
    columns = (
        Column("mode", align="left"),
        Column("accuracy", direction="up", note="share of answers right", name="accuracy"),
        Column("over static", direction="up", group="end to end", name="over.static"),
        Column("over dense:a_b", direction="up", group="end to end", note="100% & more"),
        Column("wait", direction="down", group="latency"),
        Column("rate", "token/s", "up"),
        Column("lost", direction="down", name="lost"),
    )
    rows = (
        Row(
            (
                text("lockstep"),
                Cell(0.95, Kind.PERCENT, 0.94, 0.96, 400),
                Cell(1.25, Kind.RATIO, 1.2, 1.3, 6),
                Cell(None, Kind.RATIO, n=3),
                Cell(0.0123, Kind.SECONDS),
                Cell(1234.5, Kind.NUMBER, 1200.0, 1269.0, 6),
                Cell(-0.003, Kind.POINTS, -0.009, 0.002, 400),
            ),
            "at width 16",
        ),
        Row(
            (
                text("cdb", "the schedule under test"),
                Cell(0.953, Kind.PERCENT, 0.943, 0.963, 400),
                Cell(1.5234567890123, Kind.RATIO, 1.45, 1.6, 6),
                Cell(1.1, Kind.RATIO, n=3),
                Cell(0.5, Kind.SECONDS),
                Cell(2500.0, Kind.NUMBER, 2400.0, 2600.0, 6),
                text("-"),
            ),
            "at width 16",
        ),
        Row(
            (
                text("=cdb"),
                text("-"),
                Cell(9.9, Kind.RATIO, 9.8, 10.0, 6, invalid=True),
                Cell(1.0, Kind.RATIO),
                Cell(None, Kind.SECONDS, n=12),
                Cell(2_000_000.0, Kind.BYTES),
                Cell(0.0, Kind.POINTS),
            ),
            "at width 32",
        ),
    )
    return mark_best(
        Table(
            columns,
            rows,
            "Speed-ups <made up>",
            ("† cell 3 is INVALID: 44% of the cores were taken.",),
            ("model: demo; dtype: float32.", "RANDOM WEIGHTS: timings only."),
        )
    )


def compact(number: int) -> Table:
    """A second table, without anything that may be left out."""
    return Table((Column("n"),), (Row((Cell(number, Kind.COUNT),)),))


@pytest.mark.parametrize("name", [*FORMATS, "siunitx"])
def test_every_format_is_what_the_golden_file_holds(name: str) -> None:
    kind = "latex" if name == "siunitx" else name
    options = Options("speedup", "tab:made", siunitx=name == "siunitx")
    made = export([speeds(), compact(7)], kind, options)
    ending = ".siunitx.tex" if name == "siunitx" else FORMATS[name].ending
    file = GOLDEN / f"table{ending}"
    if os.environ.get(REWRITE) == "1":
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(made.encode())
    assert file.read_bytes().decode() == made
    assert made.endswith("\n")


def test_marks_are_in_every_format() -> None:
    for name in FORMATS:
        made = export([speeds()], name)
        for words in ("INVALID", "RANDOM WEIGHTS", "the schedule under test"):
            assert words in made, name
        assert ("true" if name == "csv" else r"\dagger" if name == "latex" else "†") in made


def test_only_a_cell_that_no_other_interval_reaches_is_best() -> None:
    best = {
        (at, number)
        for at, row in enumerate(speeds().rows)
        for number, cell in enumerate(row.cells)
        if cell.best
    }
    # Speed-ups and rates of cdb; accuracies overlap, and the INVALID group has nothing beside it.
    assert best == {(1, 2), (1, 5)}


@pytest.mark.parametrize(
    "change",
    [
        {"invalid": True},
        {"low": None, "high": None},
        {"low": 1.29},
        {"value": None},
    ],
)
def test_nothing_is_best_beside_what_cannot_be_compared(change: dict[str, object]) -> None:
    """An INVALID rival, one without an interval, an overlapping one, or none at all."""
    column = (Column("over", direction="up"),)
    fast = Cell(1.5, Kind.RATIO, 1.29, 1.6)
    slow = Cell(1.2, Kind.RATIO, 1.1, 1.28)
    rows = (Row((fast,)), Row((slow,)))
    assert [row.cells[0].best for row in mark_best(Table(column, rows)).rows] == [True, False]
    changed = {"low": 1.1, "high": 1.3} if change == {"low": 1.29} else change
    rival = replace(slow, **changed)
    assert not any(r.cells[0].best for r in mark_best(Table(column, (rows[0], Row((rival,))))).rows)


def test_lower_is_best_where_the_column_says_so_and_none_without_a_direction() -> None:
    cells = (Row((Cell(2.0, low=1.9, high=2.1),)), Row((Cell(1.0, low=0.9, high=1.1),)))
    for direction, expected in (("down", [False, True]), ("none", [False, False])):
        table = mark_best(Table((Column("t", direction=direction),), cells))  # type: ignore[arg-type]
        assert [row.cells[0].best for row in table.rows] == expected


# --- CSV and JSON: raw numbers ---


def lines(tables: list[Table]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(tables), newline="")))


def test_csv_has_a_line_a_cell_with_raw_numbers_and_their_unit() -> None:
    read = lines([speeds(), compact(7)])
    (cell,) = [x for x in read if (x["row"], x["column"]) == ("2", "over.static")]
    assert float(cell["value"]) == 1.5234567890123
    assert (float(cell["low"]), float(cell["high"]), int(cell["n"])) == (1.45, 1.6, 6)
    assert (cell["unit"], cell["kind"], cell["direction"]) == ("ratio", "ratio", "up")
    assert (cell["group"], cell["label"], cell["best"]) == ("at width 16", "cdb", "true")
    (share,) = [x for x in read if (x["row"], x["column"]) == ("1", "accuracy")]
    assert (float(share["value"]), share["unit"]) == (0.95, "fraction")
    assert share["notes"] == "share of answers right"
    assert [x["value"] for x in read if x["kind"] == "caption"][-1].startswith("RANDOM WEIGHTS")
    assert len([x for x in read if x["row"]]) == 3 * 7 + 1
    assert read[-1]["table"] == "table 2"


def test_what_is_absent_or_undefined_is_empty_and_never_zero() -> None:
    read = {(x["row"], x["column"]): x for x in lines([speeds()])}
    assert read["2", "lost"]["value"] == ""
    assert (read["3", "latency, wait"]["value"], read["3", "latency, wait"]["n"]) == ("", "12")
    assert read["3", "lost"]["value"] == "0.0"
    cells = document([speeds()])["tables"][0]["rows"][2]["cells"]
    assert cells["latency, wait"]["value"] is None
    assert cells["accuracy"]["value"] is None
    assert cells["lost"]["value"] == 0.0


def test_csv_is_rfc_4180_and_no_spreadsheet_takes_a_text_for_a_formula() -> None:
    made = to_csv([speeds()])
    assert made.startswith(",".join(FIELDS) + "\r\n")
    assert "\n" not in made.replace("\r\n", "")
    formula = [x for x in lines([speeds()]) if x["row"] == "3" and x["column"] == "mode"]
    assert formula[0]["value"] == "'=cdb"
    for risky in ("=1+1", "+1", "-1", "@SUM(A1)", "\tx", "'x"):
        table = Table((Column(risky, align="left"),), (Row((text(risky, risky),), risky),), risky)
        for line in lines([table]):
            known = {line["table"], line["group"], line["column"], line["notes"], line["value"]}
            assert known == {f"'{risky}"}


@given(st.text(), st.text(), st.text())
def test_any_text_comes_back_from_csv_and_json(said: str, note: str, group: str) -> None:
    table = Table((Column("x", align="left"),), (Row((text(said, note),), group),), notes=(note,))
    cell, *rest = lines([table])
    assert plain(cell["value"]) == ("" if said == "-" else said)
    assert (plain(cell["notes"]), plain(cell["group"])) == (note, group)
    assert [plain(x["value"]) for x in rest] == [note]
    (read,) = json.loads(to_json([table]))["tables"]
    assert read["rows"][0]["cells"]["x"]["value"] == (None if said == "-" else said)
    assert (read["rows"][0]["group"], read["notes"]) == (group, [note])


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_number_comes_back_exactly_or_is_absent(value: float) -> None:
    table = Table((Column("x"),), (Row((Cell(value),)),))
    finite = value if value == value and abs(value) != float("inf") else None
    read = lines([table])[0]["value"]
    assert (float(read) if read else None) == finite
    assert document([table])["tables"][0]["rows"][0]["cells"]["x"]["value"] == finite


def test_columns_of_one_title_have_names_of_their_own() -> None:
    columns = (Column("p50", group="ttft"), Column("p50", group="e2e"), Column("x"), Column("x"))
    assert column_names(columns) == ["ttft, p50", "e2e, p50", "x", "x.2"]


# --- HTML ---


class Reader(HTMLParser):
    """Elements, texts and links of a piece of HTML; it must close what it opens."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.append(tag)
        known = dict(attrs)
        self.attributes |= set(known)
        self.ids += [known["id"] or ""] if "id" in known else []
        self.links += [known["href"] or ""] if "href" in known else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_html_is_a_table_with_scopes_groups_and_notes_that_links_reach() -> None:
    made = to_html(speeds(), classes="wide plain")
    read = Reader(made)
    assert '<table class="wide plain">' in made
    assert read.tags.count("tbody") == 2
    assert '<th scope="colgroup" colspan="2">end to end</th>' in made
    assert '<th scope="rowgroup" colspan="7">at width 16</th>' in made
    assert made.count('<th scope="row"') == 3
    assert {link.removeprefix("#") for link in read.links} == set(read.ids)
    assert len(read.ids) == len(set(read.ids)) == 3
    assert '<td class="num best"><strong>1.52×</strong>' in made
    assert '<span class="interval">[1.45, 1.60]</span>' in made
    assert not {"style", "onclick"} & read.attributes
    assert not {"style", "script"} & set(read.tags)
    assert to_html(speeds()) == table_html(speeds()) + notes_html(speeds())


def test_two_tables_alike_can_stand_on_one_page() -> None:
    made = export([speeds(), speeds()], "html", Options("speedup"))
    ids = Reader(made).ids
    assert len(ids) == len(set(ids))


@given(st.text(alphabet=st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc", "Cn"])))
def test_any_text_comes_back_from_html(said: str) -> None:
    table = Table(
        (Column(said, said, note=said),), (Row((text(said, said),), said),), said, (said,), (said,)
    )
    read = Reader(to_html(table, classes=said))
    assert {"table", "thead", "tbody", "tr", "th"} <= set(read.tags)
    assert not {"script", "b", "img"} & set(read.tags)
    assert said in "".join(read.texts)


def test_hostile_names_stay_texts_in_html_and_markdown() -> None:
    name = "</script><b onload=x>&|\"'"
    table = Table((Column(name),), (Row((text(name),), name),), name, (name,))
    assert "<b" not in to_html(table)
    assert to_markdown(table).count("|\n") == 4


def test_no_text_acts_on_markdown_wherever_it_stands() -> None:
    name = "<img src=x> `a` **b** ~~c~~ [d](http://e) \x1b[31m _f_\n# g"
    table = Table((Column(name, note=name),), (Row((text(name),), name),), name, (name,), (name,))
    page = to_markdown(table)
    assert not set(page) & set("`<>~\x1b")
    assert "](" not in page
    assert "\n#" not in page
    assert page.count("**") == 4  # the title's and the group's
    assert "_f_" not in page


def test_a_table_without_rows_is_its_notes_in_every_format() -> None:
    empty = Table((Column("mode"),), (), "nothing", ("no run has it",))
    for name in FORMATS:
        assert "no run has it" in export([empty], name)
        assert "| mode" not in export([empty], name)
        assert "<th" not in export([empty], name)
    assert to_html(Table((), ())) == ""
    assert as_text([Table((), ())]) == ""


# --- names ---


def test_formats_are_found_by_name_and_by_the_ending_of_a_file() -> None:
    assert format_of("a/b.tex") == "latex"
    assert format_of("a/b.pdf") is None
    with pytest.raises(UsageError, match="did you mean 'markdown'"):
        export([], "markdwn")

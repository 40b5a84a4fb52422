"""Tables in LaTeX: nothing is left bare that LaTeX would act on, and every style compiles."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdbench.render.formats import Kind
from cdbench.render.latex import packages, to_latex
from cdbench.render.latex_text import escape, number
from cdbench.render.styles import make_tables
from cdbench.render.table import Cell, Column, Row, Table, text
from tests.test_table_formats import speeds
from tests.test_table_styles import MADE, measured_for

WRITTEN_OUT = re.compile(
    r"""\\text[a-z]+\{\} | \\(?:ldots|ss|ae|AE|o|O|l|L)\{\}   # a command with its empty argument
    | \\[_%&\#{}$]                                              # an escaped special
    | \$[^$~]*\$                                                # mathematics, balanced
    | \\["'`^~=.uHcvr]\{\\?[A-Za-z]\}                           # an accent over a letter
    | \{[\[\]*]\} | \{''\} | \{\}                               # guarded, and the break of --
    """,
    re.X,
)


@given(st.text())
def test_no_special_is_left_bare(said: str) -> None:
    made = escape(said)
    assert made.isascii()
    rest = WRITTEN_OUT.sub("", made).replace("~", "")
    assert not set(rest) & set('\\{}$&#_%^[]*|<>`"')
    assert "\n" not in made
    assert "--" not in escape(said.replace("–", "").replace("—", ""))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("100% of a_b & #3", r"100\% of a\_b \& \#3"),
        ("{x}^2 ~ $5", r"\{x\}\textasciicircum{}2 \textasciitilde{} \$5"),
        ("C:\\dir", r"C:\textbackslash{}dir"),
        ("--limit 5", "-{}-limit 5"),
        ("1.5×, δ ≤ 1 – done", r"1.5$\times$, $\delta$ $\leq$ 1 -- done"),
        ("Å é ñ ı", r"\r{A} \'{e} \~{n} ?"),
        ("[a] *b*", "{[}a{]} {*}b{*}"),
        ("a\nb\tc", "a b c"),
        ("日", "?"),
    ],
)
def test_texts_are_written_out(said: str, expected: str) -> None:
    assert escape(said) == expected


@pytest.mark.parametrize(
    ("said", "plain", "with_siunitx"),
    [
        ("1.52×", r"1.52$\times$", r"\num{1.52}$\times$"),
        ("-0.3 pt", "$-$0.3 pt", r"\num{-0.3} pt"),
        ("1,234", "1,234", r"\num{1234}"),
        ("[-0.9, +0.2]", "{[}$-$0.9, $+$0.2{]}", None),
        ("95.3%", r"95.3\%", r"\num{95.3}\%"),
        ("n/a", "n/a", "n/a"),
    ],
)
def test_numbers_have_true_minus_signs(said: str, plain: str, with_siunitx: str | None) -> None:
    assert number(said) == plain
    if with_siunitx is not None:
        assert number(said, siunitx=True) == with_siunitx


def test_an_interval_in_siunitx_keeps_its_comma_and_its_plus() -> None:
    made = number("[-1,180.5, +1,280]", siunitx=True)
    assert made == r"{[}\num{-1180.5}, \num[retain-explicit-plus]{+1280}{]}"


def narrow() -> Table:
    """Three of the columns, which fit a line."""
    return speeds().select((0, 2, 3))


def wide(columns: int = 12) -> Table:
    """Two rows with so many speed-ups, each with an interval."""
    heads = (
        Column("mode", align="left"),
        Column("width"),
        *(Column(f"over baseline {n}", direction="up", group="end to end") for n in range(columns)),
    )
    cells = [Cell(1.0 + n, Kind.RATIO, 0.9 + n, 1.1 + n) for n in range(columns)]
    rows = tuple(
        Row((text(mode), Cell(16, Kind.COUNT), *cells))
        for mode in ("cdb", "cannot tell from static")
    )
    return Table(heads, rows, "wide")


def test_spans_bold_and_small_intervals() -> None:
    made = to_latex([narrow()], label="tab:x")
    assert r"\multicolumn{2}{c}{end to end}" in made
    assert r"\cmidrule(lr){2-3}" in made
    assert r"\textbf{1.52$\times$} {\scriptsize {[}1.45, 1.60{]}}" in made
    assert made.count(r"\textbf") == 1
    assert r"9.90$\times$$^{\dagger}$" in made
    assert r"\label{tab:x}" in made
    assert made.count(r"\multicolumn{3}{@{}l}") == 2
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert made.count(rule) == 1


def test_a_bold_number_is_not_left_to_siunitx() -> None:
    made = to_latex([narrow()], siunitx=True)
    assert r"\textbf{1.52$\times$} {\scriptsize {[}\num{1.45}, \num{1.60}{]}}" in made
    assert r"\num{1.25}$\times$" in made


def test_what_is_wider_than_a_page_is_folded_and_goes_on_below() -> None:
    made = to_latex([wide()])
    parts = made.split(r"\begin{tabular}")[1:]
    assert len(parts) > 1
    for part in parts:
        rows = part.split(r"\midrule")[1]
        assert "cdb & 16 &" in rows  # the columns that name the rows lead every part
        assert r"\tiny {[}" in rows
    shown = re.findall(r"(\d+)\.00\$\\times\$ ", made.replace("&", " ").replace(r"\\", " "))
    assert sorted(map(int, shown)) == sorted([n for n in range(1, 13)] * 2)
    assert made.count(r"\begin{table}") == made.count(r"\end{table}") == 1


def test_emphasis_alone_makes_nothing_bold() -> None:
    table = Table((Column("x"),), (Row((Cell(1.0),), emphasis=True),))
    assert r"\textbf" not in to_latex([table])


@pytest.mark.parametrize("table", [narrow(), speeds(), wide()])
def test_every_line_of_the_table_has_all_its_columns(table: Table) -> None:
    for part in to_latex([table]).split(r"\begin{tabular}")[1:]:
        columns = len(re.findall("[lr]", part.partition("\n")[0].replace("@{}", "")))
        body = part.split(r"\midrule")[1].split(r"\bottomrule")[0]
        counts = {line.replace(r"\&", "").count("&") for line in body.splitlines() if "&" in line}
        assert counts == {columns - 1}


def test_further_tables_have_labels_of_their_own() -> None:
    made = to_latex([narrow(), narrow()], label="tab:x")
    assert re.findall(r"\\label\{(.*)\}", made) == ["tab:x", "tab:x-2"]


def compiled(source: str, directory: Path, siunitx: bool, *, fits: bool = True) -> None:
    loads = "".join(rf"\usepackage{{{name}}}" for name in packages(siunitx=siunitx))
    whole = rf"\documentclass{{article}}{loads}\begin{{document}}{source}\end{{document}}"
    (directory / "t.tex").write_text(whole)
    # What is set must fit the page: too wide a line is a fault as well.
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-3000:]
    assert (directory / "t.pdf").stat().st_size > 1000
    assert "Overfull" not in done.stdout or not fits


def needs_latex(siunitx: bool) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex: install texlive-latex-recommended")
    for name in packages(siunitx=siunitx):
        found = subprocess.run(["kpsewhich", f"{name}.sty"], capture_output=True, check=False)
        if found.returncode != 0:
            pytest.skip(f"LaTeX has no {name}: install texlive-latex-recommended, texlive-science")


@pytest.mark.slow
@pytest.mark.parametrize("siunitx", [False, True])
@pytest.mark.parametrize("style", [*MADE, "formats"])
def test_every_style_compiles(style: str, siunitx: bool, tmp_path: Path) -> None:
    needs_latex(siunitx)
    made = (
        [speeds(), wide()]
        if style == "formats"
        else make_tables(style, measured_for(style, tmp_path))
    )
    compiled(to_latex(made, label="tab:x", siunitx=siunitx), tmp_path, siunitx)


@pytest.mark.slow
def test_hostile_texts_compile(tmp_path: Path) -> None:
    needs_latex(siunitx=False)
    said = "".join(map(chr, range(1, 0x250))) + " [x] *y* -- --- `a' \\end{table} % 日本 ẞ ﬁ Å"
    table = Table(
        (Column(said, said, note=said),),
        (Row((text(said, said),), said), Row((text("[x]"),)), Row((text("*"),))),
        said,
        (said,),
        (said,),
    )
    compiled(to_latex([table]), tmp_path, siunitx=False, fits=False)

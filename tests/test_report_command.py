"""`cdbench report`: where it writes, what it never overwrites, and what it refuses by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cdbench.cli.main import main
from cdbench.render.report import output
from cdbench.render.report import page as page_module
from cdbench.render.report.output import REPORT_FILE
from cdbench.render.report.page import is_report
from cdbench.render.report.plots.files import MARK
from cdbench.schema import RESULT_FILE
from tests.recorded import scripted_stages
from tests.reporting import Page, sketched
from tests.test_raw_records import written

ROOT = Path(__file__).parent.parent


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return written(tmp_path / "one", stages=scripted_stages())


@pytest.fixture
def sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures without their lines, on the page and as files."""
    monkeypatch.setattr(page_module, "inline_svg", sketched)
    monkeypatch.setattr(output, "picture", lambda plot, ending, marks: MARK.encode())


def failed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    """The one line of a command that must fail."""
    capsys.readouterr()
    assert main(["report", *words]) == code
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line.startswith("cdbench: ")
    return line


@pytest.mark.usefixtures("sketches")
def test_a_report_lies_in_its_run_and_is_replaced_by_the_next(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name for path in run.iterdir()}
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"Report written to {run / REPORT_FILE}\n"
    assert {path.name for path in run.iterdir()} == before | {REPORT_FILE}
    first = (run / REPORT_FILE).read_bytes()
    assert is_report(run / REPORT_FILE)
    assert Page(first.decode()).errors == []
    assert main(["report", str(run / RESULT_FILE)]) == 0, "named by its file, the same run"
    assert (run / REPORT_FILE).read_bytes() == first
    assert main(["recheck", str(run)]) == 0, "a report is no raw record"


def test_a_file_that_is_no_report_is_left_alone(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = run / REPORT_FILE
    mine.write_text("<html>mine</html>")
    assert "is no report of cdbench" in failed(capsys, str(run))
    assert mine.read_text() == "<html>mine</html>"
    assert sorted(p.name for p in run.iterdir() if p.name.startswith(".")) == []


@pytest.mark.usefixtures("sketches")
def test_pictures_are_the_pages_own_in_every_format(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plots = tmp_path / "new" / "a.html", tmp_path / "plots"
    words = ["report", str(run), "--out", str(out), "--plots", str(plots), "--json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["report"] == str(out)
    names = {path.name for path in plots.iterdir()}
    assert {str(plots / name) for name in names} == set(document["plots"])
    (data,) = Page(out.read_text()).raw["script"]
    stems = set(json.loads(data)["figures"])
    assert names == {f"{stem}.{ending}" for stem in stems for ending in ("svg", "pdf", "png")}
    assert main(words) == 0, "its own pictures are replaced"


def test_formats_can_be_chosen(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "inline_svg", sketched)
    plots = tmp_path / "plots"
    assert main(["report", str(run), "--plots", str(plots), "--plot-format", "svg"]) == 0
    assert {path.suffix for path in plots.iterdir()} == {".svg"}


@pytest.mark.usefixtures("sketches")
def test_a_picture_of_someone_else_ends_it_before_anything_is_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plots = tmp_path / "plots"
    plots.mkdir()
    (plots / "stage-curves.pdf").write_text("mine")
    assert "is no picture of a report" in failed(capsys, str(run), "--plots", str(plots))
    assert [path.name for path in plots.iterdir()] == ["stage-curves.pdf"]
    assert not (run / REPORT_FILE).exists()


@pytest.mark.usefixtures("sketches")
def test_several_runs_need_a_place_and_each_has_its_pictures(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = written(tmp_path / "deeper" / "one")
    assert "add --out FILE" in failed(capsys, str(run), str(other))
    out, plots = tmp_path / "both.html", tmp_path / "plots"
    words = [str(run), str(other), "--out", str(out), "--plots", str(plots)]
    assert main(["report", *words, "--plot-format", "svg"]) == 0
    page = Page(out.read_text())
    assert page.errors == []
    titles = [words for level, words in page.headings if level == 2]
    assert titles[1:] == [f"{tmp_path.name}/one", "deeper/one"], "the same name twice"
    names = {path.name for path in plots.iterdir()}
    assert "runs-speed-up.svg" in names
    assert {name.partition("-")[0] for name in names} == {"run1", "run2", "runs"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "page.txt"], "end it in .html or .htm"),
        (["--plot-format", "svg"], "add --plots DIR"),
        (["--plots", "p", "--plot-format", "gif"], "gif is no format; choose from svg, pdf, png"),
        (["--plots", "p", "--plot-format", ""], "nothing is no format"),
        (["--out", "."], "end it in .html"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert said in failed(capsys, str(run), *words)
    assert not (run / REPORT_FILE).exists()


def test_a_run_that_cannot_be_read_is_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert str(tmp_path / "none") in failed(capsys, str(tmp_path / "none"))
    assert "stands twice" in failed(capsys, str(run), str(run / RESULT_FILE), "--out", "x.html")
    whole = (run / RESULT_FILE).read_text()
    (run / RESULT_FILE).write_text(whole[: len(whole) // 2])
    assert RESULT_FILE in failed(capsys, str(run))
    assert not (run / REPORT_FILE).exists()


def test_records_that_contradict_their_run_are_no_report(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (run / "requests.jsonl").read_text().splitlines(keepends=True)
    (run / "requests.jsonl").write_text("".join(lines[:-1]))
    line = failed(capsys, str(run))
    assert "raw records" in line
    assert "cdbench recheck" in line


def test_a_result_that_its_records_contradict_is_no_report(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Edited consistently with nothing else in it: only the raw records tell."""
    document = json.loads((run / RESULT_FILE).read_text())
    document["workload"]["requests"] += 1
    (run / RESULT_FILE).write_text(json.dumps(document))
    assert "edited, damaged" in failed(capsys, str(run))
    assert not (run / REPORT_FILE).exists()


def test_a_lone_result_that_contradicts_itself_is_no_report(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((run / RESULT_FILE).read_text())
    document["comparisons"][0]["speedup"]["high"] = 9.0
    alone = tmp_path / "alone.json"
    alone.write_text(json.dumps(document))
    out = tmp_path / "page.html"
    line = failed(capsys, str(alone), "--out", str(out))
    assert "speed-up" in line
    assert not out.exists()


@pytest.mark.usefixtures("sketches")
def test_a_directory_without_raw_records_still_has_a_report(run: Path) -> None:
    for path in run.iterdir():
        if path.name != RESULT_FILE:
            path.unlink()
    assert main(["report", str(run)]) == 0
    assert "raw records" in Page((run / REPORT_FILE).read_text()).text


def test_a_report_needs_no_torch(tmp_path: Path) -> None:
    run = written(tmp_path / "one", blocks=1)
    script = (
        "import sys; from cdbench.cli.main import main; code = main(sys.argv[1:]); "
        "sys.exit(code or ('torch' in sys.modules) * 9)"
    )
    words = [sys.executable, "-c", script, "report", str(run)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""

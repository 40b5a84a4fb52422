"""``cdbench table`` as a person meets it: files, pipes, narrow terminals, wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdbench.cli.main import main
from tests.tabled import timed_run, written
from tests.test_table_styles import thresholds


@pytest.fixture
def run(tmp_path: Path) -> str:
    return written(tmp_path / "run", timed_run())


def table(*args: str) -> int:
    return main(["table", *args])


def test_the_default_is_a_table_for_people(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert table(run) == 0
    shown, told = capsys.readouterr()
    assert "Speed-up on equal work" in shown
    assert "1.80×" in shown
    assert "[1.75, 1.85]" in shown
    assert shown.splitlines()[-1] != ""
    assert "\x1b[" not in shown
    assert told == ""


@pytest.mark.parametrize("style", ["speedup", "waterfall"])
@pytest.mark.parametrize("width", ["40", "60", "200"])
def test_nothing_is_wider_than_the_terminal(
    run: str,
    style: str,
    width: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert table(run, "--style", style) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= int(width)
    assert "1.80×" in shown


def test_json_on_stdout_is_one_document(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert table(run, "--format", "json") == 0
    read = json.loads(capsys.readouterr().out)
    assert (read["kind"], read["style"], read["schema_version"]) == ("tables", "speedup", 1)


def test_a_result_file_will_do_for_its_directory(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table(run) == 0
    whole = capsys.readouterr().out
    assert table(f"{run}/result.json") == 0
    assert capsys.readouterr().out == whole


def test_a_sweep_can_be_named_by_directory_or_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sweep,) = thresholds(tmp_path)
    assert table(sweep, "--style", "exit-sweep") == 0
    whole = capsys.readouterr().out
    assert table(f"{sweep}/sweep.json", "--style", "exit-sweep") == 0
    assert capsys.readouterr().out == whole


def test_the_ending_of_the_file_is_its_format(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "speed.tex"
    assert table(run, "--out", str(file), "--label", "tab:speed", "--caption", "Mine") == 0
    shown, told = capsys.readouterr()
    assert (shown, told) == ("", f"cdbench: written to {file}\n")
    text = file.read_text()
    assert r"\label{tab:speed}" in text
    assert r"\caption{Mine. Model: demo-ouro" in text
    assert list(file.parent.iterdir()) == [file]


def test_a_file_that_is_there_stays_unless_forced(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.csv"
    file.write_text("mine")
    assert table(run, "--out", str(file)) == 2
    assert file.read_text() == "mine"
    assert "exists; name a new file, or add --force" in capsys.readouterr().err
    assert table(run, "--out", str(file), "--force") == 0
    assert file.read_text().startswith("table,")


@pytest.mark.parametrize("name", ["x.pdf", "x", "x.md5"])
def test_an_ending_of_no_format_asks_for_the_format(
    run: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    assert table(run, "--out", str(file)) == 2
    assert "add --format F" in capsys.readouterr().err
    assert not file.exists()
    assert table(run, "--out", str(file), "--format", "csv") == 0
    assert file.read_text().startswith("table,")


@pytest.mark.parametrize(
    "name", ["result.json", "requests.jsonl", "sweep.json", "launches.npz", "samples_x.jsonl"]
)
def test_what_a_run_wrote_is_never_replaced(
    run: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(run, "result.json").read_bytes()
    assert table(run, "--out", f"{run}/{name}", "--force") == 2
    assert "is not replaced" in capsys.readouterr().err
    link = Path(run).with_name("link.csv")
    link.symlink_to(Path(run, name))
    assert table(run, "--out", str(link), "--force") == 2
    assert "is not replaced" in capsys.readouterr().err
    assert Path(run, "result.json").read_bytes() == before


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--style", "speedups"], "no such style; did you mean 'speedup'?"),
        (["--format", "latx"], "no such format; did you mean 'latex'?"),
        (["--siunitx"], "--siunitx: is for LaTeX, not rich"),
        (["--label", "a", "--format", "csv"], "--label: is for LaTeX, not csv"),
        (["--label", "a}b", "--format", "latex"], "LaTeX would not take it"),
        (["--style", "accuracy-by-depth"], "has no accuracy"),
    ],
)
def test_wrong_flags_are_one_line_and_code_2(
    run: str, args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table(run, *args) == 2
    shown, told = capsys.readouterr()
    assert shown == ""
    assert words in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("content", ["", "{", '{"schema_version": 1}', "[]", "\x00", "null"])
def test_a_damaged_result_is_one_line_and_code_2(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "result.json").write_text(content)
    assert table(str(tmp_path)) == 2
    shown, told = capsys.readouterr()
    assert (shown, told.count("\n")) == ("", 1)
    assert "result.json" in told


def test_a_truncated_result_and_a_missing_run_write_nothing(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(run, "result.json")
    file.write_bytes(file.read_bytes()[:-100])
    out = tmp_path / "t.md"
    assert table(run, "--out", str(out)) == 2
    assert table(str(tmp_path / "nothing"), "--out", str(out)) == 2
    assert not out.exists()
    assert capsys.readouterr().err.count("\n") == 2

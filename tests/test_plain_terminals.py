"""Terminals that can do little: no colour, no cursor, no character beyond ASCII."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer import main as typer_main

from cdbench.cli.main import build_app
from cdbench.cli.progress import Bar, Lines, progress_on_stderr
from cdbench.cli.run import print_report
from cdbench.cli.verbs import VERBS
from cdbench.render.formats import asciify
from cdbench.render.terminal import make_console
from cdbench.schema import read_result

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "results" / "reference" / "demo-cpu"


class Terminal(io.TextIOWrapper):
    """A stream of some encoding that says it is a terminal."""

    def __init__(self, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)

    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        self.flush()
        raw = self.buffer
        assert isinstance(raw, io.BytesIO)
        return raw.getvalue().decode(self.encoding)


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_report_has_no_escape_codes_where_none_are_wanted(
    setting: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    stream = Terminal("utf-8")
    print_report(read_result(REFERENCE), "somewhere", make_console(stream), full=True)
    assert "\x1b" not in stream.shown()


def test_a_report_in_ascii_has_a_reading_for_every_sign() -> None:
    stream = Terminal("ascii")
    console = make_console(stream, 80)
    print_report(read_result(REFERENCE), "somewhere", console, full=True)
    shown = stream.shown()
    assert "1.41x [1.34, 1.48]" in shown
    assert "depth 2  ####" in shown
    assert "?" not in shown.replace("alike?", "")


@pytest.mark.parametrize(
    ("term", "kind"), [("xterm-256color", Bar), ("dumb", Lines), ("unknown", Lines)]
)
def test_progress_is_a_bar_only_where_a_cursor_can_move(
    term: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    stream = Terminal("ascii")
    with progress_on_stderr(stream, quiet=False) as progress:
        assert isinstance(progress, kind)
        progress.phase("timing 6 blocks", 12)
        progress.advance(6)
    assert "timing 6 blocks" in stream.shown()
    assert stream.shown().isascii()


def printed_texts(path: Path) -> Iterator[str]:
    """The texts in a module that are not documentation."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in documentation:
            yield str(node.value)


def test_every_sign_the_package_prints_has_an_ascii_reading() -> None:
    unknown = {
        sign
        for path in (ROOT / "cdbench").rglob("*.py")
        for text in printed_texts(path)
        for sign in text
        if not sign.isascii() and "?" in asciify(sign)
    }
    # The replacement character itself means that a character is unknown.
    assert unknown <= {"\ufffd"}


@pytest.mark.parametrize("name", VERBS)
def test_help_is_ascii(name: str) -> None:
    """The parser prints it without asking what the terminal can show."""
    command = typer_main.get_command(build_app(name))
    with command.make_context("cdbench", [name, "--help"], resilient_parsing=True) as context:
        commands = [command.get_command(context, name)]  # type: ignore[attr-defined]
        for found in commands:
            commands += getattr(found, "commands", {}).values()
            text = found.get_help(type(context)(found, info_name=name, parent=context))
            assert text.isascii(), {sign for sign in text if not sign.isascii()}


def test_the_command_line_works_in_an_ascii_locale() -> None:
    environment = {
        **os.environ,
        "PYTHONIOENCODING": "ascii",
        "LC_ALL": "C",
        "PYTHONPATH": str(ROOT),
    }
    call = "from cdbench.cli.main import main; main(['list', 'metrics']); main(['run', '-h'])"
    done = subprocess.run(
        [sys.executable, "-c", call], env=environment, capture_output=True, check=True, cwd=ROOT
    )
    assert done.stdout.isascii()
    assert b"?" not in done.stdout
    assert not done.stderr

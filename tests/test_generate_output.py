"""``cdbench generate``: what a person sees of it, and how it ends when interrupted."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from cdbench.cli.errors import BROKEN_PIPE
from cdbench.render.continuation import Continuation, Printer, id_pieces, text_pieces
from cdbench.render.terminal import make_console
from cdbench.runtime.engine import Engine
from tests.generating import OURO, WORDS, Capture, document, ids_file, run, two, worded

__all__ = ["two", "worded"]


@pytest.mark.parametrize("as_json", [True, False])
def test_an_interrupt_is_130(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, two: Path, as_json: bool
) -> None:
    served = Engine.run

    def interrupted(self: Any, *args: Any) -> Any:
        yield from itertools.islice(served(self, *args), 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "run", interrupted)
    code, out, err = run(
        capsys, OURO, "--ids-file", two, "--exit", "none", *(["--json"] if as_json else [])
    )
    assert (code, err) == (130, "cdbench: interrupted\n")
    # What was finished is shown to a person; a document is whole or not there.
    assert (out == "") == as_json


def test_a_pipe_shows_depths_as_text(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, worded: Path
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    code, out, _ = run(
        capsys, worded, "--prompt", "one two", "--ignore-eos", "--max-new-tokens", 30
    )
    assert code == 0
    assert "\x1b" not in out
    found = document(capsys, worded, "--prompt", "one two", "--ignore-eos", "--max-new-tokens", 30)[
        "requests"
    ][0]
    shown = next(line for line in out.splitlines() if "·4" in line)
    assert [int(token.rsplit("·")[-1]) for token in shown.split()] == found["depths"]
    assert "[0] one two" in out
    later = found["depths"][1:]
    assert f"30 tokens, mean depth {sum(later) / len(later):.2f} of 4, length" in out


def test_results_stream_in_the_order_they_finish(capsys: Capture, tmp_path: Path) -> None:
    lines = [{"prompt": [1], "max_new_tokens": 20}, {"prompt": [2], "max_new_tokens": 2}]
    _, out, _ = run(capsys, OURO, "--ids-file", ids_file(tmp_path / "ids.jsonl", lines))
    assert out.index("[1] 2") < out.index("[0] 1")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def printed(monkeypatch: pytest.MonkeyPatch, colour: bool, width: int) -> str:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("COLORTERM", raising=False)
    monkeypatch.setenv("NO_COLOR", "" if colour else "1")
    stream = Terminal()
    printer = Printer(make_console(stream, width), 4)
    printer.heading(["a-model · cdb · exit cdf@0.5 · kv per-loop · float32 on cpu"])
    words = [word if i == 0 else f" {word}" for i, word in enumerate(WORDS[1:])]
    depths = [1 + i % 4 for i in range(len(words))]
    printer.continuation(Continuation(0, "a prompt " * 20, words, depths, "stop"))
    printer.continuation(Continuation(1, "x", [], [], "error", "needs 9 bytes"))
    return stream.getvalue()


def test_a_terminal_shows_depths_as_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    out = printed(monkeypatch, colour=True, width=100)
    assert "\x1b[" in out
    assert "·1" not in out
    # each depth of the legend has a colour of its own
    legend = next(line for line in out.splitlines() if line.startswith("depth:"))
    assert len(set(legend.split("\x1b[0m"))) == 5


@pytest.mark.parametrize("width", [40, 100])
def test_no_color_writes_depths_and_fits(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    out = printed(monkeypatch, colour=False, width=width)
    assert "\x1b[3" not in out
    assert "token·d" in out
    assert "zero·1 one·2 two·3" in out
    plain = out.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert max(len(line.rstrip()) for line in plain.splitlines()) <= width


def test_pieces_add_up_to_the_text(worded: Path) -> None:
    decode = Tokenizer.from_file(str(worded / "tokenizer.json")).decode
    tokens = [1 + i % 22 for i in range(40)]
    assert "".join(text_pieces(tokens, decode, decode(tokens))) == decode(tokens)
    cut = decode(tokens)[:17]
    assert "".join(text_pieces(tokens, decode, cut)) == cut
    assert text_pieces([3, 0, 4], decode, decode([3, 0, 4])) == ["two", "<0>", " three"]
    assert id_pieces([3, 0]) == ["3", " 0"]


def test_a_model_cannot_steer_the_terminal() -> None:
    stream = io.StringIO()
    printer = Printer(make_console(stream, 80), 2)
    printer.continuation(Continuation(0, "a\x1b[2J", ["b\x1b[1A\n"], [2], "stop"))
    assert "\x1b" not in stream.getvalue()
    assert "b\\x1b[1A\\n·2" in stream.getvalue()


def test_a_closed_pipe_is_quiet() -> None:
    program = "import sys; from cdbench.cli.main import main; sys.exit(main())"
    args = ["generate", OURO, "--ids-file", "-", "--exit", "none", "--max-new-tokens", "2"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write('{"prompt": [1]}\n')
        process.stdin.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (BROKEN_PIPE, "")


def test_help_does_not_wait_for_torch() -> None:
    program = (
        "import sys; from cdbench.cli.main import main; main(['generate', '--help']); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert "--exit-lag" in done.stdout

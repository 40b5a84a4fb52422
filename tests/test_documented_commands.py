"""Every command in the documentation and in the help is one that cdbench understands."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer import main as typer_main

from cdbench.cli import run
from cdbench.cli.main import build_app
from cdbench.cli.main import main as command_line
from cdbench.cli.verbs import VERBS
from cdbench.config import describe_keys
from cdbench.render.terminal import make_console
from cdbench.schema import read_result
from cdbench.sweep.file import find_sweep

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "results" / "README.md")
GRAMMAR = re.compile(r"\[[-A-Z@]|<|\.\.\.|…|\|")
"""Marks of a line that describes how to write a command rather than being one."""


def fenced() -> Iterator[str]:
    """The lines of code blocks that start with ``cdbench``, continued lines joined."""
    for page in PAGES:
        blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(), flags=re.M | re.S)
        for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
            if line.startswith("cdbench "):
                yield line.strip()


def inline() -> Iterator[str]:
    """The spans of code that start with ``cdbench``, in pages and in the help of every command."""
    texts = [re.sub(r"^```.*?^```", "", p.read_text(), flags=re.M | re.S) for p in PAGES]
    texts += [help_of(name) for name in VERBS]
    for text in texts:
        for span in re.findall(r"`(cdbench [^`]+)`", text):
            yield " ".join(span.split())


def help_of(name: str) -> str:
    return str(typer_main.get_command(build_app(name)).commands[name].help)  # type: ignore[attr-defined]


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words name, and what is left of them for it."""
    found: Any = typer_main.get_command(build_app(words[0]))
    assert words[0] in found.commands, f"no command {words[0]!r}"
    found = found.commands[words[0]]
    if len(words) > 1 and words[1] in getattr(found, "commands", ()):
        return found.commands[words[1]], words[2:]
    return found, words[1:]


def alternatives(line: str) -> list[str]:
    """``list a|b`` as ``list a`` and ``list b``."""
    choice = re.search(r"(?<= )\w+(?:\|\w+)+", line)
    if choice is None:
        return [line]
    return [line.replace(choice[0], word) for word in choice[0].split("|")]


COMMANDS = sorted({one for line in fenced() for one in alternatives(line)})
WHOLE = [line for line in COMMANDS if not GRAMMAR.search(line.partition("  #")[0])]


def test_there_are_commands_to_check() -> None:
    assert len(WHOLE) > 20
    assert len(list(inline())) > 20


@pytest.mark.parametrize("line", sorted({*COMMANDS, *inline()}))
def test_a_command_and_its_options_exist(line: str) -> None:
    words = re.findall(r"[^\s\[\]|]+", line.partition("  #")[0])[1:]
    if not words or words[0].startswith("-"):
        words = [word for word in words if word not in ("--version", "--help", "--debug")]
        assert not words
        return
    command, rest = command_of(words)
    known = {option for parameter in command.params for option in parameter.opts}
    known |= {option for parameter in command.params for option in parameter.secondary_opts}
    asked = {word.partition("=")[0] for word in rest if word.startswith("--")}
    assert asked <= known | {"--help", "--debug"}


@pytest.mark.parametrize("line", WHOLE)
def test_a_documented_command_is_understood(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line.partition(" > ")[0], comments=True)[1:]
    command, rest = command_of(words)
    with command.make_context(words[0], rest) as context:
        given = context.params
    if words[0] == "sweep":
        assert find_sweep(given["file"])
    if words[0] == "run" and not given["earlier"]:
        configured = []

        def only_configure(config: Any, *_: object) -> Any:
            configured.append(config)
            raise KeyboardInterrupt

        monkeypatch.setattr(run, "measure", only_configure)
        assert command_line(words) == 130
        assert configured


def test_the_report_in_the_readme_is_what_is_printed() -> None:
    """Of the stored run that it names, at 100 columns; the card above it needs the model itself."""
    stream = io.StringIO()
    reference = read_result(ROOT / "results" / "reference" / "demo-cpu")
    directory = "results/runs/<date>-demo-ouro"
    run.print_report(reference, directory, make_console(stream, 100), full=False)
    assert stream.getvalue() in (ROOT / "README.md").read_text()


def test_the_defaults_in_the_help_of_run_are_those_of_the_configuration() -> None:
    defaults = {info.key: info.default for info in describe_keys()}
    command = typer_main.get_command(build_app("run")).commands["run"]  # type: ignore[attr-defined]
    helps = {
        parameter.name: parameter.help for parameter in command.params if hasattr(parameter, "help")
    }
    for option, key in (
        ("model", "model"),
        ("limit", "limit"),
        ("requests", "workload.requests"),
        ("blocks", "repeats.blocks"),
        ("min_loops", "exit.min_loops"),
        ("exit_lag", "exit.lag"),
    ):
        said = re.search(r"[Dd]efault: ([\w-]+)", helps[option])
        assert said is not None
        assert said[1] == defaults[key]
    for option, key in (
        ("kv", "kv.layout"),
        ("equal", "equal"),
        ("source", "workload.source"),
        ("arrivals", "workload.arrivals"),
        ("depths", "workload.depths"),
        ("stages", "stages"),
        ("device", "device"),
        ("dtype", "dtype"),
        ("weights", "weights"),
    ):
        said = re.search(r"([\w-]+) \(default", helps[option])
        assert said is not None
        assert said[1] == defaults[key]

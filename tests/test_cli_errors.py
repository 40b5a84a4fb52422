"""However a command ends: one line on stderr, the agreed exit code, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import pytest
import typer

from cdbench.cli import errors, verbs
from cdbench.cli.main import main, take_debug
from cdbench.errors import CdbenchError, InvalidRunError, RequestRefused, UsageError

Capture = pytest.CaptureFixture[str]
Pretend = Callable[[Callable[..., None]], None]

PROGRAM = "import sys; from cdbench.cli.main import main; sys.exit(main())"


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Put a function in the place of ``cdbench run``."""
    return lambda verb: monkeypatch.setattr(verbs, "load", lambda name: verb)


def failing(error: BaseException) -> Callable[..., NoReturn]:
    def verb() -> NoReturn:
        raise error

    return verb


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("a: b; c"), 2),
        (InvalidRunError("a: b; c"), 3),
        (RequestRefused("a: b; c"), 3),
        (CdbenchError("a:\n b;\n  c"), 4),
    ],
)
def test_our_errors_are_one_line(
    capsys: Capture, pretend: Pretend, error: CdbenchError, code: int
) -> None:
    pretend(failing(error))
    assert main(["run"]) == code
    assert capsys.readouterr() == ("", "cdbench: a: b; c\n")


@pytest.mark.parametrize("error", [ZeroDivisionError("by\nzero"), OSError(28, "disk"), KeyError()])
def test_any_other_error_is_internal(capsys: Capture, pretend: Pretend, error: Exception) -> None:
    pretend(failing(error))
    assert main(["run"]) == 4
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("cdbench: internal error: ")
    assert "--debug" in err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_interrupted_is_130(capsys: Capture, pretend: Pretend, error: BaseException) -> None:
    pretend(failing(error))
    assert main(["run"]) == 130
    assert capsys.readouterr() == ("", "cdbench: interrupted\n")


@pytest.mark.parametrize("error", [typer.Exit(5), SystemExit(5)])
def test_a_verdict_passes_through(capsys: Capture, pretend: Pretend, error: BaseException) -> None:
    pretend(failing(error))
    assert main(["run"]) == 5
    assert capsys.readouterr() == ("", "")


def test_a_quiet_end_is_0(capsys: Capture, pretend: Pretend) -> None:
    for end in (typer.Exit(), SystemExit(), SystemExit(0)):
        pretend(failing(end))
        assert main(["run"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("args", [["--debug", "run"], ["run", "--debug"]])
def test_debug_shows_the_traceback(capsys: Capture, pretend: Pretend, args: list[str]) -> None:
    pretend(failing(UsageError("a: b; c")))
    assert main(args) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("cdbench: a: b; c\n")


def test_debug_after_a_double_dash_is_an_argument() -> None:
    assert take_debug(["run", "--debug", "x"]) == (["run", "x"], True)
    assert take_debug(["run", "--", "--debug"]) == (["run", "--", "--debug"], False)
    assert take_debug([]) == ([], False)


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["rnu"], "did you mean 'run'?"),
        (["qqqqqq"], f"choose from {', '.join(verbs.VERBS)}"),
        (["--nope"], "no such option: --nope"),
        (["config"], "choose from check, show, schema"),
        (["config", "chek"], "did you mean 'check'?"),
        (["config", "check", "--sett", "a=b"], "did you mean --set?"),
        (["config", "check", "--set"], "requires an argument"),
        (["config", "check", "a", "b"], "unexpected extra argument"),
        (["config", "check", "--set", "x"], "no key=value"),
        (["list", "modles"], "did you mean 'models'?"),
    ],
)
def test_a_wrong_command_line_is_one_line(capsys: Capture, args: list[str], part: str) -> None:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("cdbench: ")
    assert part in err


def test_missing_and_malformed_values_are_one_line(capsys: Capture, pretend: Pretend) -> None:
    def verb(
        name: Annotated[str, typer.Argument()], count: Annotated[int, typer.Option(min=1)] = 1
    ) -> None: ...

    pretend(verb)
    for args in (["run"], ["run", "x", "--count", "y"], ["run", "x", "--count", "0"]):
        assert main(args) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1), err
        assert err.startswith("cdbench: run: ")


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"], ["config", "-h"], ["--version"]])
def test_help_and_version_are_results(capsys: Capture, args: list[str]) -> None:
    assert main(args) == 0
    out, err = capsys.readouterr()
    assert out
    assert err == ""


def test_help_names_every_verb(capsys: Capture) -> None:
    main(["--help"])
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in verbs.VERBS)


@pytest.mark.parametrize("args", [["--help"], ["config", "show"], ["config", "--help"], ["rnu"]])
def test_nothing_heavy_is_imported(args: list[str]) -> None:
    program = (
        "import sys\n"
        "from cdbench.cli.main import main\n"
        f"main({args!r})\n"
        "heavy = {'torch', 'numpy', 'scipy', 'transformers', 'datasets', 'lm_eval', 'matplotlib'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_closed_pipe_is_quiet() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "config", "schema"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        stderr = process.stderr.read()
    assert (process.returncode, stderr) == (errors.BROKEN_PIPE, b"")


def test_a_verb_interrupted_by_a_signal_is_130() -> None:
    program = (
        "import os, signal, sys\n"
        # The background jobs of a shell are started with it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from cdbench.cli import main, verbs\n"
        "verbs.load = lambda name: lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.exit(main.main(['run']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ}
    )
    assert (done.returncode, done.stderr) == (130, "cdbench: interrupted\n")


# Streams that a shell closed, whose reader went away, or that have no room.

TELLING = (
    "import contextlib, os, sys\n"
    "from cdbench.cli import main, streams, verbs\n"
    "from cdbench.errors import UsageError\n"
    "def verb(fails: bool = False):\n"
    "    for number in range(3):\n"
    "        streams.tell(f'progress {number}')\n"
    "    with open(sys.argv[2], 'w') as file:\n"
    "        file.write(f'{file.fileno()} {sys.stdin.read()!r}')\n"
    "    with contextlib.suppress(BrokenPipeError):\n"
    "        os.write(2, b'a library says')\n"
    "    print('result')\n"
    "    if fails:\n"
    "        raise UsageError('a: b; c')\n"
    "verbs.load = lambda name: verb\n"
    "sys.argv = ['cdbench', 'run', *sys.argv[1:]]\n"
    "sys.exit(main.main(['run', *sys.argv[3:]]))\n"
)


def in_shell(redirections: str, file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program above, its streams as a shell makes them."""
    command = f'"$0" -c "$1" "$2" {" ".join(arguments)} {redirections}'
    return subprocess.run(
        ["bash", "-c", command, sys.executable, TELLING, str(file)],
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_take_nothing_and_cost_nothing(closed: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    done = in_shell(closed, file)
    assert done.returncode == 0
    assert done.stdout == ("" if " >&-" in f" {closed}" else "result\n")
    assert ("progress 2\n" in done.stderr) == ("2>&-" not in closed)
    # The file did not take the number of a stream, so nothing a library says lands in it.
    number, _, read = file.read_text().partition(" ")
    assert int(number) > 2
    assert read == "''"
    failed = in_shell(closed, file, "--fails")
    assert failed.returncode == 2
    assert ("cdbench: a: b; c\n" in failed.stderr) == ("2>&-" not in closed)


def test_progress_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    done = in_shell("2> >(exec true)", tmp_path / "file")
    assert (done.returncode, done.stdout) == (0, "result\n")
    assert in_shell("2> >(exec true)", tmp_path / "file", "--fails").returncode == 2


def test_a_result_that_has_no_room_is_one_line(tmp_path: Path) -> None:
    done = in_shell("> /dev/full", tmp_path / "file")
    line = "cdbench: standard output: cannot be written (No space left on device); make room there"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (4, f"a library says{line}")


# Interruptions.


def test_a_second_interruption_while_the_first_is_dealt_with_ends_it_as_one() -> None:
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from cdbench.cli import main, verbs\n"
        "def verb():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    finally:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "verbs.load = lambda name: verb\n"
        "sys.argv = ['cdbench', 'run']\n"
        "code = main.main()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "cdbench: interrupted\n")

"""How a command ends: one line on stderr and the exit code, for everything that can go wrong.

Exit codes: 0 success, 1 regression, 2 usage or input, 3 invalid run or refused request, 4 internal
error, 5 inconclusive, 130 interrupted. A reader that closes the pipe early (``| head``) ends the
command as the shell has it, 128 + SIGPIPE, in silence.
"""

from __future__ import annotations

import re
import traceback
from typing import Any

import typer

from cdbench.cli import streams
from cdbench.errors import CdbenchError

INTERRUPTED = 130
BROKEN_PIPE = 141
INTERNAL = 4
USAGE = 2

# Newer typers carry click inside themselves: this is click's UsageError, wherever it lives.
PARSER_ERROR: type[BaseException] = typer.BadParameter.__mro__[1]


def end(error: BaseException, debug: bool) -> int:
    """Say what went wrong, in one line, and return the exit code."""
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return _system_exit(error)
    if debug:
        traceback.print_exception(error)
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    line, code = describe(error)
    streams.tell(line)
    return code


def describe(error: BaseException) -> tuple[str, int]:
    """The line ``what: why; what to do`` and the exit code of an error."""
    if isinstance(error, CdbenchError):
        return _one_line(str(error)), error.exit_code
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "interrupted", INTERRUPTED
    if isinstance(error, PARSER_ERROR):
        return parser_line(error), USAGE
    name = type(error).__name__
    what = f"{name}: {_one_line(str(error))}" if str(error) else name
    return f"internal error: {what}; run again with --debug for the traceback", INTERNAL


def parser_line(error: Any) -> str:
    """Typer's complaint about the command line, in our form."""
    message = _one_line(error.format_message()).rstrip(".")
    message = message[:1].lower() + message[1:]
    # of several suggestions the first is the nearest
    message = re.sub(r"\.? Did you mean ('[^']*'|[^\s?,]*).*$", r"; did you mean \1?", message)
    message = re.sub(r" \(Possible options: (.*)\)$", r"; did you mean \1?", message)
    context = error.ctx
    path = "cdbench" if context is None else context.command_path
    command = path.partition(" ")[2]
    line = f"{command}: {message}" if command else message
    if "; did you mean" in line:
        return line
    choices = getattr(context and context.command, "list_commands", None)
    if choices is not None and "command" in message:
        return f"{line}; choose from {', '.join(choices(context))}"
    return f"{line}; see `{path} --help`"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _system_exit(error: SystemExit) -> int:
    if isinstance(error.code, str):
        streams.tell(_one_line(error.code))
        return INTERNAL
    return error.code or 0

"""``cdbench``: hands over to one command and turns whatever happens into an exit code.

Nothing heavy is imported here. A command's module is loaded only when that command was asked for
(``cdbench.cli.verbs``), and it imports torch only when it runs.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cdbench.cli import errors, streams, verbs

# An OpenMP thread that waits for a sibling spins by default for billions of turns. Where another
# process holds that sibling's core, each launch then takes many times as long as its work.
OPENMP_SPIN_TURNS = "10000"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (default: the process's own) and return the exit code."""
    os.environ.setdefault("GOMP_SPINCOUNT", OPENMP_SPIN_TURNS)  # before torch is loaded
    streams.open_closed_streams()
    args, debug = take_debug(sys.argv[1:] if argv is None else argv)
    ends_the_process = argv is None
    if ends_the_process:
        streams.watch_result()
    try:
        _see_off(args)
        code = 0
    except BaseException as error:  # every end of a command has its code; see cdbench.cli.errors
        if ends_the_process:
            streams.ignore_interrupts()
        code = errors.end(error, debug)
    if ends_the_process:
        streams.ignore_interrupts()
    streams.drop_unread()
    return code


def _see_off(args: Sequence[str]) -> None:
    """Run the command line, and its result out of the door before its exit code is believed."""
    try:
        invoke(args)
    except streams.ResultError as error:
        raise streams.unwritten(error) from None
    except (typer.Exit, SystemExit, OSError):  # an OSError may be of standard output
        streams.flush_result()
        raise
    streams.flush_result()


def invoke(args: Sequence[str]) -> None:
    """Run the command line, letting every exception through."""
    verb = next((arg for arg in args if not arg.startswith("-")), None)
    command = typer.main.get_command(build_app(verb))
    # not command.main(): it prints errors its own way
    with command.make_context("cdbench", list(args)) as context:
        command.invoke(context)


def build_app(verb: str | None) -> typer.Typer:
    """The application with ``verb``'s module loaded and the other commands as lines of help."""
    app = typer.Typer(
        name="cdbench",
        rich_markup_mode=None,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_root)
    for name in verbs.VERBS:
        verbs.attach(app, name, requested=name == verb)
    return app


def take_debug(args: Sequence[str]) -> tuple[list[str], bool]:
    """Take ``--debug`` out, wherever it stands before a ``--``."""
    end = args.index("--") if "--" in args else len(args)
    kept = [arg for arg in args[:end] if arg != "--debug"]
    return [*kept, *args[end:]], len(kept) < end


def version() -> str:
    """The installed version of cdbench."""
    try:
        return importlib.metadata.version("cdbench")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"cdbench {version()}")
        raise typer.Exit()


def _root(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; works anywhere.")
    ] = False,
) -> None:
    """How much faster is continuous depth batching for looped language models?

    `cdbench run` measures it on an embedded demo model, in a few minutes.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())

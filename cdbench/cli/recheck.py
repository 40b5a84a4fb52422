"""``cdbench recheck``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cdbench.cli.config import JsonOption
from cdbench.errors import UsageError

INVALID = 3
SHOWN = 20
"""Most differences printed; --json has them all."""


def verb(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory.")],
    trace: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the launches as a Chrome/Perfetto trace."),
    ] = None,
    blocks: Annotated[
        str, typer.Option(help="Blocks of the trace: numbers from 0 by commas, or all.")
    ] = "0",
    as_json: JsonOption = False,
) -> None:
    """Make a run's summaries again from its raw records, and compare them with result.json.

    Neither the model nor torch is needed. Exit codes: 0 the same, 2 wrong input or a run without
    raw records, 3 they differ.
    """
    from cdbench.bench.rederive import check

    directory = _directory(run)
    chosen = _blocks(blocks)
    found = check(directory)
    if trace is not None:
        _write_trace(directory, Path(trace), chosen)
    if as_json:
        from cdbench.cli.output import print_json

        print_json({"run": run, "same": not found, "differences": found, "trace": trace})
    else:
        _print(run, found, trace)
    if found:
        raise typer.Exit(INVALID)


def _directory(run: str) -> Path:
    """The run directory, named itself or by its result.json."""
    path = Path(run).expanduser()
    return path.parent if path.is_file() else path


def _blocks(text: str) -> frozenset[int] | None:
    """Block numbers; None for all."""
    if text == "all":
        return None
    numbers = [part.strip() for part in text.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise UsageError(f"--blocks {text!r}: no numbers from 0; write --blocks 0,1 or all")
    return frozenset(map(int, numbers))


def _write_trace(directory: Path, path: Path, blocks: frozenset[int] | None) -> None:
    from cdbench.bench.raw import ContradictionError, read_raw
    from cdbench.render.perfetto import of_blocks, write_trace

    if path.exists():
        raise UsageError(f"--trace {path}: exists; name a new file")
    try:
        repeats = read_raw(directory).repeats
    except ContradictionError as error:
        raise UsageError(f"{directory}: {error}; there is nothing to draw") from None
    chosen = list(repeats) if blocks is None else of_blocks(repeats, blocks)
    if not chosen:
        has = len({run.block for run in repeats})
        raise UsageError(f"--blocks: none of them was timed; {directory} has {has}, from 0")
    try:
        write_trace(path, chosen)
    except OSError as error:
        raise UsageError(
            f"--trace {path}: cannot be written ({error.strerror}); name another file"
        ) from None


def _print(run: str, found: list[str], trace: str | None) -> None:
    for line in found[:SHOWN]:
        print(line)
    if len(found) > SHOWN:
        print(f"and {len(found) - SHOWN} more")
    if not found:
        print(f"{run}: result.json is what the raw records give")
    if trace is not None:
        print(f"Launches written to {trace}; open it in https://ui.perfetto.dev")

"""``cdbench recheck``."""

from __future__ import annotations

import os
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
        str | None,
        typer.Option(
            metavar="N,N,...|all", help="Blocks that --trace draws, from 0; default: the first."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a run's summaries again from its raw records, and compare them with result.json.

    Neither the model nor torch is needed. Exit codes: 0 the same, 2 wrong input or a run without
    raw records, 3 they differ.
    """
    from cdbench.bench.rederive import check

    directory = _directory(run)
    chosen = _blocks("0" if blocks is None else blocks)
    if blocks is not None and trace is None:
        raise UsageError(f"--blocks {blocks}: no trace is drawn; add --trace FILE, or drop it")
    drawing = None if trace is None else _new_file(trace)
    found = check(directory)
    if drawing is not None:
        _write_trace(directory, drawing, chosen)
    if as_json:
        from cdbench.cli.output import print_json

        print_json({"run": run, "same": not found, "differences": found, "trace": trace})
    else:
        _print(run, found, trace)
    if found:
        raise typer.Exit(INVALID)


def _directory(run: str) -> Path:
    """The run directory, named itself or by its result.json."""
    from cdbench.bench.places import typed_path

    path = typed_path(run, "RUN")
    return path.parent if os.path.isfile(path) else path


def _blocks(text: str) -> frozenset[int] | None:
    """Block numbers; None for all."""
    if text == "all":
        return None
    numbers = [part.strip() for part in text.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise UsageError(f"--blocks {text!r}: no numbers from 0; write --blocks 0,1 or all")
    return frozenset(map(int, numbers))


def _new_file(trace: str) -> Path:
    """The file of ``--trace``. UsageError: it is there, or cannot be written."""
    from cdbench.bench.places import prove_writable, typed_path

    path = typed_path(trace, "--trace")
    if os.path.lexists(path):
        raise UsageError(f"--trace {path}: exists; name a new file")
    prove_writable(path, "--trace")
    return path


def _write_trace(directory: Path, path: Path, blocks: frozenset[int] | None) -> None:
    from cdbench.bench.raw import ContradictionError, read_raw
    from cdbench.render.perfetto import of_blocks, write_trace

    try:
        repeats = read_raw(directory).repeats
    except ContradictionError as error:
        raise UsageError(f"{directory}: {error}; there is nothing to draw") from None
    chosen = list(repeats) if blocks is None else of_blocks(repeats, blocks)
    if not chosen:
        has = len({run.block for run in repeats})
        raise UsageError(f"--blocks: none of them was timed; {directory} has {has}, from 0")
    write_trace(path, chosen)


def _print(run: str, found: list[str], trace: str | None) -> None:
    for line in found[:SHOWN]:
        print(line)
    if len(found) > SHOWN:
        print(f"and {len(found) - SHOWN} more")
    if not found:
        print(f"{run}: result.json is what the raw records give")
    if trace is not None:
        print(f"Launches written to {trace}; open it in https://ui.perfetto.dev")

"""``cdbench baseline promote|list|show``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdbench.cli import output
from cdbench.cli.config import JsonOption
from cdbench.cli.streams import tell
from cdbench.errors import UsageError

if TYPE_CHECKING:
    from cdbench.compare.promotion import Kind, Promotion, Written
    from cdbench.compare.stored import StoredBaselines
    from cdbench.render.table import Table
    from cdbench.schema.gating import ExactBaseline

USAGE = 2
SHOWN = 30
"""Most changes printed; --json has them all."""

verb = typer.Typer(rich_markup_mode=None)

DirOption = Annotated[
    str | None,
    typer.Option("--dir", metavar="DIR", help="Where baselines lie; default: results/baselines."),
]
NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="The name in the gate file that uses it.")
]
ExactOnlyOption = Annotated[bool, typer.Option("--exact-only", help="Promote counts alone.")]
TimedOnlyOption = Annotated[bool, typer.Option("--timed-only", help="Promote times alone.")]


@verb.command()
def promote(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory.")],
    name: NameOption,
    directory: DirOption = None,
    exact_only: ExactOnlyOption = False,
    timed_only: TimedOnlyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a run the baseline that a gate holds others against.

    Counts that repeat to the digit go to NAME.json, for every machine; times to NAME.MACHINE.json,
    for machines like this run's. What the run does not qualify for is said. Exit codes: 0 written,
    2 wrong input or nothing to promote, 3 an INVALID run.
    """
    from datetime import UTC, datetime

    from cdbench.compare.promotion import promotion, write_promotion
    from cdbench.compare.sides import read_side

    kinds = _kinds(exact_only, timed_only)
    place = _directory(directory)
    side = read_side(run)
    promoted = promotion(side, name, kinds, datetime.now(UTC).isoformat(timespec="seconds"))
    written = write_promotion(promoted, place)
    if as_json:
        output.print_json(_document(promoted, written))
    else:
        _print_promotion(promoted, written)


@verb.command("list")
def list_baselines(directory: DirOption = None, as_json: JsonOption = False) -> None:
    """Every baseline: what it holds, of which machine, since when.

    Exit code 2 where a file in the directory is no baseline, or was damaged.
    """
    from cdbench.compare.stored import stored_baselines

    place = _directory(directory)
    found = stored_baselines(place)
    if as_json:
        output.print_json({"directory": str(place), **asdict(found)})
    elif found.baselines:
        _print_baselines(found)
    else:
        print(f"{place}: no baseline; make one with `cdbench baseline promote RUN --name NAME`")
    for problem in found.problems:
        tell(problem)
    if found.problems:
        raise typer.Exit(USAGE)


@verb.command()
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Its name (`cdbench baseline list`).")
    ],
    directory: DirOption = None,
    as_json: JsonOption = False,
) -> None:
    """The counts of an exact baseline, mode by mode."""
    import json

    from cdbench.compare.baselines import exact_path, read_exact
    from cdbench.schema import to_json

    place = _directory(directory)
    baseline = read_exact(place, name)
    if baseline is None:
        raise UsageError(
            f"{exact_path(place, name)}: no such exact baseline; see `cdbench baseline list`"
        )
    if as_json:
        output.print_json(json.loads(to_json(baseline)))
        return
    from cdbench.render.terminal import make_console, print_table

    print_table(exact_table(baseline), make_console())


def exact_table(baseline: ExactBaseline) -> Table:
    """Counts by row, modes by column, to the digit."""
    from cdbench.render.table import Column, Row, Table, text

    names = dict.fromkeys(name for mode in baseline.modes.values() for name in mode.exact)
    columns = (Column("count", align="left"), *(Column(label) for label in baseline.modes))
    rows = tuple(
        Row((text(name), *(text(_digits(m.exact.get(name))) for m in baseline.modes.values())))
        for name in names
    )
    notes = (
        f"Promoted {baseline.promoted_utc} from {baseline.run}, commit "
        f"{(baseline.commit or 'unknown')[:12]}, workload {baseline.workload[:12]}.",
    )
    return Table(columns, rows, f"exact baseline {baseline.name}", notes)


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:,.16g}"


def _kinds(exact_only: bool, timed_only: bool) -> tuple[Kind, ...]:
    from cdbench.compare.promotion import KINDS

    if exact_only and timed_only:
        raise UsageError("--exact-only: beside --timed-only; drop both to promote both")
    if exact_only:
        return ("exact",)
    return ("timed",) if timed_only else KINDS


def _directory(typed: str | None) -> Path:
    from cdbench.bench.places import typed_path
    from cdbench.compare.baselines import DIRECTORY

    return Path(DIRECTORY) if typed is None else typed_path(typed, "--dir")


def _document(promoted: Promotion, written: Written) -> dict[str, object]:
    return {
        "name": promoted.name,
        "run": promoted.side.name,
        "written": {kind: str(path) for kind, path in written.files.items()},
        "refused": promoted.refused,
        "changes": written.changes,
    }


def _print_promotion(promoted: Promotion, written: Written) -> None:
    from cdbench.render.terminal import make_console, print_lines, print_whole

    console = make_console()
    print_lines(console, *written.changes[:SHOWN])
    if len(written.changes) > SHOWN:
        print_lines(console, f"and {len(written.changes) - SHOWN} more changes")
    for kind, why in promoted.refused.items():
        print_lines(console, f"No {kind} baseline: {why}.")
    for kind, path in written.files.items():
        print_whole(console, f"{kind.capitalize()} baseline written to {path}")


def _print_baselines(found: StoredBaselines) -> None:
    headers = ("NAME", "KIND", "MACHINE", "HOLDS", "MODES", "SINCE", "COMMIT")
    rows = [
        (
            each.name,
            each.kind,
            each.machine or "any",
            f"{each.counts} counts" if each.kind == "exact" else f"{each.blocks} blocks",
            ", ".join(each.modes),
            each.since_utc,
            (each.commit or "unknown")[:12],
        )
        for each in found.baselines
    ]
    output.print_rows(headers, rows)

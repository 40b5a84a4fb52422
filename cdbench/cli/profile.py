"""``cdbench profile``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdbench.cli.config import ConfigArgument, JsonOption, SetOption
from cdbench.cli.options import ModelOption
from cdbench.cli.streams import tell
from cdbench.cli.sweep import (
    INVALID,
    DryRunOption,
    LimitOption,
    RetryOption,
    dry,
    exit_code,
)
from cdbench.errors import UsageError

if TYPE_CHECKING:
    from cdbench.config import RunConfig
    from cdbench.profile.grid import Axes
    from cdbench.schema.profile import AccuracyPoint, ProfileDocument, SloRecord

NAME = "profile"


def _limit(what: str) -> Any:
    return typer.Option(min=0.0, metavar="SECONDS", help=what)


def verb(
    config: ConfigArgument = None,
    model: ModelOption = None,
    exit_rule: Annotated[
        str | None, typer.Option("--exit", help="RULE or RULE@THRESHOLD; default: the card's.")
    ] = None,
    thresholds: Annotated[
        str | None, typer.Option(help="Exit thresholds, by commas; none: full depth.")
    ] = None,
    max_loops: Annotated[str | None, typer.Option(help="Values of R, by commas.")] = None,
    widths: Annotated[
        str | None, typer.Option(help="Residents, and rows of a launch, by commas.")
    ] = None,
    rates: Annotated[
        str | None, typer.Option(help="Requests per second, by commas: Poisson arrivals.")
    ] = None,
    requests: Annotated[int | None, typer.Option(help="How many requests are timed.")] = None,
    questions: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Questions of each task that every threshold and R answers, and the fixed depths.",
        ),
    ] = None,
    mode: Annotated[str, typer.Option(help="The mode that is profiled.")] = "cdb",
    slo_ttft: Annotated[float | None, _limit("Longest time to first token.")] = None,
    slo_tpot: Annotated[float | None, _limit("Longest time per later token.")] = None,
    slo_e2e: Annotated[float | None, _limit("Longest time per request.")] = None,
    percentile: Annotated[
        float, typer.Option(help="Share of requests, in %, that must meet every target.")
    ] = 99.0,
    overrides: SetOption = None,
    out: Annotated[
        str | None, typer.Option(help="Directory (default: results/runs/sweep-profile-<model>).")
    ] = None,
    dry_run: DryRunOption = False,
    retry_failed: RetryOption = False,
    limit_cells: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the threshold and the maximum of loops that serve a latency target best.

    A grid over thresholds, maxima of loops, widths and arrival rates, run as `cdbench sweep` runs
    one; then latency percentiles, goodput, depth, whose requests the tail is made of, and how the
    tasks' exit depths differ. Targets are judged from the raw records: the same command with other
    targets runs nothing again. Exit codes: as `cdbench sweep`.
    """
    from cdbench.config import parse_mode
    from cdbench.profile.grid import Axes, check_axes, profile_base, profile_name, profile_sweep
    from cdbench.sweep.cells import expand, refusals
    from cdbench.sweep.refusals import refuse
    from cdbench.sweep.runners import checker

    if not 0 < percentile < 100:
        raise UsageError(f"--percentile {percentile:g}: it must lie between 0 and 100")
    mode = str(parse_mode(mode))
    flags = {"model": model, "exit.rule": exit_rule, "workload.requests": requests}
    base = profile_base(config, overrides or (), flags, mode)
    axes = Axes(
        thresholds=_numbers("--thresholds", thresholds, float, words=("none",)),
        max_loops=_numbers("--max-loops", max_loops, int),
        widths=_numbers("--widths", widths, int),
        rates=_numbers("--rates", rates, float),
    )
    check_axes(axes, mode)
    grid = profile_sweep(base, axes, profile_name(base))
    sweep = expand(grid, NAME, check=checker())
    slo = _targets(sweep.cells[0].config.slo, slo_ttft, slo_tpot, slo_e2e, percentile)

    from cdbench.profile.cells import UNREADABLE
    from cdbench.profile.session import check, profile_document, write_profile
    from cdbench.sweep.directory import SweepDirectory
    from cdbench.sweep.session import Options, check_of, run

    check(sweep, mode, slo)
    options = Options(out, retry_failed, limit_cells)
    if dry_run:
        dry(sweep, grid, NAME, options, as_json)
        return
    refuse(refusals(sweep.cells, check_of(grid, options, tell)), len(sweep.cells), NAME)
    asked = None
    if questions is not None:
        asked = _asked(base, axes, mode, questions, sweep.cells[0].config, retry_failed, out)
    swept = run(sweep, options, tell)
    directory = SweepDirectory.of(out, sweep.name, sweep.verb)
    answers = asked() if asked is not None and swept.status != "interrupted" else ()
    document = profile_document(sweep, directory, swept, mode, slo, answers)
    write_profile(directory, document)
    _print(document, as_json)
    unreadable = any(cell.state == UNREADABLE for cell in document.cells)
    raise typer.Exit(exit_code(swept) or (INVALID if unreadable else 0))


def _asked(
    base: Any,
    axes: Axes,
    mode: str,
    questions: int,
    config: RunConfig,
    retry_failed: bool,
    out: str | None,
) -> Callable[[], list[AccuracyPoint]]:
    """The accuracy sweep, checked now and run when called; its directory lies beside the other."""
    from cdbench.bench.plan import make_plan
    from cdbench.profile.accuracy import accuracy_points, accuracy_sweep
    from cdbench.profile.grid import profile_name
    from cdbench.sweep.cells import expand
    from cdbench.sweep.directory import SweepDirectory
    from cdbench.sweep.session import Options, check_of, run

    full = make_plan(config).max_loops if not axes.max_loops else 0
    grid = accuracy_sweep(base, axes, profile_name(base), mode, questions, full)
    options = Options(None if out is None else f"{out}-accuracy", retry_failed, None)
    sweep = expand(grid, NAME, check=check_of(grid, options, tell))

    def answered() -> list[AccuracyPoint]:
        run(sweep, options, tell)
        found = SweepDirectory.of(options.out, sweep.name, sweep.verb)
        return accuracy_points(sweep, found, mode)

    return answered


def _targets(
    given: Any, ttft: float | None, tpot: float | None, e2e: float | None, percentile: float
) -> SloRecord:
    """The targets: a flag, else the configuration's own."""
    from cdbench.schema.profile import SloRecord

    for name, value in (("ttft", ttft), ("tpot", tpot), ("e2e", e2e)):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"--slo-{name} {value:g}: must be above 0 and finite; give seconds")
    return SloRecord(
        ttft_s=ttft if ttft is not None else given.ttft_s,
        tpot_s=tpot if tpot is not None else given.tpot_s,
        e2e_s=e2e if e2e is not None else given.e2e_s,
        percentile=percentile,
    )


def _numbers(flag: str, text: str | None, kind: type, words: tuple[str, ...] = ()) -> list[Any]:
    """A comma list of numbers, and of the words allowed beside them; empty without the flag."""
    values: list[Any] = []
    if text is not None and not text.strip():
        raise UsageError(f"{flag}: lists nothing; give values by commas, or leave it out")
    for part in () if text is None else text.split(","):
        part = part.strip()
        value: Any = part if part in words else _number(part, kind)
        if value is None:
            what = "whole number" if kind is int else "number"
            more = f", or {' or '.join(words)}" if words else ""
            raise UsageError(f"{flag} {part!r}: no {what}; list finite ones by commas{more}")
        if value in values:
            raise UsageError(f"{flag} {part}: listed twice; name it once")
        values.append(value)
    return values


def _number(text: str, kind: type) -> float | None:
    """A finite number of this kind; None for any other text."""
    try:
        value: float = kind(text)
        return value if math.isfinite(value) else None
    except (ValueError, OverflowError):
        return None


def _print(document: ProfileDocument, as_json: bool) -> None:
    from cdbench.cli.output import print_json
    from cdbench.render.profile_report import closing_lines, tables
    from cdbench.render.terminal import make_console, print_lines, print_table
    from cdbench.schema import to_json

    if as_json:
        print_json(json.loads(to_json(document)))
        return
    console = make_console()
    for table in tables(document):
        print_table(table, console)
        print_lines(console, "")
    print_lines(console, *closing_lines(document))

"""``cdbench compare``."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cdbench.cli.compare_options import (
    BaselineOption,
    FullOption,
    GateOption,
    JunitOption,
    MarginOption,
    OutOption,
    PairOption,
    ReceiptOption,
    RequireOption,
    RunsArgument,
    SelfTestOption,
    SummaryOption,
)
from cdbench.cli.compare_pair import PairRequest, config_of, judge_pair, print_checks
from cdbench.cli.config import JsonOption, SetOption
from cdbench.errors import UsageError

if TYPE_CHECKING:
    from cdbench.compare.sides import Side
    from cdbench.schema.comparing import ComparisonDocument
    from cdbench.schema.gating import GateReceipt

INVALID = 3
MARGIN = 0.05
LARGEST_MARGIN = 1.0


@dataclass(frozen=True)
class GateRequest:
    """What was asked of a gate."""

    gate: str
    baseline: str | None
    require: bool
    junit: Path | None
    summary: Path | None
    receipt: Path | None


def verb(
    runs: RunsArgument = None,
    margin: MarginOption = None,
    gate: GateOption = None,
    baseline: BaselineOption = None,
    require_baseline: RequireOption = False,
    junit: JunitOption = None,
    summary: SummaryOption = None,
    receipt: ReceiptOption = None,
    pair: PairOption = None,
    overrides: SetOption = None,
    self_test: SelfTestOption = False,
    out: OutOption = None,
    full: FullOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare runs with a base, metric by metric and question by question.

    The first run is the base, and every other is held against it. With --gate the run is judged:
    alone (floors, and the exact baseline of that name), or against a base. Neither a model nor
    torch is needed. With --pair nothing is stored beforehand: two checkouts run a configuration in
    turns, on the same work, until it is clear. Exit codes: 0 compared, or PASS; 1 a gate found a
    regression; 2 wrong input; 3 an INVALID run, or nothing to compare it with; 4 a worker of --pair
    failed; 5 inconclusive, where the gate does not pass that.
    """
    places = {"--junit": junit, "--summary": summary, "--receipt": receipt}
    if pair is not None:
        _refuse_beside_pair(margin, {"--baseline": baseline}, require_baseline)
        files = (None if place is None else _path(place, flag) for flag, place in places.items())
        kept = None if out is None else _path(out, "--out")
        request = PairRequest(
            pair, config_of(runs or ()), overrides or (), gate, self_test, kept, *files
        )
        judge_pair(request, full, as_json)
        return
    _refuse_without_pair(self_test, {"--out": out, "--set": overrides})
    if not runs:
        raise UsageError("RUN: is missing; name run directories, or use --pair")
    if gate is None:
        _refuse_without_gate({**places, "--baseline": baseline}, require_baseline)
        _compare(runs, MARGIN if margin is None else margin, full, as_json)
        return
    if margin is not None:
        raise UsageError("--margin: a gate has its own; set timed.margin in its file")
    _judge(
        runs,
        GateRequest(
            gate,
            baseline,
            require_baseline,
            *(None if place is None else _path(place, flag) for flag, place in places.items()),
        ),
        full,
        as_json,
    )


def _path(typed: str, flag: str) -> Path:
    from cdbench.bench.places import typed_path

    return typed_path(typed, flag)


def _refuse_without_gate(given: dict[str, str | None], require: bool) -> None:
    named = [flag for flag, value in given.items() if value is not None]
    named += ["--require-baseline"] if require else []
    if named:
        raise UsageError(f"{named[0]}: belongs to a gate; add --gate FILE, or drop it")


def _refuse_beside_pair(margin: float | None, given: dict[str, str | None], require: bool) -> None:
    if margin is not None:
        raise UsageError("--margin: a gate has its own; set timed.margin in its file")
    named = [flag for flag, value in given.items() if value is not None]
    named += ["--require-baseline"] if require else []
    if named:
        raise UsageError(f"{named[0]}: --pair measures its base; drop one of them")


def _refuse_without_pair(self_test: bool, given: dict[str, Any]) -> None:
    named = [flag for flag, value in given.items() if value]
    named += ["--self-test"] if self_test else []
    if named:
        raise UsageError(f"{named[0]}: belongs to --pair OLD_PYTHON NEW_PYTHON; add it, or drop it")


def _compare(runs: list[str], margin: float, full: bool, as_json: bool) -> None:
    from cdbench.compare.document import compare_sides

    if not 0 <= margin <= LARGEST_MARGIN:
        raise UsageError(f"--margin {margin:g}: is no share; give 0 to {LARGEST_MARGIN:g}")
    if len(runs) < 2:
        raise UsageError(f"{runs[0]}: against what? name a base before it, or add --gate FILE")
    base, *others = _sides(runs)
    documents = [compare_sides(base, other, margin) for other in others]
    if as_json:
        from cdbench.cli.output import print_json

        print_json({"comparisons": [json.loads(d.model_dump_json()) for d in documents]})
    else:
        for number, document in enumerate(documents):
            _print(document, full, apart=number > 0)
    if any(document.verdict == "INVALID" for document in documents):
        raise typer.Exit(INVALID)


def _sides(runs: list[str]) -> list[Side]:
    from cdbench.compare.sides import read_side

    sides = [read_side(run) for run in runs]
    seen: dict[Path, str] = {}
    for side, typed in zip(sides, runs, strict=True):
        place = side.directory.resolve()
        if side.rechecked and place in seen:
            raise UsageError(f"{typed}: is {seen[place]} itself; name another run")
        seen[place] = typed
    return sides


def _print(document: ComparisonDocument, full: bool, apart: bool) -> None:
    from cdbench.render.compare_report import side_lines, tables
    from cdbench.render.terminal import make_console, print_lines, print_table

    console = make_console()
    print_lines(console, *([""] if apart else []), *side_lines(document))
    for table in tables(document, full):
        print_lines(console, "")
        print_table(table, console)
    print_lines(console, "", *document.sentences)


def _judge(runs: list[str], asked: GateRequest, full: bool, as_json: bool) -> None:
    from cdbench.compare.baselines import find_bases
    from cdbench.compare.gate import judge_run
    from cdbench.compare.gate_file import read_gate
    from cdbench.compare.outputs import baselines_read, files_read, prove_outputs, write_outputs

    if len(runs) > 2:
        raise UsageError(f"--gate: {len(runs)} runs; give RUN, or BASE and RUN")
    if len(runs) > 1 and asked.baseline is not None:
        raise UsageError("--baseline: BASE is given, so no baseline is read; drop one of them")
    gate, sha256 = read_gate(asked.gate)
    directory = None if asked.baseline is None else _path(asked.baseline, "--baseline")
    kept = [*files_read(asked.gate, runs), *baselines_read(gate.name, directory)]
    prove_outputs(asked.junit, asked.summary, asked.receipt, os.environ, kept)
    *bases, run = _sides(runs)
    found = find_bases(gate, run, bases[0] if bases else None, directory, require=asked.require)
    receipt = judge_run(gate, sha256, run, found)
    try:
        write_outputs(receipt, asked.junit, asked.summary, asked.receipt, os.environ)
    finally:  # what was found is said even where it could not be kept
        _print_receipt(receipt, full, as_json)
    if receipt.exit_code:
        raise typer.Exit(receipt.exit_code)


def _print_receipt(receipt: GateReceipt, full: bool, as_json: bool) -> None:
    """A gate's verdict, for a person or as JSON."""
    if as_json:
        from cdbench.cli.output import print_json

        print_json(json.loads(receipt.model_dump_json()))
    else:
        print_checks(receipt, full)

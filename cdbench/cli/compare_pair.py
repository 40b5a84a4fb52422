"""``cdbench compare --pair``: two checkouts measured in turns, now, and judged."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cdbench.cli.interrupts import interrupted_once
from cdbench.cli.streams import tell
from cdbench.errors import UsageError

if TYPE_CHECKING:
    from cdbench.schema.gating import GateReceipt
    from cdbench.schema.pairing import PairOutcome


@dataclass(frozen=True)
class PairRequest:
    """What was asked of a paired gate. ``gate`` None: throughput of every mode, margin 5 %."""

    pythons: tuple[str, str]
    config: str | None
    overrides: Sequence[str]
    gate: str | None
    self_test: bool
    out: Path | None
    junit: Path | None
    summary: Path | None
    receipt: Path | None


def judge_pair(asked: PairRequest, full: bool, as_json: bool) -> None:
    """Measure both, print the verdict, and end with its exit code.

    SIGTERM, by which CI systems cancel a job, ends it as Ctrl-C does: both workers first.
    """
    with interrupted_once():
        _judge(asked, full, as_json)


def _judge(asked: PairRequest, full: bool, as_json: bool) -> None:
    from cdbench.compare.gate_file import read_gate
    from cdbench.compare.outputs import files_read, prove_outputs, write_outputs
    from cdbench.compare.pair import UnkeptOutcome, run_pair
    from cdbench.compare.pair.files import PAIR_FILE

    gate, sha256 = (None, "") if asked.gate is None else read_gate(asked.gate)
    kept = files_read(asked.gate, [] if asked.config is None else [asked.config])
    kept += [] if asked.out is None else [asked.out / PAIR_FILE]
    prove_outputs(asked.junit, asked.summary, asked.receipt, os.environ, kept)
    try:
        outcome = run_pair(
            *asked.pythons,
            asked.config,
            gate,
            sha256,
            overrides=asked.overrides,
            self_test=asked.self_test,
            progress=(lambda line: None) if as_json else tell,
            out=asked.out,
        )
    except UnkeptOutcome as error:
        _print(error.outcome, full, as_json)
        raise
    try:
        write_outputs(outcome.receipt, asked.junit, asked.summary, asked.receipt, os.environ)
    finally:  # what was found is said even where it could not be kept
        _print(outcome, full, as_json)
    if outcome.receipt.exit_code:
        raise typer.Exit(outcome.receipt.exit_code)


def config_of(runs: Sequence[str]) -> str | None:
    """The configuration among the arguments. UsageError: there is more than one."""
    if len(runs) > 1:
        raise UsageError(
            f"--pair: {len(runs)} arguments beside it; give one CONFIG, or none for the demo"
        )
    return runs[0] if runs else None


def print_checks(receipt: GateReceipt, full: bool) -> None:
    """A gate's marks, checks and last lines, for a person."""
    from cdbench.render.gate_report import gate_lines, gate_table
    from cdbench.render.terminal import make_console, print_lines, print_table

    console = make_console()
    if known := gate_lines(receipt):
        print_lines(console, *known, "")
    print_table(gate_table(receipt, full), console)
    print_lines(console, "", *receipt.sentences)


def _print(outcome: PairOutcome, full: bool, as_json: bool) -> None:
    if as_json:
        from cdbench.cli.output import print_json

        print_json(json.loads(outcome.model_dump_json()))
        return
    print_checks(outcome.receipt, full)
    if outcome.self_test is not None:
        from cdbench.render.terminal import make_console, print_lines

        print_lines(make_console(), "", *outcome.self_test.sentences)

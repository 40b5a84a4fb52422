"""The commands of ``cdbench``: one module each, loaded only when its command runs.

A command's module has one public name, ``verb``: a function that typer can turn into a command, or
a ``typer.Typer`` where the command has subcommands. Adding a command is a module and a line here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer


@dataclass(frozen=True)
class Verb:
    """Where a command lives, and the line that ``cdbench --help`` shows for it."""

    module: str
    summary: str


VERBS: dict[str, Verb] = {
    "run": Verb("cdbench.cli.run", "Measure every mode on equal work, and its accuracy."),
    "recheck": Verb("cdbench.cli.recheck", "Make a run's summaries again from its raw records."),
    "compare": Verb("cdbench.cli.compare", "Compare runs with a base, or judge them by a gate."),
    "baseline": Verb("cdbench.cli.baseline", "Promote runs to baselines, or list those there are."),
    "show": Verb("cdbench.cli.show", "Show questions of a run and their answers, by depth."),
    "table": Verb("cdbench.cli.table", "Make a table of runs or sweeps, in any format."),
    "report": Verb("cdbench.cli.report", "Write one HTML page of a run, or of several."),
    "generate": Verb("cdbench.cli.generate", "Continue prompts with one model in one mode."),
    "profile": Verb(
        "cdbench.cli.profile", "Find the threshold and maximum of loops for a latency target."
    ),
    "sweep": Verb("cdbench.cli.sweep", "Run every cell of a grid, and compare them."),
    "record": Verb("cdbench.cli.record", "Record tokens, depths and exit signals, for replay."),
    "predictor": Verb(
        "cdbench.cli.predictor", "Record, fit and judge a gate that looks one loop ahead."
    ),
    "stages": Verb("cdbench.cli.stages", "Measure what one launch of each stage takes."),
    "config": Verb("cdbench.cli.config", "Check, show or explain a run configuration."),
    "doctor": Verb("cdbench.cli.doctor", "Check a model on this machine before trusting it."),
    "list": Verb("cdbench.cli.list", "List models, tasks, exit rules or metrics."),
}


def load(name: str) -> typer.Typer | Callable[..., Any]:
    """The ``verb`` of a command's module."""
    verb: typer.Typer | Callable[..., Any] = importlib.import_module(VERBS[name].module).verb
    return verb


def attach(app: typer.Typer, name: str, requested: bool) -> None:
    """Register a command: the real one where it is ``requested``, else its line in the help."""
    summary = VERBS[name].summary
    verb = load(name) if requested else _not_loaded
    if isinstance(verb, typer.Typer):
        app.add_typer(verb, name=name, help=summary)
    else:
        # a function's docstring is its long help
        app.command(name, short_help=summary, help=None if requested else summary)(verb)


def _not_loaded() -> None:
    raise AssertionError("a command that was not asked for cannot run")

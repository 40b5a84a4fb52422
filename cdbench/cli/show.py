"""``cdbench show``."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdbench.cli.config import JsonOption
from cdbench.errors import UsageError

if TYPE_CHECKING:
    from cdbench.bench.stored_samples import StoredSamples
    from cdbench.render.continuation import Decode
    from cdbench.schema import SampleRecord

ADAPTIVE = ("cdb", "lockstep")


def verb(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory.")],
    task: Annotated[
        str | None, typer.Option(metavar="T", help="A task of the run; alone: its questions.")
    ] = None,
    doc: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="One question of --task, with answers.")
    ] = None,
    mode: Annotated[
        str | None, typer.Option(metavar="MODE", help="Whose answers; default: cdb.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="MODE", help="Held against these; default: static.")
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="List the questions that --mode answers otherwise.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the questions of a run and what each mode answered, token by token, by depth.

    Without --task it shows accuracy task by task. `cdbench show RUN --changed` lists the questions
    whose verdict the exits changed; `cdbench show RUN --task T --doc N` prints one of them. The
    model is not needed, only its tokenizer. Exit codes: 0 shown, 2 wrong input.
    """
    from cdbench.bench.places import typed_path
    from cdbench.bench.stored_samples import StoredSamples

    if doc is not None and task is None:
        raise UsageError(f"--doc {doc}: of which task? add --task")
    if doc is not None and changed:
        raise UsageError("--changed: lists questions; drop it, or --doc")
    stored = StoredSamples(_directory(typed_path(run, "RUN")))
    ours = stored.mode(mode, "--mode", ADAPTIVE)
    base = stored.mode(against, "--against", ("static",))
    if changed and ours == base:
        raise UsageError(f"--changed: {ours} against itself; name two of {', '.join(stored.modes)}")
    if not as_json:
        _warn(stored)
    if doc is not None and task is not None:
        _question(stored, task, doc, [base, ours], as_json)
    elif changed:
        _changed(stored, task, ours, base, as_json)
    else:
        _overview(stored, task, as_json)


def _warn(stored: StoredSamples) -> None:
    """What must be known before any number of the run is read."""
    from cdbench.render.terminal import make_console, print_lines

    if stored.result.validity.verdict == "INVALID":
        reasons = "; ".join(stored.result.validity.reasons)
        print_lines(make_console(), f"INVALID run ({reasons}): quote no number of it.", "")


def _directory(path: Path) -> Path:
    return path.parent if path.name == "result.json" else path


def _question(stored: StoredSamples, task: str, doc: int, modes: list[str], as_json: bool) -> None:
    from cdbench.render.show_report import print_question
    from cdbench.render.terminal import make_console

    found = stored.question(task, doc)
    chosen = [found[label] for label in dict.fromkeys(modes) if label in found]
    if not chosen:
        raise UsageError(
            f"--doc {doc}: was not asked of {' or '.join(modes)}; of {', '.join(found)}"
        )
    if as_json:
        _print_samples(chosen)
        return
    loops = max(stored.result.modes[sample.mode].max_loops for sample in chosen)
    print_question(chosen, make_console(), loops, functools.partial(_decoder, stored))


def _changed(
    stored: StoredSamples, task: str | None, mode: str, against: str, as_json: bool
) -> None:
    from cdbench.cli.output import print_json
    from cdbench.render.show_report import changed_table
    from cdbench.render.terminal import make_console, print_table

    tasks = [task] if task is not None else stored.tasks
    found = list(stored.changed(tasks, mode, against))
    if as_json:
        print_json(
            {
                "mode": mode,
                "against": against,
                "changed": [
                    {
                        "task": one.ours.task,
                        "doc_id": one.ours.doc_id,
                        against: one.theirs.value,
                        mode: one.ours.value,
                    }
                    for one in found
                ],
            }
        )
        return
    print_table(changed_table(found, mode, against), make_console())


def _overview(stored: StoredSamples, task: str | None, as_json: bool) -> None:
    from cdbench.cli.output import print_json
    from cdbench.render.show_report import question_table
    from cdbench.render.tasks_report import task_table
    from cdbench.render.terminal import make_console, print_table
    from cdbench.schema import to_json

    if as_json and task is not None:
        _print_samples(stored.of_task(task))
    elif as_json:
        accuracy = stored.result.accuracy
        print_json(json.loads(to_json(accuracy)) if accuracy is not None else {})
    else:
        table = task_table(stored.result) if task is None else question_table(stored, task)
        print_table(table, make_console())


def _print_samples(samples: list[SampleRecord]) -> None:
    from cdbench.cli.output import print_json
    from cdbench.schema import to_json

    print_json({"samples": [json.loads(to_json(sample)) for sample in samples]})


def _decoder(stored: StoredSamples, label: str) -> Decode | None:
    """The tokenizer of a mode's model as a function; None where it is not here any more."""
    from cdbench.models.loading import read_decoder

    mode = stored.result.modes[label]
    own = mode.schedule == "dense" and not label.endswith(":unrolled")
    source = label.partition(":")[2] if own else str(stored.result.config.get("model"))
    try:
        return read_decoder(source)
    except UsageError:
        return None

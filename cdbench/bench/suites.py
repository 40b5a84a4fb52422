"""The questions of a run: which suite its configuration asks for, and what must be said of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdbench.bench.once import Once, model_key
from cdbench.config import RunConfig
from cdbench.errors import UsageError
from cdbench.evals.options import SuiteOptions
from cdbench.evals.task_paths import lasting
from cdbench.models.loading import LoadedModel

if TYPE_CHECKING:  # seconds to import: only who asks questions needs it
    from cdbench.evals.suite import Suite

MOST_NOTES = 4
"""Of what the tasks warn of, shown before a run."""
FILLED_IN = "using default"
"""In lm-eval's remarks on a metric whose task leaves the aggregation to it: several a task."""


def found_anywhere(config: RunConfig) -> RunConfig:
    """The configuration with absolute task files: a repeat may be started in another directory."""
    changes: dict[str, Any] = {}
    if config.tasks is not None:
        changes["tasks"] = tuple(lasting(name) for name in config.tasks)
    samples = config.evaluation.samples
    if samples is not None and not samples.lstrip().startswith("{") and Path(samples).is_file():
        found = {"samples": os.path.abspath(samples)}
        changes["evaluation"] = config.evaluation.model_copy(update=found)
    return config.model_copy(update=changes)


def suite_for(config: RunConfig, model: LoadedModel, once: Once) -> Suite | None:
    """The questions of the tasks, where somebody asks them or times their prompts."""
    if "live" not in config.work and config.workload.source != "demo":
        return None
    names = config.tasks if config.tasks is not None else model.card.tasks
    if not names and (config.workload.source == "demo" or "live" in config.work):
        raise UsageError(
            f"tasks: none named, and the card of {model.name} has none; choose from "
            "`cdbench list tasks`, or run work: [equal] on a workload.source of your own"
        )
    if model.tokenizer is None:
        raise UsageError(
            f"model {model.name!r}: has no tokenizer.json, so it cannot read the tasks; "
            "run work: [equal] on a workload.source of ids"
        )
    options = suite_options(config)
    # A conversation is written in the model's own words, so then it decides the requests too.
    own = model_key(config) if options.apply_chat_template else ()
    return once(("suite", names, repr(options), own), partial(_load, names, options, model))


def _load(names: Sequence[str], options: SuiteOptions, model: LoadedModel) -> Suite:
    from cdbench.evals.suite import load_suite
    from cdbench.evals.text import TextCodec

    template = None
    if options.apply_chat_template:
        template = TextCodec(model).renderer(options.apply_chat_template)
    return load_suite(names, options, template)


def suite_options(config: RunConfig) -> SuiteOptions:
    """What the run changes of the tasks as they are written."""
    asked = config.evaluation
    return SuiteOptions(
        # The default limit gives way to documents that are named; one that was asked for does not.
        limit=None if asked.samples and "limit" not in config.model_fields_set else config.limit,
        num_fewshot=asked.num_fewshot,
        samples=asked.samples,
        gen_kwargs=asked.gen_kwargs,
        apply_chat_template=asked.chat_template,
        system_instruction=asked.system_instruction,
        fewshot_as_multiturn=asked.fewshot_as_multiturn,
        seed=asked.fewshot_seed,
    )


def suite_notes(suite: Suite | None) -> Iterator[str]:
    """What a reader must know of the tasks; of lm-eval's remarks on them the rest is counted."""
    notes = suite.notes if suite is not None else ()
    telling = [note for note in notes if FILLED_IN not in note][:MOST_NOTES]
    yield from (f"tasks: {note.removeprefix('task ')}" for note in telling)
    if left := len(notes) - len(telling):
        more = "more notes are" if left > 1 else "more note is"
        yield f"tasks: {left} {more} in result.json (scores.notes)"

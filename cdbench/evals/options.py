"""How a suite is asked for: which documents, how many examples, which template, which sampling."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdbench.errors import UsageError

DEFAULT_SEED = 1234
"""The few-shot seed that lm-eval has where none is given, so that prompts are those of others."""


@dataclass(frozen=True)
class SuiteOptions:
    """What may be changed of the tasks as they are written; None leaves a task's own.

    ``limit`` is a count of documents a task (1 or more) or a share of them (below 1). ``samples``
    gives document ids by task, as a mapping, JSON, or the path of a JSON file; a task not named
    runs whole. ``gen_kwargs`` is a mapping or ``key=value,key=value``. ``apply_chat_template`` is
    True, or the name of one of the tokenizer's templates; ``fewshot_as_multiturn`` belongs to it.
    ``seed`` draws the few-shot examples.
    """

    limit: int | float | None = None
    num_fewshot: int | None = None
    samples: Mapping[str, Sequence[int]] | str | Path | None = None
    gen_kwargs: Mapping[str, Any] | str | None = None
    apply_chat_template: bool | str = False
    system_instruction: str | None = None
    fewshot_as_multiturn: bool = True
    seed: int = DEFAULT_SEED


def check_options(options: SuiteOptions) -> None:
    """Raise UsageError for what no task could mean."""
    limit = options.limit
    if limit is not None and options.samples is not None:
        raise UsageError("limit: does not go with samples, which name the documents; drop one")
    if limit is not None and not (0 < limit < 1 or (limit >= 1 and limit == int(limit))):
        raise UsageError(f"limit is {limit}; use a whole number, or a share of the documents")
    if options.num_fewshot is not None and options.num_fewshot < 0:
        raise UsageError(f"num_fewshot is {options.num_fewshot}; use 0 or more")


def read_samples(samples: Mapping[str, Sequence[int]] | str | Path | None) -> dict[str, list[int]]:
    """Document ids by task, sorted and without repetition. UsageError for anything else."""
    if samples is None:
        return {}
    found: Any = samples
    if isinstance(samples, str | Path):
        inline = str(samples).lstrip().startswith("{")
        try:
            found = json.loads(
                str(samples) if inline else Path(samples).read_text(encoding="utf-8")
            )
        except (OSError, ValueError) as error:
            raise UsageError(
                f"samples: {samples}: {error}; expected a JSON object of task: [document ids]"
            ) from None
    if not isinstance(found, Mapping):
        raise UsageError("samples: no mapping; expected {task: [document ids]}")
    return {str(task): _document_ids(str(task), ids) for task, ids in found.items()}


def _document_ids(task: str, ids: Any) -> list[int]:
    wrong = "samples: task {!r} has {!r}; expected a list of document ids, 0 or more"
    if not isinstance(ids, Sequence) or isinstance(ids, str) or not ids:
        raise UsageError(wrong.format(task, ids))
    for doc_id in ids:
        if not isinstance(doc_id, int) or isinstance(doc_id, bool) or doc_id < 0:
            raise UsageError(wrong.format(task, doc_id))
    return sorted(set(ids))


def read_gen_kwargs(gen_kwargs: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Generation arguments as a dictionary; a text is read as lm-eval's command line reads it."""
    if not isinstance(gen_kwargs, str):
        return dict(gen_kwargs or {})
    # Seconds to import: only where there is something to read.
    from lm_eval.utils import simple_parse_args_string

    keys: list[str] = []
    for part in gen_kwargs.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if not part.strip():
            raise UsageError(
                "gen_kwargs: a comma with nothing beside it; write key=value,key=value"
            )
        if not key or not value:
            raise UsageError(
                f"gen_kwargs: {part.strip()!r} has no value; write key=value,key=value"
            )
        keys.append(key)
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise UsageError(f"gen_kwargs: {twice} is given twice; give it once")
    return {str(key).strip(): value for key, value in simple_parse_args_string(gen_kwargs).items()}

"""Whether lm-eval's own rule judges a task, and what its metrics follow from beside logprobs."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from lm_eval.api.task import ConfigurableTask

JUDGED = ("multiple_choice", "loglikelihood", "loglikelihood_rolling")


@dataclass(frozen=True)
class OwnRule:
    """Of a choice question: the lengths of the choices in characters, and which are right.

    Both are empty for other kinds.
    """

    choice_lengths: tuple[int, ...] = ()
    right_choices: tuple[int, ...] = ()


def own_rule(task: Any, doc: Any) -> OwnRule | None:
    """What decides a document beside its logprobs; None where a task has code or filters for it.

    Generated texts have none: their metrics follow from the text.
    """
    judges = type(task).process_results is ConfigurableTask.process_results
    if not judges or task.OUTPUT_TYPE not in JUDGED:
        return None
    if callable(task.config.process_results) or task.config.filter_list is not None:
        return None
    if task.OUTPUT_TYPE != "multiple_choice":
        return OwnRule()
    choices = task.doc_to_choice(doc)
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    named = gold if isinstance(gold, list) else [gold]
    try:
        lengths = tuple(len(choice) for choice in choices)
        places = [_place(one, choices) for one in named]
    except TypeError:  # no text, or no whole number: whatever a task makes of that
        return None
    return OwnRule(lengths, tuple(place for place in places if place is not None))


def _place(gold: Any, choices: list[str]) -> int | None:
    """Which choice is meant; None where it is none of them, so that no answer is right."""
    if isinstance(gold, str):
        return choices.index(gold) if gold in choices else None
    place = operator.index(gold)
    return place if 0 <= place < len(choices) else None

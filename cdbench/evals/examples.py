"""Few-shot examples: whether there are enough, and whether one of them is the question itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from cdbench.errors import UsageError


@dataclass
class Prompts:
    """How many prompts were built, and how many show their own question among the examples."""

    built: int = 0
    holding_themselves: int = 0


def check_examples(name: str, task: Any) -> None:
    """Raise UsageError where more examples are asked for than a task has."""
    wanted, sampler = _wanted(task), getattr(task, "sampler", None)
    if not wanted or sampler is None:
        return
    # From the split that is asked lm-eval leaves the question out.
    own = task.fewshot_cfg.split == task.config.test_split
    known = len(sampler.fewshot_docs()) - own
    if wanted > known:
        raise UsageError(
            f"task {name!r}: num_fewshot is {wanted}, but there are {known} examples to choose "
            "from; lower evaluation.num_fewshot"
        )


@contextlib.contextmanager
def watched_examples(task: Any) -> Iterator[Prompts]:
    """Within, every prompt that the task builds is counted.

    lm-eval leaves a question out of its own examples only where both are named as one split: those
    of a task without a split for them are drawn from the very questions.
    """
    seen = Prompts()
    if not _wanted(task) or getattr(task, "sampler", None) is None:
        yield seen
        return
    drawn: list[Any] = []
    draw, write = task.sampler.sample, task.fewshot_context

    def sample(*args: Any, **kwargs: Any) -> Sequence[Any]:
        drawn[:] = draw(*args, **kwargs)
        return drawn

    def fewshot_context(doc: Any, *args: Any, **kwargs: Any) -> Any:
        drawn.clear()
        prompt = write(doc, *args, **kwargs)
        seen.built += 1
        seen.holding_themselves += any(_is_question(task, example, doc) for example in drawn)
        return prompt

    with (
        mock.patch.object(task.sampler, "sample", sample),
        mock.patch.object(task, "fewshot_context", fewshot_context),
    ):
        yield seen


def _wanted(task: Any) -> int:
    return int(task.get_config("num_fewshot") or 0)


def _is_question(task: Any, example: Any, doc: Any) -> bool:
    """Whether an example is the document, or asks the same of the same choices."""
    if bool(example == doc):
        return True
    settings = task.fewshot_cfg
    text = task.doc_to_text(doc)
    if not isinstance(text, str) or not text.strip():
        return False
    if task.doc_to_text(example, settings.doc_to_text) != text:
        return False
    ours, theirs = _choices(task, doc, None), _choices(task, example, settings.doc_to_choice)
    return bool(ours == theirs)


def _choices(task: Any, doc: Any, written: Any) -> Any:
    return task.doc_to_choice(doc, written) if task.get_config("doc_to_choice") else None

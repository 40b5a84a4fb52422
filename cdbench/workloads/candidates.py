"""Requests that a workload could be made of: prompts in a model's tokens, in the order to take.

A source yields more of them than are wanted; which are taken, and how long they are made, is for
``cdbench.bench.workload``. Rows are taken in an order that follows from the seed alone, so that
100 requests are the first half of 200.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cdbench import resources
from cdbench.errors import UsageError
from cdbench.keys import WorkloadConfig
from cdbench.models.loading import LoadedModel
from cdbench.workloads import dataset
from cdbench.workloads.chat import ChatRenderer
from cdbench.workloads.draws import stream
from cdbench.workloads.prompts import STDIN, read_ids_file
from cdbench.workloads.shapes import Exchange, Message, ShapeSettings, reader_for

Ids = tuple[int, ...]

IDS_MAX_NEW_TOKENS = 64
"""Longest output of an ids file's line that names none."""
MAX_NEW_TOKENS = 256
"""Longest output of a text, unless the model has fewer than twice as many positions."""


@dataclass(frozen=True)
class Candidate:
    """One possible request. ``where`` is what an error calls it.

    The prompt is ``prefix`` (special tokens) and ``body``. ``reference`` is the known answer,
    ``force`` what a line of an ids file says must follow. ``optional`` ones are passed over where
    the model has too few positions for them; others are an error.
    """

    id: str
    where: str
    body: tuple[int, ...]
    max_new_tokens: int
    prefix: tuple[int, ...] = ()
    reference: tuple[int, ...] | None = None
    force: tuple[int, ...] | None = None
    doc_id: int | None = None
    optional: bool = False


@dataclass
class Source:
    """Candidates as they are read, in the order to take them; can be gone through once.

    ``format`` is the one that was recognised. ``unread`` counts the rows so far that had nothing to
    ask; ``notes`` say what a person may not expect. Both are complete when the candidates are.
    """

    candidates: Iterable[Candidate]
    format: str
    unread: int = 0
    notes: list[str] = field(default_factory=list)


@contextmanager
def opened(settings: WorkloadConfig, model: LoadedModel) -> Iterator[Source]:
    """The candidates of a file or a dataset, while the context lasts.

    Raises UsageError for what cannot be read.
    """
    if settings.format == "ids" or (settings.format == "auto" and _holds_ids(settings.source)):
        yield _from_ids(settings)
        return
    if model.tokenizer is None:
        raise UsageError(
            f"workload.source: {model.name} has no tokenizer.json, so it reads no text; give a "
            "file of token ids"
        )
    with dataset.opened(settings.source, settings.subset, settings.split) as rows:
        yield _from_rows(rows, settings, model)


# Token ids.


def _from_ids(settings: WorkloadConfig) -> Source:
    for key in ("column", "reference_column", "template", "subset", "split"):
        if getattr(settings, key) is not None:
            raise UsageError(f"workload.{key}: means nothing for a file of token ids; drop it")
    name = settings.source
    prompts = read_ids_file(name if name == STDIN else str(resources.find_file(name)))
    candidates = tuple(
        Candidate(
            id=str(index),
            where=prompt.where,
            body=prompt.ids,
            max_new_tokens=(settings.max_new_tokens or prompt.max_new_tokens or IDS_MAX_NEW_TOKENS),
            reference=prompt.force,
            force=prompt.force,
        )
        for index, prompt in enumerate(prompts)
    )
    note = "the workload is token ids: if they are not real text, exit depths mean nothing"
    return Source(candidates, "ids", notes=[note])


def _holds_ids(source: str) -> bool:
    """Whether a file is one of token ids, by its first line that holds something."""
    if source == STDIN:
        return True
    if source.startswith(dataset.HUB_PREFIX):
        return False
    path = resources.find_file(source)
    try:
        with Path(path).open(encoding="utf-8") as lines:
            first = json.loads(next((line for line in lines if line.strip()), ""))
    except OSError as error:
        raise UsageError(
            f"workload.source: {source}: {error.strerror or error}; give demo, random, a file, or "
            "hf:NAME for the hub"
        ) from None
    except (ValueError, RecursionError):
        return False
    prompt = first.get("prompt") if isinstance(first, dict) else None
    return isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)


def random_ids(
    lengths: Sequence[int], vocab_size: int, seed: int, max_new_tokens: int
) -> tuple[Candidate, ...]:
    """Prompts of random ids: no text. Their exits mean nothing, so depths must be replayed."""
    chosen = stream("workload.source", seed)
    return tuple(
        Candidate(
            id=str(index),
            where=f"random prompt {index}",
            body=tuple(chosen.randint(0, vocab_size, length).tolist()),
            max_new_tokens=max_new_tokens,
        )
        for index, length in enumerate(lengths)
    )


# Text.


def _from_rows(rows: dataset.Rows, settings: WorkloadConfig, model: LoadedModel) -> Source:
    shape = ShapeSettings(
        settings.format, settings.column, settings.reference_column, settings.template
    )
    name, read = reader_for(rows, shape)
    write = _Writer(model)
    cap = settings.max_new_tokens or default_max_new_tokens(model)

    def candidates() -> Iterator[Candidate]:
        for row in seeded_order(len(rows), settings.seed):
            exchange = read(rows[row])
            if exchange is None:
                source.unread += 1
                continue
            prefix, body, reference = write(exchange)
            source.notes[:] = write.notes
            yield Candidate(
                id=str(row),
                where=f"row {row} of {rows.where}",
                body=body,
                max_new_tokens=cap,
                prefix=prefix,
                reference=reference,
                doc_id=row,
                optional=True,
            )

    source = Source(candidates(), name)
    return source


def seeded_order(count: int, seed: int) -> list[int]:
    """All numbers below ``count``, in an order that follows from the seed."""
    order = list(range(count))
    random.Random(f"workload.source/{seed}").shuffle(order)
    return order


def default_max_new_tokens(model: LoadedModel) -> int:
    """Longest output of a text where nothing says it."""
    return max(1, min(MAX_NEW_TOKENS, model.network.dims.max_positions // 2))


class _Writer:
    """Turns what a row asks into tokens of one model."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._render: ChatRenderer | None = None
        self.notes: list[str] = []

    def __call__(self, exchange: Exchange) -> tuple[Ids, Ids, Ids | None]:
        """Special tokens in front, the prompt's own, and those of the reference answer."""
        if exchange.text is not None:
            prefix, body = self._split(exchange.text)
            # As in ordinary text, a word that follows another is parted from it.
            gap = "" if exchange.text[-1:].isspace() else " "
        else:
            prefix, body, gap = *self._conversation(exchange.messages), ""
        if exchange.reference is None:
            return prefix, body, None
        return prefix, body, self._bare(gap + exchange.reference.strip())

    def _conversation(self, messages: Sequence[Message]) -> tuple[Ids, Ids]:
        if self._render is None:
            self._render = ChatRenderer(self._model)
            how = "its chat template" if self._render.templated else "no chat template: plain text"
            self.notes.append(f"conversations are written for {self._model.name} with {how}")
        text = self._render(messages)
        # What a template writes has its special tokens already.
        return ((), self._bare(text)) if self._render.templated else self._split(text)

    def _bare(self, text: str) -> Ids:
        """The ids of a text without special tokens around it."""
        assert self._model.tokenizer is not None, "checked before rows are read"
        return tuple(self._model.tokenizer.encode(text, add_special_tokens=False).ids)

    def _split(self, text: str) -> tuple[Ids, Ids]:
        """The special tokens that the model puts before a text, and the text's own."""
        body, whole = self._bare(text), tuple(self._model.encode(text))
        # Those behind it, if there are any, would end the prompt as a document: they are left out.
        places = range(len(whole) - len(body) + 1)
        leading = next((n for n in places if whole[n : n + len(body)] == body), None)
        return ((), whole) if leading is None else (whole[:leading], body)

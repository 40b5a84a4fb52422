"""What became of one of lm-eval's requests: the response it gets, and the tokens behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cdbench.runtime.core import FinishReason, RequestResult
from cdbench.runtime.scoring.continuation import Scored

Response = str | tuple[float, bool] | float
"""Generated text, a continuation's (logprob in nats, greedy), or a whole text's logprob."""

Kind = Literal["generated", "scored", "rolled"]
"""``rolled``: a whole text, scored in windows. Scored and generated tokens never mix."""

NO_SCORE = float("-inf")


@dataclass(frozen=True)
class Piece:
    """Tokens in a row under one rule. Lists align; entry 0 was read at a context's last position.

    ``greedy`` is empty for generated tokens.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    executed_depths: Sequence[int]
    requested_depths: Sequence[int]
    greedy: Sequence[bool] = ()

    @property
    def later_tokens(self) -> int:
        """The tokens that could exit early."""
        return max(0, len(self.executed_depths) - 1)


@dataclass(frozen=True)
class Answer:
    """The answer to one request, repeats apart. ``index`` counts a document's requests from 0.

    ``pieces`` holds one run of tokens, or one a window where a text was rolled. ``cut_tokens`` were
    dropped from the left of a prompt that the model is too short for; ``empty_prompt`` says that
    only the prefix token stood there; ``capped`` that the length limit ended it. With ``error`` set
    there is no answer: a text is then empty and counts as wrong, a score is left out of its metric.
    """

    task: str | None
    doc_id: int | None
    index: int
    repeat: int
    kind: Kind
    response: Response
    pieces: tuple[Piece, ...] = ()
    prompt_tokens: int = 0
    cut_tokens: int = 0
    empty_prompt: bool = False
    capped: bool = False
    error: str | None = None
    result: RequestResult | None = field(default=None, repr=False)

    @property
    def key(self) -> tuple[str, int]:
        """The question it belongs to. Only a request of a task has one."""
        assert self.task is not None
        assert self.doc_id is not None
        return self.task, self.doc_id

    @property
    def id(self) -> str:
        """That of the request it answers."""
        return request_id(self.task, self.doc_id, self.index, self.repeat)

    @property
    def later_tokens(self) -> int:
        """Tokens of it that could exit early; 0 in all of a task's answers: it is not adaptive."""
        return sum(piece.later_tokens for piece in self.pieces)

    @property
    def flags(self) -> tuple[str, ...]:
        """What a reader of this sample must know, in words."""
        said = {
            "error": self.error is not None,
            "cut": self.cut_tokens > 0,
            "empty prompt": self.empty_prompt,
            "capped": self.capped,
        }
        return tuple(word for word, holds in said.items() if holds)


def request_id(task: str | None, doc_id: int | None, index: int, repeat: int) -> str:
    """The question, and where it is not its first request which one."""
    return f"{task}/{doc_id}/{index}/{repeat}" if index or repeat else f"{task}/{doc_id}"


@dataclass(frozen=True)
class Asked:
    """Which request this is, and what was made of its prompt."""

    task: str | None
    doc_id: int | None
    index: int
    repeat: int
    prompt_tokens: int = 0
    cut_tokens: int = 0
    empty_prompt: bool = False
    error: str | None = None

    @property
    def id(self) -> str:
        """The same in every mode, order and rank, so that a sampled text is too."""
        return request_id(self.task, self.doc_id, self.index, self.repeat)

    def with_prompt(self, tokens: int, cut: int, empty: bool) -> Asked:
        """With what was made of its prompt."""
        return replace(self, prompt_tokens=tokens, cut_tokens=cut, empty_prompt=empty)

    def failed(self, error: str) -> Asked:
        """As one that there can be no answer to."""
        return replace(self, error=error)

    def answer(
        self,
        kind: Kind,
        response: Response,
        *,
        pieces: tuple[Piece, ...] = (),
        error: str | None = None,
        result: RequestResult | None = None,
    ) -> Answer:
        """With what came of it; its own error goes first."""
        return Answer(
            task=self.task,
            doc_id=self.doc_id,
            index=self.index,
            repeat=self.repeat,
            kind=kind,
            response=response,
            pieces=pieces,
            prompt_tokens=self.prompt_tokens,
            cut_tokens=self.cut_tokens,
            empty_prompt=self.empty_prompt,
            capped=result is not None and result.finish_reason is FinishReason.LENGTH,
            error=self.error or error,
            result=result,
        )


def identified(instances: Sequence[Any]) -> list[Asked]:
    """Who each of lm-eval's requests is; a request that occurs again is a repeat."""
    seen: Counter[tuple[Any, ...]] = Counter()
    asked = []
    for one in instances:
        key = (one.task_name, one.doc_id, one.idx)
        asked.append(Asked(*key, repeat=seen[key]))
        seen[key] += 1
    return asked


def generated(asked: Asked, result: RequestResult, text: str) -> Answer:
    """The answer that a generated text is."""
    if result.error is not None:
        return asked.answer("generated", "", error=result.error, result=result)
    piece = Piece(result.tokens, result.logprobs, result.executed_depths, result.requested_depths)
    return asked.answer("generated", text, pieces=(piece,), result=result)


def piece_of(tokens: Sequence[int], scored: Scored) -> Piece:
    """A scored continuation with its tokens."""
    return Piece(
        tokens, scored.logprobs, scored.executed_depths, scored.requested_depths, scored.greedy
    )

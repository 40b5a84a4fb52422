"""What is scored and what comes of it, and what a continuation must satisfy.

Entry 0 of every list belongs to the continuation's first token, which is read from the context's
last position; entry i to the token that its predecessor, run through the exit rule, leads to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cdbench.errors import UsageError
from cdbench.models.base import ModelDims
from cdbench.runtime.admission import check_request
from cdbench.runtime.core import ExitPolicy, Request


@dataclass(frozen=True)
class Continuation:
    """Tokens to score after a context, as they would be generated under an exit policy."""

    id: str
    context: Sequence[int]
    tokens: Sequence[int]
    exit: ExitPolicy = field(default_factory=ExitPolicy)
    task: str | None = None
    doc_id: int | None = None

    @property
    def fed(self) -> int:
        """How many of its tokens are run: the last one is only read."""
        return len(self.tokens) - 1

    @property
    def positions(self) -> int:
        """Positions it comes to occupy, its context included."""
        return len(self.context) + self.fed

    @property
    def request(self) -> Request:
        """The same as a request whose tokens are forced."""
        return Request(
            id=self.id,
            prompt=self.context,
            force=self.tokens,
            exit=self.exit,
            task=self.task,
            doc_id=self.doc_id,
        )


@dataclass(frozen=True)
class Scored:
    """One continuation's scores, aligned with its tokens; all lists are empty where it has none.

    ``logprobs`` are natural logarithms under the raw model; ``greedy`` says where greedy decoding
    would have chosen the very token. ``executed_depths`` and ``requested_depths`` are those of a
    request that generates these tokens: entry 0 is R, but that under ``first_token: select`` the
    requested one is the loop that was read. ``error`` says why there are no scores.
    """

    id: str
    logprobs: list[float]
    greedy: list[bool]
    executed_depths: list[int]
    requested_depths: list[int]
    error: str | None = None

    @property
    def logprob(self) -> float:
        """Of the whole continuation, in nats. ValueError where it could not be scored."""
        if self.error is not None:
            raise ValueError(f"continuation {self.id!r} has no score: {self.error}")
        return sum(self.logprobs)

    @property
    def all_greedy(self) -> bool:
        """Whether greedy decoding would yield it. ValueError where it could not be scored."""
        if self.error is not None:
            raise ValueError(f"continuation {self.id!r} has no score: {self.error}")
        return all(self.greedy)

    @staticmethod
    def failed(continuation: Continuation, error: str) -> Scored:
        return Scored(continuation.id, [], [], [], [], error)


def fault_of(continuation: Continuation, dims: ModelDims, max_loops: int) -> str | None:
    """Why this continuation cannot be scored, in one line; None where it can be.

    Its exit policy is the model's and the configuration's business and has been checked before.
    """
    if not len(continuation.context):
        return "its context is empty; give at least one token (the model's prefix token)"
    if not len(continuation.tokens):
        return "it has no tokens; give at least one to score"
    if continuation.positions > dims.max_positions:
        return (
            f"{len(continuation.context)} context tokens and {len(continuation.tokens)} to score "
            f"exceed the model's {dims.max_positions} positions; shorten the context"
        )
    try:
        check_request(continuation.request, dims, max_loops)
    except UsageError as error:
        return str(error)
    return None

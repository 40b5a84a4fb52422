"""``requests.jsonl``: one line per request and timed run, the source of every summary."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cdbench.metrics.predictor import predicted_depths
from cdbench.metrics.trace import RequestTrace
from cdbench.schema.base import Record, Work


class RequestRecord(Record):
    """One request in one timed run. Depth lists and ``token_s`` align with ``tokens``.

    Entry 0 of the depth lists is the first token (R); entry i the loops that produced token i.
    Times are seconds on the clock of the run. It satisfies ``RequestTrace``: metrics can be made
    from it.
    """

    id: str
    task: str | None
    doc_id: int | None
    mode: str
    block: int | None = Field(description="null in the live pass")
    order: int | None = Field(None, description="place within the block: a mode runs twice in it")
    work: Work
    prompt_tokens: int
    arrival_s: float
    admitted_s: float | None
    token_s: list[float]
    finish_s: float
    tokens: list[int]
    requested_depths: list[int]
    executed_depths: list[int]
    predicted_depths: list[int | None] | None = Field(
        None,
        description="depths that a lookahead gate called, R where it called none, null where it "
        "was not asked; null in all where there is no gate",
    )
    stop_depth: int | None = Field(description="loops of the stop token, which is not listed")
    finish_reason: Literal["stop", "length", "error", "cancelled"]
    error: str | None
    right: bool | None = Field(
        None,
        description="live pass: whether the question's primary metric is 1; null where nothing was "
        "asked",
    )

    @classmethod
    def of(
        cls,
        request: RequestTrace,
        *,
        doc_id: int | None,
        mode: str,
        work: Work,
        block: int | None = None,
        order: int | None = None,
        right: bool | None = None,
    ) -> RequestRecord:
        """The line of one request's result."""
        return cls.model_validate(
            {
                **{name: getattr(request, name) for name in _COPIED},
                "predicted_depths": predicted_depths(request),
                "finish_reason": str(request.finish_reason),
                "doc_id": doc_id,
                "mode": mode,
                "work": work,
                "block": block,
                "order": order,
                "right": right,
            }
        )


_COPIED = (
    "id",
    "task",
    "prompt_tokens",
    "arrival_s",
    "admitted_s",
    "token_s",
    "finish_s",
    "tokens",
    "requested_depths",
    "executed_depths",
    "stop_depth",
    "error",
)

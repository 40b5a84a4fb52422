"""``workload.jsonl``: the recorded requests that every timed run was given, one a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pydantic import Field

from cdbench.schema.base import Record


class RecordedWork(Protocol):
    """One request with the recorded run's tokens and depths."""

    @property
    def id(self) -> str: ...
    @property
    def task(self) -> str | None: ...
    @property
    def doc_id(self) -> int | None: ...
    @property
    def prompt(self) -> Sequence[int]: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def executed_depths(self) -> Sequence[int]: ...
    @property
    def requested_depths(self) -> Sequence[int]: ...


class WorkloadRecord(Record):
    """One request of the workload, in the looped model's own token ids. A ``RecordedWork``.

    Depth lists align with ``tokens``: entry 0 is the first token, entry i the loops that produced
    token i in the recorded run.
    """

    id: str
    task: str | None = None
    doc_id: int | None = None
    prompt: list[int]
    tokens: list[int] = Field(description="forced in every mode")
    executed_depths: list[int] = Field(description="replayed by adaptive modes")
    requested_depths: list[int] = Field(description="what the rule asked for at lag 0")
    predicted_depths: list[int | None] | None = Field(
        None, description="depths that a lookahead gate called, as in requests.jsonl"
    )
    arrival_s: float | None = Field(
        None, description="scheduled arrival from the start; null: at once, or as others finish"
    )

    @classmethod
    def of(cls, work: RecordedWork, arrival_s: float | None = None) -> WorkloadRecord:
        """The line of one recorded request, which arrives so many seconds after the start."""
        return cls(
            id=work.id,
            task=work.task,
            doc_id=work.doc_id,
            prompt=list(work.prompt),
            tokens=list(work.tokens),
            executed_depths=list(work.executed_depths),
            requested_depths=list(work.requested_depths),
            predicted_depths=_listed(getattr(work, "predicted_depths", None)),
            arrival_s=arrival_s,
        )


def _listed(depths: Sequence[int | None] | None) -> list[int | None] | None:
    return None if depths is None else list(depths)

"""``sweep.json``: the cells of a sweep, what became of each, and the figures compared.

It is written anew, whole, after every cell. The cells' own results stay in their run directories.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from cdbench.schema.base import SCHEMA_VERSION, IntervalRecord, Record

SWEEP_FILE = "sweep.json"
ATTEMPT_FILE = "cell.json"
FAILED_FILE = "failed.json"

State = Literal["pending", "finished", "failed", "interrupted"]


class CellAttempt(Record):
    """``cell.json`` (finished) or ``failed.json`` in a cell's directory: one attempt to run it."""

    hash: str = Field(description="of the resolved configuration: the name of the directory")
    round: int = Field(description="from 1")
    changes: dict[str, JsonValue] = Field(description="keys this cell sets against the base")
    started_utc: str = Field(description="ISO 8601, UTC")
    seconds: float = Field(description="from its start to its end, loading included")
    error: str | None = Field(None, description="what ended it; null where it finished")
    traceback: str | None = Field(None, description="null for an error that needs none")


class CellRound(Record):
    """One run of one cell."""

    round: int = Field(description="from 1")
    state: State
    directory: str = Field(description="relative to the sweep's")
    verdict: Literal["VALID", "INVALID"] | None = Field(None, description="null unless finished")
    reasons: list[str] = Field(default_factory=list)
    flags: list[str] = Field(default_factory=list, description="what to mind in a valid run")
    error: str | None = None
    seconds: float | None = Field(None, description="null where it was not recorded")


class SweepCell(Record):
    """One cell over all its rounds."""

    number: int = Field(description="from 1, in the order of the file")
    hash: str
    changes: dict[str, JsonValue]
    rounds: list[CellRound]
    verdict: Literal["VALID", "INVALID"] | None = Field(
        None, description="of all rounds together; null until every round has finished"
    )
    reasons: list[str] = Field(default_factory=list)
    figures: dict[str, IntervalRecord] = Field(
        default_factory=dict, description="column → value over the blocks of all rounds"
    )


class SweepEstimate(Record):
    """How long what is left will take; ``seconds`` null where no finished cell tells."""

    seconds: float | None
    cells_left: int = Field(description="runs still to be made, over all rounds")
    finished: int = Field(description="finished runs the estimate comes from")
    per_cell: dict[str, float] = Field(default_factory=dict, description="cell hash → seconds")
    left_per_cell: dict[str, int] = Field(
        default_factory=dict, description="cell hash → its runs still to be made; others have none"
    )


class SweepDocument(Record):
    """``sweep.json``, and what ``cdbench sweep --json`` prints."""

    schema_version: Literal[1] = SCHEMA_VERSION
    name: str
    verb: Literal["run", "stages"]
    status: Literal["planned", "complete", "partial", "interrupted"] = Field(
        description="partial: cells failed or were left for later"
    )
    seed: int
    rounds: int
    base: dict[str, JsonValue]
    varied: list[str]
    columns: list[str] = Field(description="names of the figures, in the order of the table")
    cells: list[SweepCell]
    sustained: list[str] = Field(
        default_factory=list,
        description="of a sweep over arrival rates: the highest that each mode keeps up with",
    )
    notes: list[str] = Field(default_factory=list)
    estimate: SweepEstimate | None = None

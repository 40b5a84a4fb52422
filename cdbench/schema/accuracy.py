"""Accuracy by mode and task: rates, paired differences, and what the texts have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from cdbench.schema.base import IntervalRecord, Measure, Record

if TYPE_CHECKING:  # it would load scipy for readers that only want the contract
    from cdbench.stats.paired import PairedAccuracy


class PairedRecord(Record):
    """A mode against the baseline on the same questions."""

    over: str
    n: int
    difference: IntervalRecord = Field(description="mode − baseline, 95 % Tango score interval")
    lost: int = Field(description="right under the baseline only")
    gained: int = Field(description="right under the mode only")
    mcnemar_p: float
    delta: float = Field(description="non-inferiority margin")
    verdict: Literal["within", "worse", "cannot tell"]

    @classmethod
    def of(cls, paired: PairedAccuracy, over: str) -> PairedRecord:
        """The record of a computed comparison with mode ``over``."""
        return cls(
            over=over,
            n=paired.n,
            difference=IntervalRecord.of(paired.difference),
            lost=paired.lost,
            gained=paired.gained,
            mcnemar_p=paired.p_value,
            delta=paired.delta,
            verdict=paired.verdict.value,
        )


class AgreementRecord(Record):
    """A mode's generated texts against the baseline's, question by question.

    Texts that have parted are not compared further: from there on each answers itself.
    """

    over: str
    n: int = Field(description="texts that both generated")
    identical: int = Field(description="texts with the same tokens throughout")
    token_agreement: Measure = Field(
        None, description="tokens before the first difference / tokens of the longer text"
    )
    first_divergence: Measure = Field(
        None, description="median position of the first difference, from 0; null without one"
    )
    length_ratio: Measure = Field(None, description="tokens of the mode's texts / the baseline's")


class TaskAccuracy(Record):
    """One task in one mode. ``rate`` is the mean of its primary metric over the questions.

    Its interval is Wilson's where every value is 0 or 1, else a 95 % t interval; null where the
    values are no numbers that are averaged (a perplexity: see ``scores``).
    """

    metric: str
    filter: str
    rate: IntervalRecord | None
    paired: PairedRecord | None = Field(
        None, description="over the baseline; null for it, and where values are not 0 or 1"
    )
    difference: IntervalRecord | None = Field(
        None, description="mode − baseline, paired 95 % t interval, of values that are not 0 or 1"
    )
    adaptive: bool = Field(True, description="false where no token could exit early")
    eligible_tokens: int = Field(0, description="generated and scored tokens that could")
    mean_depth: Measure = Field(None, description="executed, over the eligible tokens")
    early_first_tokens: int = Field(
        0,
        description="first tokens read before loop R (first_token: select); all loops ran, so none "
        "of them saved anything",
    )
    first_token_loop: Measure = Field(
        None, description="mean loop that first tokens were read from; null where all were at R"
    )
    scored_tokens: int = Field(0, description="of given texts; they are in no throughput")
    capped: int = Field(0, description="texts that the length limit ended")
    unparseable: int = Field(0, description="texts without an answer in them")
    cut: int = Field(0, description="questions whose prompt was too long and lost its beginning")
    failed: int = Field(0, description="questions with a request that had no answer")
    agreement: AgreementRecord | None = None


class ModeAccuracy(Record):
    """Accuracy of one mode in the live pass. Rates have 95 % Wilson intervals.

    ``rate`` pools the questions whose primary metric is 0 or 1; null without one.
    """

    rate: IntervalRecord | None
    by_task: dict[str, IntervalRecord] = Field(default_factory=dict)
    paired: PairedRecord | None = Field(None, description="null for the baseline itself")
    adaptive: bool = Field(True, description="false where no token could exit early")
    early_first_tokens: int = Field(
        0, description="first tokens read before loop R (first_token: select), with nothing saved"
    )
    tasks: dict[str, TaskAccuracy] = Field(default_factory=dict)


class Accuracy(Record):
    """Accuracy by mode, all on the same questions."""

    baseline: str | None = Field(description="null where static did not run")
    questions: str | None = Field(
        None, description="sha256 over every request of the tasks, the same for all modes"
    )
    modes: dict[str, ModeAccuracy]


class ScoreRecord(Record):
    """One of lm-eval's aggregates, as it computed it."""

    metric: str
    filter: str
    higher_is_better: bool | None
    value: Measure
    stderr: Measure = None
    n: int | None = Field(None, description="documents; null for a group")


class Scores(Record):
    """lm-eval's own numbers: mode → task or group → aggregates. Not made again by ``recheck``."""

    tasks: dict[str, dict[str, list[ScoreRecord]]]
    groups: dict[str, dict[str, list[ScoreRecord]]] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list, description="lm-eval's warnings")

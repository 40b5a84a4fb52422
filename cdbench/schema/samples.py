"""``samples_<task>.jsonl``: one line per mode and question, the source of every accuracy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from cdbench.schema.base import Measure, Record

UNPARSEABLE = "[invalid]"
"""What lm-eval's regex filters leave of a text without a match."""


class PieceRecord(Record):
    """Tokens in a row under one rule; the lists align, entry 0 was read at full depth."""

    tokens: list[int]
    executed_depths: list[int]
    requested_depths: list[int]
    logprobs: list[float] = Field(
        default_factory=list, description="nats, of scored tokens; empty for generated ones"
    )

    @property
    def later_depths(self) -> list[int]:
        """Executed depths of the tokens that could exit early."""
        return self.executed_depths[1:]


class AnswerRecord(Record):
    """One request of a question: a generated text, or the likelihood of a given one."""

    id: str
    kind: Literal["generated", "scored", "rolled"] = Field(
        description="rolled: a whole text, scored in windows"
    )
    text: str | None = Field(None, description="generated, or the continuation that was scored")
    logprob: Measure = Field(None, description="nats, of a scored text; null where it failed")
    greedy: bool | None = Field(
        None, description="whether greedy decoding would have produced the scored text"
    )
    prompt_tokens: int
    pieces: list[PieceRecord] = Field(default_factory=list)
    cut_tokens: int = Field(0, description="dropped from the left of a prompt that was too long")
    empty_prompt: bool = False
    capped: bool = Field(False, description="ended by the length limit")
    error: str | None = None

    @property
    def tokens(self) -> list[int]:
        """All of its tokens, one piece after the other."""
        return [token for piece in self.pieces for token in piece.tokens]


class OwnRuleRecord(Record):
    """What the metrics of a question follow from, beside its logprobs, under lm-eval's own rule."""

    choice_lengths: list[int] = Field(
        default_factory=list, description="characters of each choice; empty where there are none"
    )
    right_choices: list[int] = Field(default_factory=list, description="from 0")


class SampleRecord(Record):
    """One question in one mode: what was asked and answered, and how lm-eval judged it.

    ``value`` is the document's share in the task's primary metric, null where it has none or where
    the metric is no mean over documents. Metrics are keyed ``metric,filter``.
    """

    mode: str
    task: str
    doc_id: int
    doc_hash: str
    prompt_hash: str
    target: JsonValue = None
    prompt: str
    answers: list[AnswerRecord]
    filtered: dict[str, JsonValue] = Field(
        default_factory=dict, description="filter → the answers as the filter left them"
    )
    metrics: dict[str, JsonValue] = Field(default_factory=dict)
    primary: str = Field(description="the task's primary metric, as metric,filter")
    value: Measure = None
    higher_is_better: bool | None = Field(None, description="of the primary metric")
    own_rule: OwnRuleRecord | None = Field(
        None,
        description="null where the task has code or filters of its own, or texts are generated",
    )

    @property
    def key(self) -> tuple[str, int]:
        """The question, the same in every mode."""
        return self.task, self.doc_id

    @property
    def failed(self) -> bool:
        """Whether a request of it was refused or could not be scored."""
        return any(answer.error is not None for answer in self.answers)

    @property
    def unparseable(self) -> bool:
        """Whether the primary filter found no answer in the text."""
        left = self.read_as
        return isinstance(left, list) and UNPARSEABLE in left

    @property
    def read_as(self) -> JsonValue:
        """The answers as the primary filter left them."""
        return self.filtered.get(self.primary.partition(",")[2])

    @property
    def texts(self) -> list[list[int]]:
        """The tokens of every generated answer."""
        return [answer.tokens for answer in self.answers if answer.kind == "generated"]

    @property
    def scored_tokens(self) -> int:
        """Tokens of given texts."""
        return sum(len(answer.tokens) for answer in self.answers if answer.kind != "generated")

    @property
    def first_loops(self) -> list[tuple[int, int]]:
        """(loop read, loops run) of every first token.

        They differ under ``first_token: select`` alone, where the rule picks the loop afterwards.
        """
        return [
            depths
            for answer in self.answers
            for piece in answer.pieces
            for depths in zip(piece.requested_depths[:1], piece.executed_depths[:1], strict=True)
        ]

    @property
    def eligible_depths(self) -> list[int]:
        """Executed depths of all its tokens that could exit early."""
        return [*self.later_depths("generated"), *self.later_depths("scored")]

    def later_depths(self, kind: Literal["generated", "scored"]) -> list[int]:
        """Executed depths of its tokens that could exit early, generated or scored ones."""
        return [
            depth
            for answer in self.answers
            if (answer.kind == "generated") == (kind == "generated")
            for piece in answer.pieces
            for depth in piece.later_depths
        ]

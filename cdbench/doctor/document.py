"""What ``cdbench doctor --json`` prints, field by field. Version 1.

Names carry their unit where it could be mistaken; an undefined value is null. Places in an output
count from 0, as in every list of tokens; depths are loops, from 1.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from cdbench.schema import Manifest, Measure, RepeatEnvironment

Verdict = Literal["pass", "fail", "rounding", "not applicable"]


class Part(BaseModel):
    """Base of every section."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class Difference(Part):
    """The first place where a request's output is not what was expected.

    A token is null where the output had ended there. ``margin`` is how far the expected readout's
    best logit leads its second; ``scale`` its largest logit by size.
    """

    what: Literal["token", "depth", "logprob"]
    request: str
    token_index: int = Field(description="0 is the first token")
    expected_token: int | None = None
    found_token: int | None = None
    expected_depth: int | None = None
    found_depth: int | None = None
    expected_logprob: Measure = None
    found_logprob: Measure = None
    margin: Measure = None
    scale: Measure = None


class Check(Part):
    """One invariant. ``rounding``: outputs differ by no more than the dtype explains."""

    name: str
    compares: str
    verdict: Verdict
    figures: dict[str, JsonValue] = {}
    first_difference: Difference | None = None
    detail: str | None = Field(None, description="what went wrong, or why it does not apply")


class RuleLine(Part):
    """What one exit rule did at its default threshold; depths are those of later tokens."""

    rule: str
    threshold: float | None
    tokens: int
    depths: list[int] = Field(description="entry d - 1 counts the tokens of depth d")
    mean_depth: Measure
    signals: int = Field(description="signals computed over the whole sequences")
    not_finite: int = Field(description="how many of them are NaN or infinite")


class DtypeLine(Part):
    """How far one service of the greedy requests is from another.

    ``compared`` are served alone in ``dtype`` and ``against``, or, where these are the same, in
    company and alone. Shares are of requests. The first divergence is the first token that differs.
    """

    dtype: str
    against: str
    compared: Literal["dtypes", "batched with alone"]
    requests: int
    same_tokens: Measure
    same_tokens_and_depths: Measure
    other_depth: Measure = Field(description="share of tokens, before any of a request differs")
    diverged: int
    earliest_divergence: int | None
    median_divergence: Measure
    median_margin: Measure = Field(description="top-2 logit margin there, in the expected output")
    largest_margin: Measure
    largest_logprob_gap: Measure = Field(description="before any token or depth differs")
    not_finite: int = Field(description="logprobs of the service in dtype that are NaN or infinite")


class Facts(Part):
    """What the model is. Counts of parameters are without those that are tied."""

    model_type: str
    parameters: int
    weight_bytes: int
    tied_parameters: list[str]
    not_finite_parameters: list[str]
    unread_parameters: list[str] | None = Field(description="no stage and no gate reads them")
    layers: str = Field(description="PRELUDE-CORE-CODA")
    loops: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    has_exit_gate: bool
    has_injection: bool
    has_halting: bool
    cost_ratio: Measure = Field(description="FLOPs of prelude and coda over those of one loop")
    kv_bytes_per_token: int = Field(description="at full depth, in the layout and dtype examined")


class Finding(Part):
    """One thing about the machine. ``warn``: it would disturb a run; ``unknown``: not told."""

    name: str
    verdict: Literal["ok", "warn", "unknown"]
    detail: str


class NoiseFound(Part):
    """The same work timed against itself, in blocks A B B A."""

    blocks: int
    run_s: float = Field(description="median length of one run")
    spread: float = Field(description="standard deviation of a block's log ratio")
    visible_effect: dict[int, float] = Field(
        description="blocks → half the width of a 95 % interval, as a share of the ratio"
    )


class Measuring(Part):
    """What this machine can measure, and what would spoil a run on it."""

    findings: list[Finding]
    noise: NoiseFound
    environment: RepeatEnvironment = Field(description="the machine during the noise probe")

    @property
    def warnings(self) -> list[Finding]:
        """What to put right before a run."""
        return [finding for finding in self.findings if finding.verdict == "warn"]


class DoctorDocument(Part):
    """The whole examination; without a model, the machine alone."""

    schema_version: Literal[1] = 1
    model: str | None = None
    verdict: Literal["pass", "fail"] | None = None
    config: dict[str, JsonValue] = {}
    machine: Manifest
    measuring: Measuring | None = Field(None, description="null where only a model was examined")
    facts: Facts | None = None
    checks: list[Check] = []
    depths: list[int] | None = Field(
        None, description="of later tokens under the rule: entry d - 1 counts depth d"
    )
    rules: list[RuleLine] = []
    dtypes: list[DtypeLine] = []
    notes: list[str] = []
    wall_s: float | None = None

    @property
    def failed(self) -> list[Check]:
        """The broken invariants."""
        return [check for check in self.checks if check.verdict == "fail"]

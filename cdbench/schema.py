"""The result contract: every file cdbench writes, field by field. Version 1.

- ``result.json`` is one ``Result``. It is written last, whole.
- ``requests.jsonl`` has one ``RequestRecord`` per request and timed run: the source of every
  summary.
- ``cdbench generate --json`` prints one ``GenerateDocument``.

Rules. An absent or undefined value is null, never 0; NaN and infinity are never written (an
undefined measure becomes null, a required one is refused). Times are seconds, sizes bytes, shares
and accuracies fractions, depths 1-based loops; names carry the unit where it could be mistaken.
``schema_version`` rises when a field changes its meaning or goes; new optional fields and sections
do not raise it, so readers keep what they do not know.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError

from cdbench.errors import UsageError
from cdbench.metrics.trace import RequestTrace
from cdbench.stats.interval import Interval

if TYPE_CHECKING:  # it would load scipy for readers that only want the contract
    from cdbench.stats.paired import PairedAccuracy

SCHEMA_VERSION: Literal[1] = 1
RESULT_FILE = "result.json"
REQUESTS_FILE = "requests.jsonl"


def _null_if_not_finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Measure = Annotated[float | None, BeforeValidator(_null_if_not_finite)]
"""A measured number, or null where it is undefined."""

Work = Literal["equal", "live"]
Scope = Literal["decode", "e2e"]


class Record(BaseModel):
    """Base of every section: keeps what a later version added, refuses NaN and infinity."""

    model_config = ConfigDict(
        extra="allow", allow_inf_nan=False, frozen=True, protected_namespaces=()
    )


class IntervalRecord(Record):
    """An estimate from ``n`` observations; ``low`` and ``high`` are null where n is too small."""

    estimate: Measure
    low: Measure = None
    high: Measure = None
    n: int

    @classmethod
    def of(cls, interval: Interval) -> IntervalRecord:
        """The record of a computed interval."""
        return cls(estimate=interval.estimate, low=interval.low, high=interval.high, n=interval.n)

    def to_interval(self) -> Interval:
        """The interval again. Raises ValueError where the estimate is undefined."""
        if self.estimate is None:
            raise ValueError("an undefined estimate has no interval")
        return Interval(self.estimate, self.low, self.high, self.n)


# --- manifest: what was run, on what ---


class GitState(Record):
    """The checkout cdbench ran from."""

    commit: str
    dirty: bool = Field(description="true where tracked or untracked files differ from the commit")


class CpuInfo(Record):
    """The processor and how much of it this process may use."""

    model: str | None
    logical_cores: int | None
    physical_cores: int | None
    affinity: list[int] | None = Field(description="logical cores this process may run on")
    quota_cores: Measure = Field(None, description="container limit in cores, where one is set")
    governor: str | None = Field(description="frequency governor of the first core")


class DeviceInfo(Record):
    """Where the model ran. Everything but ``kind`` is null on a CPU."""

    kind: str = Field(description="cpu or cuda")
    name: str | None = None
    capability: str | None = Field(None, description="CUDA compute capability, such as 9.0")
    memory_bytes: int | None = None
    runtime: str | None = Field(None, description="CUDA version of the torch build")


class ModelIdentity(Record):
    """A model by name (a directory gives its last part) and by content."""

    name: str
    files: dict[str, str] = Field(description="file name → sha256 of config.json and weights")


class Manifest(Record):
    """What was run, on what. No user or host name, no paths but those typed."""

    started_utc: str = Field(description="ISO 8601, UTC")
    command: list[str] = Field(description="command line as typed; the program by name only")
    cdbench_version: str | None
    git: GitState | None = Field(description="null outside a checkout")
    python: str
    packages: dict[str, str | None] = Field(description="package → version, null where absent")
    platform: str
    cpu: CpuInfo
    ram_bytes: int | None
    load_average: list[float] | None = Field(description="1, 5 and 15 minutes, at the start")
    torch_threads: int | None
    torch_interop_threads: int | None
    device: DeviceInfo
    env: dict[str, str] = Field(description="set variables that change speed or numerics")
    models: list[ModelIdentity]


# --- result.json ---


class Validity(Record):
    """Whether the numbers may be used, and why not."""

    verdict: Literal["VALID", "INVALID"]
    reasons: list[str] = Field(default_factory=list, description="empty for a VALID run")


class ModelFacts(Record):
    """The static facts of the looped model: what is known before anything is measured."""

    name: str
    model_type: str
    parameters: int
    max_loops: int = Field(description="R of this run")
    cost_ratio: float = Field(description="(F_p + F_k) / F_c: boundary stages against one loop")
    kv_bytes_per_token: int = Field(description="at full depth, under kv_layout")
    kv_layout: str
    dtype: str
    device: str
    random_weights_seed: int | None = None
    notes: list[str] = Field(default_factory=list)


class Workload(Record):
    """The requests every mode processed."""

    hash: str = Field(
        description="sha256 over prompts, lengths, arrivals, forced tokens and depths"
    )
    source: str
    requests: int
    prompt_tokens: int = Field(description="sum over requests")
    output_tokens: int | None = Field(None, description="sum over requests, where fixed")
    arrivals: str = Field(description="all-at-once, closed-loop, open-loop or trace")
    seed: int | None = None
    replayed: list[str] = Field(
        default_factory=list, description="what was recorded and replayed: tokens, lengths, depths"
    )


class ExitSettings(Record):
    """The exit rule as it ran. ``depth`` belongs to ``fixed``; ``threshold`` null without one."""

    rule: str
    threshold: float | None = None
    min_loops: int = 1
    lag: int = 0
    depth: int | None = None


class ModeResult(Record):
    """One mode: how it ran, and its numbers."""

    schedule: Literal["dense", "static", "lockstep", "cdb"]
    model: str
    exit: ExitSettings
    max_loops: int
    note: str | None = Field(None, description="what must be said beside this row")
    metrics: dict[str, Measure] = Field(
        default_factory=dict,
        description="equal work, by metric name (`cdbench list metrics`): mean over the timed runs",
    )
    intervals: dict[str, IntervalRecord] = Field(
        default_factory=dict, description="of metrics that vary between blocks"
    )
    percentiles: dict[str, dict[str, Measure]] = Field(
        default_factory=dict,
        description="metric → p50, p90, … ; null below the minimum of requests",
    )
    live: dict[str, Measure] = Field(
        default_factory=dict, description="live pass: the model's own text and exits; no ratios"
    )
    depth_histogram: list[int] | None = Field(
        None, description="later tokens per executed depth: entry d−1 counts depth d"
    )
    depth_histogram_by_task: dict[str, list[int]] = Field(default_factory=dict)


class BlockRecord(Record):
    """One timed run of one mode."""

    index: int = Field(description="block, from 0")
    order: int = Field(description="place within the block, from 0")
    mode: str
    wall_s: float = Field(gt=0, description="timed region")
    decode_wall_s: Measure = Field(None, description="timed region − time in prefill launches")
    metrics: dict[str, Measure] = Field(default_factory=dict, description="of this run alone")


class Comparison(Record):
    """speedup(mode over another) = wall_over / wall_mode on equal work: above 1, mode is faster."""

    mode: str
    over: str
    scope: Scope
    speedup: IntervalRecord = Field(
        description="geometric mean over blocks, 95 % t interval on logs"
    )
    log_ratios: list[float] = Field(default_factory=list, description="one per block")
    note: str | None = None


class BoundRecord(Record):
    """A theoretical speed-up over static, and the share of it realised in the same scope."""

    value: Measure
    scope: Scope
    realised: IntervalRecord | None = None
    note: str | None = None


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


class ModeAccuracy(Record):
    """Accuracy of one mode in the live pass. Rates have 95 % Wilson intervals."""

    rate: IntervalRecord
    by_task: dict[str, IntervalRecord] = Field(default_factory=dict)
    paired: PairedRecord | None = Field(None, description="null for the baseline itself")
    adaptive: bool = Field(True, description="false where no token could exit early")


class Accuracy(Record):
    """Accuracy by mode, all on the same questions."""

    baseline: str | None = Field(description="null where static did not run")
    modes: dict[str, ModeAccuracy]


class Result(Record):
    """``result.json``. Sections from ``waterfall`` on appear where they were made."""

    schema_version: Literal[1] = SCHEMA_VERSION
    status: Literal["complete", "interrupted"]
    validity: Validity
    manifest: Manifest
    config: dict[str, JsonValue] = Field(description="the resolved configuration")
    model: ModelFacts | None = Field(None, description="null where only other parts were made")
    workload: Workload
    modes: dict[str, ModeResult]
    blocks: list[BlockRecord] = Field(default_factory=list)
    comparisons: list[Comparison] = Field(default_factory=list)
    bounds: dict[str, dict[str, BoundRecord]] = Field(
        default_factory=dict, description="mode → bound name (flop_bound, …) → bound"
    )
    accuracy: Accuracy | None = None
    samples: dict[str, str] = Field(
        default_factory=dict, description="task → file of its evaluation samples"
    )
    files: dict[str, str] = Field(default_factory=dict, description="what else the run wrote")
    waterfall: JsonValue = Field(None, description="loops saved → measured speed-up")
    stages: JsonValue = Field(None, description="the stage curves used, with their key")


# --- requests.jsonl ---


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
    stop_depth: int | None = Field(description="loops of the stop token, which is not listed")
    finish_reason: Literal["stop", "length", "error", "cancelled"]
    error: str | None

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
    ) -> RequestRecord:
        """The line of one request's result."""
        return cls.model_validate(
            {
                **{name: getattr(request, name) for name in _COPIED},
                "finish_reason": str(request.finish_reason),
                "doc_id": doc_id,
                "mode": mode,
                "work": work,
                "block": block,
                "order": order,
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


# --- generate --json ---


class GeneratedRequest(BaseModel):
    """One continuation. A refused request has its ``error`` and no tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    index: int = Field(description="place in the input, from 0")
    prompt_tokens: int
    tokens: list[int]
    depths: list[int] = Field(description="executed depths; entry 0 is the first token (R)")
    logprobs: list[Measure] = Field(
        description="of the tokens listed, the raw model's, natural log"
    )
    text: str | None = Field(description="null without a tokenizer")
    finish_reason: Literal["stop", "length", "error", "cancelled"]
    error: str | None


class GenerateDocument(BaseModel):
    """``cdbench generate --json``: every request, in input order."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = SCHEMA_VERSION
    model: str
    config: dict[str, JsonValue]
    requests: list[GeneratedRequest]


# --- reading and writing ---


def to_json(document: BaseModel, indent: int | None = 2) -> str:
    """One JSON document; what is not finite becomes null."""
    return document.model_dump_json(indent=indent)


def write_result(directory: Path, result: Result) -> Path:
    """Write ``result.json`` whole or not at all, and answer its path."""
    path = directory / RESULT_FILE
    _write_whole(path, to_json(result) + "\n")
    return path


def write_requests(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write a ``requests.jsonl`` whole or not at all."""
    _write_whole(path, "".join(to_json(record, indent=None) + "\n" for record in records))


def read_result(path: Path) -> Result:
    """Read a ``result.json``, given itself or its run directory.

    Raises:
        UsageError: it is missing, unreadable, not JSON, or of another version.
    """
    file = path / RESULT_FILE if path.is_dir() else path
    return _parse(Result, _read(file), str(file))


def read_requests(path: Path) -> Iterator[RequestRecord]:
    """Read a ``requests.jsonl`` line by line.

    Raises:
        UsageError: it is missing, unreadable, or a line is not a request record.
    """
    for number, line in enumerate(_read(path).splitlines(), start=1):
        if line.strip():
            yield _parse(RequestRecord, line, f"{path}:{number}")


Document = TypeVar("Document", bound=BaseModel)


def _parse(kind: type[Document], text: str, where: str) -> Document:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "document"
        raise UsageError(
            f"{where}: {key}: {first['msg']}; it must be a cdbench file of schema version "
            f"{SCHEMA_VERSION}"
        ) from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"{path}: {reason}; name a run directory or its file") from None


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)

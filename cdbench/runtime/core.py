"""The vocabulary of the runtime: what goes in, what comes out, and what a launch leaves behind.

Loops and depths are 1-based. Depth lists align with ``tokens``: entry 0 belongs to the first token,
read from the prompt's last position at full depth; entry i holds the loops that produced token i.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from cdbench.runtime.lookahead import Lookahead

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]


class Stage(StrEnum):
    """The three stages of a model; a launch runs one of them."""

    PRELUDE = "prelude"
    CORE = "core"
    CODA = "coda"


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class ExitPolicy:
    """When a token may stop looping. ``min_loops`` is a floor on the executed depth.

    ``threshold`` is None for rules without one (``none``, ``fixed``, ``trace``). ``lag`` 0 ends a
    token after the loop that decided so, 1 after the next. ``depth`` belongs to rule ``fixed``.
    With ``lookahead``, at lag 1, a gate calls some of the rule's exits one loop before it asks.
    """

    rule: str = "none"
    threshold: float | None = None
    min_loops: int = 1
    lag: int = 0
    depth: int | None = None
    lookahead: Lookahead | None = None


@dataclass(frozen=True)
class SamplingParams:
    """Greedy at temperature 0; else a draw from a stream keyed by (seed, request, position)."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """One prompt and how to continue it.

    ``force`` feeds the listed tokens instead of the sampled ones and overrides stops and
    ``max_new_tokens``. ``replay_depths`` (with ``force``; aligned with it, entry 0 ignored) makes
    each later token leave at the recorded depth, while the live rule still runs and is paid for.
    """

    id: str
    prompt: Sequence[int]
    max_new_tokens: int = 64
    exit: ExitPolicy = field(default_factory=ExitPolicy)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    force: Sequence[int] | None = None
    replay_depths: Sequence[int] | None = None
    arrival_s: float = 0.0
    task: str | None = None
    doc_id: int | None = None

    @property
    def new_tokens(self) -> int:
        """Most tokens it can produce."""
        return self.max_new_tokens if self.force is None else len(self.force)

    @property
    def positions(self) -> int:
        """Positions it can come to occupy: the last token it produces is never fed back."""
        return len(self.prompt) + self.new_tokens - 1


@dataclass
class RequestResult:
    """What became of one request. Times are seconds on the engine's clock.

    ``stop_depth`` is the depth of the stop token, which is not listed in ``tokens``; it stays None
    where the very first token is the stop, because that token's loops are the prompt's.
    ``cancelled_loops`` are those of a token in flight when the request was cancelled. A refused
    request has ``error`` set and no tokens. ``text`` is None without a tokenizer.
    ``predicted_depths`` is None without a lookahead gate; else, aligned with ``tokens``, the depth
    at which it called an exit, R where it called none, None where it was not asked.
    """

    id: str
    prompt_tokens: int
    tokens: list[int]
    executed_depths: list[int]
    requested_depths: list[int]
    logprobs: list[float]
    text: str | None
    stop_depth: int | None
    finish_reason: FinishReason
    error: str | None
    arrival_s: float
    admitted_s: float | None
    token_s: list[float]
    finish_s: float
    task: str | None = None
    doc_id: int | None = None
    cancelled_loops: int = 0
    predicted_depths: list[int | None] | None = None

    @property
    def token_loops(self) -> int:
        """Loops of later tokens, those of stop and cancelled tokens included.

        Summed over requests this equals the decode rows of core launches.
        """
        return sum(self.executed_depths[1:]) + (self.stop_depth or 0) + self.cancelled_loops


class LaunchRecord(NamedTuple):
    """One launch as it ran. ``decode_loops`` are the loops of its decode rows (core only).

    ``context`` is the positions that its longest row attends to, itself included (its longest
    decode row, beside a chunk that rides): attention that pads costs that for every row.
    ``runnable`` is how many requests were resident or waiting when it was launched: below the cap
    the launch belongs to the fill or the drain. ``start_s`` is on the engine's clock. It is a plain
    tuple because one is made at every launch while the clock runs.
    """

    stage: Stage
    decode_rows: int
    prefill_rows: int
    decode_loops: IntArray | None
    context: int
    runnable: int
    start_s: float
    duration_s: float

    @property
    def is_prefill(self) -> bool:
        return self.prefill_rows > 0

    @property
    def depth_counts(self) -> tuple[int, ...]:
        """Entry k - 1 counts the decode rows at loop k, up to the deepest; empty off the core."""
        if self.decode_loops is None:
            return ()
        return tuple(np.bincount(self.decode_loops - 1).tolist())


class LaunchObserver(Protocol):
    """Sees every launch. Measuring hooks in here; the engine has no branch for it."""

    def launched(self, record: LaunchRecord) -> None: ...


class LaunchLog:
    """The plain observer: keeps every record. Where the device keeps the time, reading resolves."""

    def __init__(self) -> None:
        self._records: list[LaunchRecord] = []
        self._on_device: list[Callable[[], LaunchRecord]] = []

    @property
    def records(self) -> list[LaunchRecord]:
        """All launches so far, in order. Not to be read inside a timed region on a GPU."""
        if self._on_device:
            self._records += [resolved() for resolved in self._on_device]
            self._on_device.clear()
        return self._records

    @property
    def awaits_device(self) -> bool:
        """Whether launches are held whose times have not been read from the device."""
        return bool(self._on_device)

    def launched(self, record: LaunchRecord) -> None:
        self._records.append(record)

    def launched_on_device(self, resolved: Callable[[], LaunchRecord]) -> None:
        """Take a launch whose record can be made later."""
        self._on_device.append(resolved)


class Clock(Protocol):
    """The engine's source of time, so that tests can own it."""

    def now(self) -> float: ...

    def wait_until(self, when_s: float) -> None: ...


class MonotonicClock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def wait_until(self, when_s: float) -> None:
        time.sleep(max(0.0, when_s - self.now()))

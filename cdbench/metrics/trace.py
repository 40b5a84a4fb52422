"""What a metric reads: one timed run of one mode in one block.

The records are Protocols, so that the runtime's ``RequestResult`` and ``LaunchRecord`` (and the
lines of a stored ``requests.jsonl``) satisfy them as they are, and nothing here imports the
runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FINISHED = frozenset({"stop", "length"})

# Device timers and the host's clock may disagree by a little; beyond this it is a fault.
CLOCK_SLACK = 1.01


class Arrivals(StrEnum):
    """How requests came in. Under ``ALL_AT_ONCE`` a time to first token is only queueing."""

    ALL_AT_ONCE = "all-at-once"
    CLOSED_LOOP = "closed-loop"
    OPEN_LOOP = "open-loop"
    TRACE = "trace"


class RequestTrace(Protocol):
    """What became of one request. Depth lists and ``token_s`` align with ``tokens``."""

    @property
    def id(self) -> str: ...
    @property
    def task(self) -> str | None: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def executed_depths(self) -> Sequence[int]: ...
    @property
    def requested_depths(self) -> Sequence[int]: ...
    @property
    def stop_depth(self) -> int | None: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def error(self) -> str | None: ...
    @property
    def arrival_s(self) -> float: ...
    @property
    def admitted_s(self) -> float | None: ...
    @property
    def token_s(self) -> Sequence[float]: ...
    @property
    def finish_s(self) -> float: ...


class LaunchTrace(Protocol):
    """One batched forward of one stage. ``depth_counts[k-1]``: decode rows at loop k (core).

    ``context``: positions that its longest row attends to, its longest decode row where it mixes
    prompt and decode rows. ``runnable``: requests resident or
    waiting when it started; below the cap it belongs to the fill or the drain.
    """

    @property
    def stage(self) -> str: ...
    @property
    def decode_rows(self) -> int: ...
    @property
    def prefill_rows(self) -> int: ...
    @property
    def depth_counts(self) -> Sequence[int]: ...
    @property
    def context(self) -> int: ...
    @property
    def runnable(self) -> int: ...
    @property
    def start_s(self) -> float: ...
    @property
    def duration_s(self) -> float: ...


class StageCosts(Protocol):
    """FLOPs per token of each stage: F_p, F_c (one loop), F_k (coda with head)."""

    @property
    def prelude(self) -> float: ...
    @property
    def core(self) -> float: ...
    @property
    def coda(self) -> float: ...


@dataclass(frozen=True)
class KvShape:
    """What the KV layout stores. ``slots`` is the layout's m: slots per token and core layer."""

    prelude_layers: int
    core_layers: int
    coda_layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int
    slots: int

    def bytes_per_token(self, slots_written: int) -> int:
        """KV bytes of one token: 2·(prelude + s·core + coda layers)·kv_heads·head_dim·bytes."""
        layers = self.prelude_layers + slots_written * self.core_layers + self.coda_layers
        return 2 * layers * self.kv_heads * self.head_dim * self.element_bytes


@dataclass(frozen=True)
class KvFigures:
    """KV use of one run. Where pools have rows of unlike size, count bytes: ``bytes_per_row`` 1.

    ``prefix_hit_rate`` is None where prefixes are not reused.
    """

    peak_rows: int
    bytes_per_row: int
    shape: KvShape
    preemptions: int = 0
    prefix_hit_rate: float | None = None


@dataclass(frozen=True)
class Slo:
    """Latency limits that a request must meet, in seconds (``tpot_s``: seconds per token)."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


class LaterDepths(NamedTuple):
    """Depths of later tokens in the order of their requests, ``[N]`` each."""

    executed: npt.NDArray[np.int64]
    requested: npt.NDArray[np.int64]


@dataclass(frozen=True)
class RunTrace:
    """One timed run of one mode. Times are seconds on one clock; ``wall_s`` is the timed region.

    ``launches`` holds those of the timed region and no others. ``max_loops`` is the mode's own R
    (d under ``static@d``). ``cancelled_loops`` are loops of tokens that a late stop threw away.
    ``prefill_share`` gives the fraction of a mixed launch's time that its prompt rows took, from
    the stage curves; without it a run with mixed launches has no decode scope. ``floor_s`` gives
    the least seconds that the decode rows of a launch can take on this machine.

    ``energy_j`` is what the device's counter says of the timed region, ``peak_device_bytes`` the
    most device memory that this process's tensors took in it. ``earliest_call`` is the least depth
    that a gate that looks ahead could call.

    Raises:
        ValueError: a list does not align with its tokens, a depth lies outside 1…max_loops, the
        wall is not positive, or launches take more time than the wall: the instrument is wrong.
    """

    mode: str
    requests: Sequence[RequestTrace]
    launches: Sequence[LaunchTrace]
    wall_s: float
    width: int
    max_residents: int
    max_loops: int
    kv: KvFigures | None = None
    costs: StageCosts | None = None
    arrivals: Arrivals = Arrivals.ALL_AT_ONCE
    cancelled_loops: int = 0
    slo: Slo | None = None
    price_per_hour: float | None = None
    energy_j: float | None = None
    peak_device_bytes: int | None = None
    earliest_call: int = 2
    prefill_share: Callable[[LaunchTrace], float] | None = None
    floor_s: Callable[[LaunchTrace], float] | None = None

    def __post_init__(self) -> None:
        if not self.wall_s > 0:
            raise ValueError(f"wall_s of mode {self.mode}: {self.wall_s}; it must be above 0")
        for request in self.requests:
            _check_request(request, self.max_loops)
        if self.busy_s > self.wall_s * CLOCK_SLACK:
            raise ValueError(
                f"mode {self.mode}: launches cover {self.busy_s:.6g} s of a wall of "
                f"{self.wall_s:.6g} s; pass the launches of the timed region only"
            )

    @property
    def finished(self) -> list[RequestTrace]:
        """Requests that ended by a stop or by their length: those every rate counts."""
        return [r for r in self.requests if r.error is None and r.finish_reason in FINISHED]

    @property
    def busy_s(self) -> float:
        """Seconds with at least one launch running (overlapping launches count once)."""
        return _covered(sorted((x.start_s, x.start_s + x.duration_s) for x in self.launches))

    @cached_property
    def later_depths(self) -> LaterDepths:
        """Depths of every later token; first and stop tokens are left out. Gathered once."""
        import numpy as np  # here, since a configuration names arrivals and needs no arrays

        executed = [d for r in self.requests for d in r.executed_depths[1:]]
        requested = [d for r in self.requests for d in r.requested_depths[1:]]
        return LaterDepths(np.array(executed, np.int64), np.array(requested, np.int64))

    def decode_launches(self, stage: str) -> list[LaunchTrace]:
        """Launches of ``stage`` with at least one decode row."""
        return [x for x in self.launches if x.stage == stage and x.decode_rows > 0]


def _check_request(request: RequestTrace, max_loops: int) -> None:
    lengths = {
        "executed_depths": len(request.executed_depths),
        "requested_depths": len(request.requested_depths),
        "token_s": len(request.token_s),
    }
    for name, length in lengths.items():
        if length != len(request.tokens):
            raise ValueError(
                f"request {request.id}: {name} has {length} entries for "
                f"{len(request.tokens)} tokens"
            )
    depths = [*request.executed_depths, *request.requested_depths]
    if request.stop_depth is not None:
        depths.append(request.stop_depth)
    if any(not 1 <= depth <= max_loops for depth in depths):
        raise ValueError(f"request {request.id}: a depth lies outside 1…{max_loops}")


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Length of the union of spans sorted by their start."""
    total, reached = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total

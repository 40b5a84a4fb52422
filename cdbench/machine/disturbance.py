"""What disturbed a run, in words: enough to spoil it, or only to be said.

Modes are interleaved in palindromic blocks, so a steady disturbance slows all of them and a
passing one widens the intervals. It still changes ratios, because a launch waits for its slowest
thread: with both of two cores computing, a neighbour that takes a fifth of them makes the launches
it meets up to two fifths slower, more than the effects to be measured. From there on a run is
INVALID, if that lasted for more than a quarter of it; half as long or a quarter as much is said
and left to the intervals. Single moments are not said: a machine has its housekeeping.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from cdbench.machine.gpu import THROTTLES
from cdbench.machine.summary import SPAN_S, figures, spans
from cdbench.schema.environment import RepeatEnvironment

OFTEN = 0.25
"""A run is spoiled where more than this share of its spans is."""

SOMETIMES = 0.10
"""A disturbance of more than this share of the spans is said."""


@dataclass(frozen=True)
class Limit:
    """Above ``said`` a figure counts as disturbed, above ``spoils`` as spoiled; see ``figures``.

    ``words`` say what happened, with an ``amount``; ``counts`` where that is no share.
    """

    figure: str
    said: float
    spoils: float
    words: str
    remedy: str
    rarely: float = SOMETIMES
    """Share of disturbed spans above which it is said."""
    counts: bool = False


LIMITS: tuple[Limit, ...] = (
    Limit(
        "crowding",
        0.05,
        0.20,
        "other processes took {amount} of the cores this run computes on",
        "stop them",
    ),
    Limit(
        # Waking a thread counts as waiting too, so a little of it is always there.
        "waiting",
        0.10,
        0.30,
        "this run's threads were ready without a core for {amount} of their time",
        "stop other processes, or compute on fewer threads",
    ),
    Limit(
        "steal",
        0.02,
        0.10,
        "the hypervisor gave {amount} of the cores' time to other guests",
        "use a quieter host",
    ),
    Limit(
        "quota",
        0.01,
        0.10,
        "a CPU quota held this run back for {amount} of its time",
        "compute on fewer threads than the quota",
    ),
    Limit(
        "throttle_events",
        0,
        0,
        "the processor throttled for heat ({amount} events at most)",
        "cool it, or fix a lower frequency",
        rarely=0,
        counts=True,
    ),
    Limit(
        "swapped_bytes",
        10_000_000,
        math.inf,
        "the machine swapped ({amount} bytes at most)",
        "free memory",
        rarely=0,
        counts=True,
    ),
    Limit(
        "gpu_foreign_processes",
        0,
        0,
        "other processes were on the GPU ({amount} at most)",
        "stop them",
        rarely=0,
        counts=True,
    ),
    Limit(
        "gpu_thermal_throttled",
        0,
        0.02,
        "heat held the GPU's clocks down for {amount} of the time",
        "cool it, or lock a lower clock",
        rarely=0,
    ),
    Limit(
        # The usual state of a GPU under full load, and part of what a mode costs.
        "gpu_power_throttled",
        0.02,
        math.inf,
        "the power limit held the GPU's clocks down for {amount} of the time",
        "lock a clock it can keep",
    ),
)

SPOILING_REASONS = frozenset(THROTTLES.values()) - {"power cap", "sync boost"}
"""GPU throttle reasons that come from a fault or from heat."""

BUSY_HOST = 0.25
"""Foreign processes on this share of all usable cores are said even where cores are left over."""


@dataclass
class Disturbances:
    """Reasons that spoil a run, and flags that do not."""

    reasons: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)


def disturbances(repeats: Sequence[RepeatEnvironment], compute_threads: int) -> Disturbances:
    """What the machine did during the timed repeats of a run on so many threads."""
    found = Disturbances()
    judged = spans(repeats)
    each = [figures(span, compute_threads) for span in judged]
    for limit in LIMITS:
        values = [v for f in each if (v := f.get(limit.figure)) is not None]
        _judge(limit, values, found)
    _throttled(judged, found)
    found.flags += _beside(judged, each, compute_threads)
    return found


def _judge(limit: Limit, values: Sequence[float], found: Disturbances) -> None:
    if not values:
        return
    spoiled = sum(v > limit.spoils for v in values)
    disturbed = sum(v > limit.said for v in values)
    words = limit.words.format(amount=_amount(values, limit.counts))
    n = len(values)
    if spoiled > OFTEN * n:
        found.reasons.append(f"{words}, too much{_in(spoiled, n)}; {limit.remedy} and run again")
    elif disturbed > limit.rarely * n:
        found.flags.append(f"{words}, noticeable{_in(disturbed, n)}; {limit.remedy}")


def _amount(values: Sequence[float], counts: bool) -> str:
    most = max(values)
    if counts:
        return f"{most:,.0f}"
    return f"{median(values):.0%} (most: {most:.0%})" if len(values) > 1 else f"{most:.0%}"


def _throttled(repeats: Sequence[RepeatEnvironment], found: Disturbances) -> None:
    """GPU clocks that were held down by a fault or heat when looked at."""
    seen = [
        SPOILING_REASONS & set(r.gpu.throttle_reasons)
        for r in repeats
        if r.gpu is not None and r.gpu.throttle_reasons is not None
    ]
    throttled = sum(bool(reasons) for reasons in seen)
    if throttled:
        names = ", ".join(sorted(frozenset().union(*seen)))
        where = f"the GPU throttled: {names}{_in(throttled, len(seen))}"
        spoiled = throttled > OFTEN * len(seen)
        (found.reasons if spoiled else found.flags).append(where)


def _beside(
    judged: Sequence[RepeatEnvironment], each: Sequence[dict[str, float | None]], threads: int
) -> Iterator[str]:
    """Foreign work on cores that this run leaves over: caches and memory are shared even so."""
    pairs = [
        (cores, span.cpu.usable_cores)
        for span, f in zip(judged, each, strict=True)
        if (cores := f["foreign_cores"]) is not None and span.cpu.usable_cores is not None
    ]
    busy = [cores for cores, usable in pairs if usable > threads and cores > BUSY_HOST * usable]
    if len(busy) > SOMETIMES * len(pairs):
        yield (
            f"other processes kept up to {max(busy):.1f} of {pairs[0][1]} cores busy beside the "
            f"{threads} this run computes on{_in(len(busy), len(pairs))}; they share memory "
            "bandwidth and caches"
        )


def _in(part: int, whole: int) -> str:
    """How often; nothing where there was one look only."""
    return f" in {part} of {whole} spans of {SPAN_S:g} s or more" if whole > 1 else ""

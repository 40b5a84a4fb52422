"""From an arrival process to the time at which each request is sent.

Open-loop gaps are drawn once, before anything runs, and rescaled so that the last of n requests
arrives at n/rate to the digit: every run at a rate offers that rate, whatever the seed. On a ramp
the same gaps are stretched so that the rate changes linearly with time, from RATE1 at the start to
RATE2 at the last arrival; the mean of the two is the rate offered.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cdbench import resources
from cdbench.errors import UsageError
from cdbench.metrics.trace import Arrivals
from cdbench.workloads.arrivals import ArrivalSpec
from cdbench.workloads.draws import stream

LINE_FORM = 'seconds, or {"arrival_s": seconds},'
MAX_SPAN_S = 86_400.0
"""The last arrival comes within a day: each mode waits for it twice in every block."""
MANY_DAYS = 1_000_000


@dataclass(frozen=True)
class ArrivalSchedule:
    """When each request of a workload arrives, in seconds from the start, aligned with them.

    ``offsets_s`` is None in a closed loop, where an arrival waits for another request's end.
    """

    spec: ArrivalSpec = ArrivalSpec()  # noqa: RUF009  # frozen
    offsets_s: tuple[float, ...] | None = None

    def keeping(self, kept: Sequence[bool]) -> ArrivalSchedule:
        """The schedule of those requests alone, each at its own time."""
        if self.offsets_s is None:
            return self
        pairs = zip(self.offsets_s, kept, strict=True)
        return replace(self, offsets_s=tuple(offset for offset, keep in pairs if keep))

    @property
    def kind(self) -> Arrivals:
        return self.spec.kind

    @property
    def wall_ratios_allowed(self) -> bool:
        """Whether wall times under these arrivals may form ratios."""
        return self.spec.wall_ratios_allowed

    @property
    def offered_rate(self) -> float | None:
        """Requests that arrive a second, on average; None where the engine sets the pace."""
        if not self.offsets_s or not self.offsets_s[-1]:
            return None
        return len(self.offsets_s) / self.offsets_s[-1]

    @property
    def identity(self) -> str | list[str]:
        """What the workload's hash covers: the process, or each offset to the microsecond.

        The last digits of a logarithm may differ between machines.
        """
        if self.offsets_s is None:
            return str(self.spec)
        return [f"{offset:.6f}" for offset in self.offsets_s]


@dataclass(frozen=True)
class ArrivalProcess:
    """An arrival process ready to serve any number of requests; a trace's file has been read."""

    spec: ArrivalSpec
    seed: int
    trace_s: tuple[float, ...] = ()

    @classmethod
    def read(cls, spec: ArrivalSpec, seed: int) -> ArrivalProcess:
        """UsageError where a trace's file cannot be read."""
        return cls(spec, seed, () if spec.file is None else read_trace(spec.file))

    def schedule(self, requests: int) -> ArrivalSchedule:
        """The arrivals of so many requests.

        UsageError where a trace holds fewer, or the last one is too far off to wait for.
        """
        spec = self.spec
        if spec.kind in (Arrivals.ALL_AT_ONCE, Arrivals.CLOSED_LOOP):
            return ArrivalSchedule(spec)
        if spec.kind is Arrivals.TRACE:
            if len(self.trace_s) < requests:
                raise UsageError(
                    f"workload.arrivals: {spec.file} holds {len(self.trace_s)} arrivals for "
                    f"{requests} requests; lower workload.requests, or add lines"
                )
            self._check_span(self.trace_s[requests - 1], requests)
            return ArrivalSchedule(spec, self.trace_s[:requests])
        assert spec.mean_rate is not None, "only called for an open loop"
        self._check_span(requests / spec.mean_rate, requests)
        return ArrivalSchedule(spec, tuple(open_loop_offsets(spec, requests, self.seed).tolist()))

    def _check_span(self, last_s: float, requests: int) -> None:
        if last_s <= MAX_SPAN_S:
            return
        days = last_s / MAX_SPAN_S
        after = f"{days:,.1f} days" if days < MANY_DAYS else f"more than {MANY_DAYS:,} days"
        cure = "raise the rate" if self.spec.file is None else "scale its times down"
        raise UsageError(
            f"workload.arrivals: under {self.spec} the last of {requests} requests arrives after "
            f"{after}, a run waits at most one; {cure}, or lower workload.requests"
        )


def open_loop_offsets(spec: ArrivalSpec, requests: int, seed: int) -> np.ndarray:
    """Seconds from the start of each arrival of an open loop or a ramp, increasing.

    The arrivals of a rate that changes are those of a constant one in stretched time: with
    Λ(t) = ∫ rate, Λ(t_i) is the i-th arrival of a process at one request a second.
    """
    assert spec.rate is not None, "only called for an open loop"
    gaps = stream("workload.arrivals", seed).standard_gamma(spec.burstiness, requests)
    order = np.cumsum(gaps)
    if order[-1] > 0:  # the extreme of bursts: every gap drawn is 0 to the last digit
        order *= requests / order[-1]
    start, end = spec.rate, spec.rate if spec.end_rate is None else spec.end_rate
    last_s = 2 * requests / (start + end)
    # Λ(t) = start·t + (end − start)·t² / (2·last_s), solved for t without cancellation.
    slope = (end - start) / last_s
    # Where the rate falls to almost nothing, rounding may leave less than nothing under the root.
    root = np.sqrt(np.maximum(start**2 + 2 * slope * order, 0))
    offsets = np.minimum(2 * order / (start + root), last_s)
    offsets[-1] = last_s
    return offsets


def read_trace(name: str) -> tuple[float, ...]:
    """The arrivals of a trace's file in seconds, in its order; UsageError where it is none."""
    path = resources.find_file(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
        raise UsageError(f"{name}: {why}; expected {LINE_FORM} one a line") from None
    arrivals = tuple(_arrivals(path, text))
    if not arrivals:
        raise UsageError(f"{name}: holds no arrival; write {LINE_FORM} one a line")
    return arrivals


def _arrivals(path: Path, text: str) -> Iterator[float]:
    previous = 0.0
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        arrival = _arrival(line.strip())
        if arrival is None or not math.isfinite(arrival) or arrival < 0:
            raise UsageError(f"{path}:{number}: {line.strip()!r}; expected {LINE_FORM} from 0 on")
        if arrival < previous:
            raise UsageError(
                f"{path}:{number}: {arrival:g} s is before the line above; sort the arrivals"
            )
        previous = arrival
        yield arrival


def _arrival(line: str) -> float | None:
    try:
        if not line.startswith("{"):
            return float(line)
        value = json.loads(line)["arrival_s"]
    except (ValueError, KeyError):
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None

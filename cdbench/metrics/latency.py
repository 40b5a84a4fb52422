"""Times a user feels: samples per request (or per gap), in seconds.

Only finished requests count. Latency runs from the scheduled arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np

from cdbench.metrics.trace import Arrivals, RequestTrace, RunTrace, Slo


@dataclass(frozen=True)
class Samples:
    """Values of one latency, and how many distinct requests they come from."""

    values: tuple[float, ...]
    requests: int

    @property
    def mean(self) -> float | None:
        """Arithmetic mean; None without a value."""
        return sum(self.values) / len(self.values) if self.values else None


def ttft(trace: RunTrace) -> Samples:
    """First token on the host − arrival, s. No samples under all-at-once arrivals."""
    if trace.arrivals == Arrivals.ALL_AT_ONCE:
        return _per_request([])
    return _per_request([_first_token_s(r) for r in trace.finished])


def tpot(trace: RunTrace) -> Samples:
    """(finish − first token) / (n_out − 1), s/token; requests with n_out < 2 have none."""
    return _per_request([_time_per_token_s(r) for r in trace.finished])


def itl(trace: RunTrace) -> Samples:
    """Gaps between consecutive tokens, s, pooled over requests."""
    with_gaps = [r for r in trace.finished if len(r.tokens) > 1]
    gaps = [np.diff(np.asarray(r.token_s, np.float64)).tolist() for r in with_gaps]
    return Samples(tuple(chain.from_iterable(gaps)), len(with_gaps))


def e2e(trace: RunTrace) -> Samples:
    """Finish − arrival, s."""
    return _per_request([r.finish_s - r.arrival_s for r in trace.finished])


def normalized_latency(trace: RunTrace) -> Samples:
    """e2e / n_out, s/token; a request without an output token has none."""
    return _per_request(
        [(r.finish_s - r.arrival_s) / len(r.tokens) for r in trace.finished if r.tokens]
    )


def queue_time(trace: RunTrace) -> Samples:
    """Admission − arrival, s."""
    return _per_request(
        [r.admitted_s - r.arrival_s for r in trace.finished if r.admitted_s is not None]
    )


def meets(request: RequestTrace, slo: Slo) -> bool:
    """Whether a finished request meets every limit given; a latency it lacks breaks none."""
    pairs = (
        (_first_token_s(request), slo.ttft_s),
        (_time_per_token_s(request), slo.tpot_s),
        (request.finish_s - request.arrival_s, slo.e2e_s),
    )
    return all(value <= limit for value, limit in pairs if value is not None and limit is not None)


def _per_request(values: list[float] | list[float | None]) -> Samples:
    present = tuple(value for value in values if value is not None)
    return Samples(present, len(present))


def _first_token_s(request: RequestTrace) -> float | None:
    return request.token_s[0] - request.arrival_s if request.token_s else None


def _time_per_token_s(request: RequestTrace) -> float | None:
    if len(request.tokens) < 2:
        return None
    return (request.finish_s - request.token_s[0]) / (len(request.tokens) - 1)

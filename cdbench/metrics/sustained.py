"""The highest arrival rate that a mode sustains: it keeps up, and it keeps its latency promise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cdbench.metrics.latency import meets
from cdbench.metrics.rates import request_throughput
from cdbench.metrics.trace import RunTrace

COMPLETED_SHARE = 0.95
"""Finished over offered requests a second. The wall includes the drain after the last arrival, so
a run has to last some twenty times its longest latency for a rate that is kept up with to show."""
ATTAINMENT = 0.90
"""Share of requests that must meet every latency limit, where limits are given."""


@dataclass(frozen=True)
class OfferedLoad:
    """One run at one arrival rate. Rates are requests per second.

    ``attainment`` is the share of all requests offered that finished within every limit; None
    where no limit was given.
    """

    rate: float
    completed_rate: float
    attainment: float | None = None

    @classmethod
    def of(cls, trace: RunTrace, rate: float) -> OfferedLoad:
        """What a run under open-loop arrivals shows of a rate (of a ramp: its mean rate)."""
        met = None
        if trace.slo is not None and trace.requests:
            slo = trace.slo
            met = sum(meets(r, slo) for r in trace.finished) / len(trace.requests)
        return cls(rate, request_throughput(trace) or 0.0, met)


@dataclass(frozen=True)
class SustainedRate:
    """``rate`` is None where not even the lowest rate tried is sustained.

    ``first_failed`` is the lowest rate that is not; None where every rate tried is, and ``rate``
    then only a lower limit. ``unjudged`` is the lowest rate below it whose runs tell nothing:
    ``rate`` lies below that too.
    """

    rate: float | None
    first_failed: float | None
    unjudged: float | None = None


def is_sustained(
    load: OfferedLoad,
    completed_share: float = COMPLETED_SHARE,
    attainment: float = ATTAINMENT,
) -> bool:
    """Whether requests finish as fast as they come, and enough of them within their limits."""
    keeps_up = load.completed_rate >= completed_share * load.rate
    return keeps_up and (load.attainment is None or load.attainment >= attainment)


def highest_sustained_rate(
    loads: Sequence[OfferedLoad],
    completed_share: float = COMPLETED_SHARE,
    attainment: float = ATTAINMENT,
    unjudged: Sequence[float] = (),
) -> SustainedRate:
    """The highest rate tried that is sustained, as are all lower ones, in every run at them.

    A rate above one that failed does not count: it was luck, or a burst that the seed left out.
    Nor does one above a rate in ``unjudged`` (a run there is missing or invalid): it might fail.
    """
    failed = [x.rate for x in loads if not is_sustained(x, completed_share, attainment)]
    first_failed = min(failed, default=None)
    unknown = min((x for x in unjudged if first_failed is None or x < first_failed), default=None)
    limit = min((x for x in (first_failed, unknown) if x is not None), default=math.inf)
    below = [x.rate for x in loads if x.rate < limit]
    return SustainedRate(max(below, default=None), first_failed, unknown)

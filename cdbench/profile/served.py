"""How the requests of one cell fared: read from its raw records, judged against the targets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdbench.errors import UsageError
from cdbench.metrics.latency import meets
from cdbench.metrics.trace import FINISHED, Slo
from cdbench.schema import REQUESTS_FILE, IntervalRecord, RequestRecord, Result, read_requests
from cdbench.schema.profile import SloRecord, SloVerdict
from cdbench.stats.blocks import mean
from cdbench.stats.interval import Interval
from cdbench.stats.paired import wilson

ATTAINED_LEVEL = 0.90
"""Both ends of a 90 % interval are one-sided tests at 5 %."""

Place = tuple[int, int]
"""Block and order: one timed run."""


@dataclass(frozen=True)
class Served:
    """The timed runs of one mode: run → its requests, and run → its wall in seconds."""

    runs: dict[Place, tuple[RequestRecord, ...]]
    wall_s: dict[Place, float]

    @property
    def requests(self) -> int:
        """Distinct requests: a repeat brings no new one."""
        return len({record.id for run in self.runs.values() for record in run})

    @property
    def one_run(self) -> tuple[RequestRecord, ...]:
        """The requests of the first run: depths are the same in all of them."""
        return self.runs[min(self.runs)] if self.runs else ()


def served(directory: Path, result: Result, mode: str) -> Served:
    """The timed runs of a mode in a run directory.

    Raises UsageError where its records cannot be read, or are not all there.
    """
    runs: dict[Place, list[RequestRecord]] = defaultdict(list)
    for record in read_requests(directory / REQUESTS_FILE):
        if record.work == "equal" and record.mode == mode and record.block is not None:
            runs[record.block, record.order or 0].append(record)
    walls = {(b.index, b.order): b.wall_s for b in result.blocks if b.mode == mode}
    counts = {len(runs.get(place, ())) for place in walls}
    if 0 in counts or len(counts) > 1:
        raise UsageError(
            f"{directory / REQUESTS_FILE}: holds {min(counts)} to {max(counts)} requests of a "
            f"timed run of {mode}, not equally many of each; it has been cut off or changed"
        )
    return Served({place: tuple(found) for place, found in runs.items() if place in walls}, walls)


def slo_of(record: SloRecord) -> Slo:
    """The targets as the metrics take them."""
    return Slo(record.ttft_s, record.tpot_s, record.e2e_s)


def has_target(record: SloRecord) -> bool:
    """Whether any latency has a target."""
    return slo_of(record) != Slo()


def goodput(cell: Served, slo: Slo) -> list[float]:
    """Finished requests that meet every target per second of wall, mean of each block, req/s."""
    blocks: dict[int, list[float]] = defaultdict(list)
    for place, requests in sorted(cell.runs.items()):
        blocks[place[0]].append(_met(requests, slo) / cell.wall_s[place])
    return [sum(found) / len(found) for found in blocks.values()]


def goodput_interval(cell: Served, slo: Slo) -> IntervalRecord | None:
    """Mean goodput over blocks, with a t interval from six blocks on, cut off at 0."""
    interval = mean(goodput(cell, slo))
    if interval is None:
        return None
    low = None if interval.low is None else max(0.0, interval.low)
    return IntervalRecord(estimate=interval.estimate, low=low, high=interval.high, n=interval.n)


def attained(cell: Served, slo: Slo) -> Interval | None:
    """Share of requests that meet every target: mean over runs, Wilson interval over requests.

    A failed request meets none. Repeats of the same requests do not narrow the interval.
    """
    if not cell.runs or cell.requests == 0:
        return None
    per_run = [_met(requests, slo) / len(requests) for requests in cell.runs.values()]
    return wilson(round(sum(per_run) / len(per_run) * cell.requests), cell.requests, ATTAINED_LEVEL)


def judged(share: Interval | None, percentile: float) -> SloVerdict | None:
    """Whether at least ``percentile`` % of requests meet the targets, as the interval allows."""
    if share is None or share.low is None or share.high is None:
        return None
    if share.low >= percentile / 100:
        return "meets"
    return "misses" if share.high < percentile / 100 else "cannot tell"


def mean_tpot_s(cell: Served) -> dict[str, float]:
    """Seconds per later token of each request, mean over the runs; without one, none."""
    found: dict[str, list[float]] = defaultdict(list)
    for record in _finished(record for run in cell.runs.values() for record in run):
        if len(record.tokens) > 1:
            spent = record.finish_s - record.token_s[0]
            found[record.id].append(spent / (len(record.tokens) - 1))
    return {name: sum(values) / len(values) for name, values in found.items()}


def _met(requests: Sequence[RequestRecord], slo: Slo) -> int:
    return sum(meets(record, slo) for record in _finished(requests))


def _finished(requests: Iterable[RequestRecord]) -> Iterable[RequestRecord]:
    return (r for r in requests if r.error is None and r.finish_reason in FINISHED)


def completed_rate(cell: Served) -> float:
    """Finished requests per second of wall, mean over the runs, req/s."""
    rates = [
        len(list(_finished(requests))) / cell.wall_s[place] for place, requests in cell.runs.items()
    ]
    return sum(rates) / len(rates) if rates else 0.0

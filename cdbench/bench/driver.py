"""How a timed run's requests reach its engine: all at once, at their times, or one after another.

Times are on the engine's clock. A request's latency counts from its *scheduled* arrival, not from
when the engine next looked: an engine that is busy, or late, does not hide a queue.

- *all at once*: every request arrives as the first is submitted, and the timed region starts when
  all are in.
- *open loop, ramp, trace*: requests are submitted before the start with the times at which they
  arrive, so that nothing but serving happens in the timed region. It starts at offset zero.
- *closed loop*: as many requests as there are clients arrive at once; each end brings the next
  one, which arrives at that moment. Submitting it is host time inside the timed region, in every
  mode alike. Which request comes next depends on their order only, never on who finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cdbench.runtime.core import Clock, Request
from cdbench.workloads.arrival_times import ArrivalSchedule

LEAD_S = 0.05
LEAD_REQUEST_S = 2e-4
LEAD_TOKEN_S = 1e-6
"""What submission is allowed before an open loop starts: several times what it takes."""


class Served(Protocol):
    """What is asked of an engine (``cdbench.runtime.engine.Engine`` is one)."""

    @property
    def clock(self) -> Clock: ...
    @property
    def ended_count(self) -> int:
        """Requests that have ended since their results were last taken."""
        ...

    def submit(self, request: Request) -> None: ...
    def tick(self) -> bool: ...


@dataclass(frozen=True)
class TimedRegion:
    """Start and end of a timed region, in seconds on the engine's clock."""

    start_s: float
    end_s: float

    @property
    def wall_s(self) -> float:
        return self.end_s - self.start_s


def feed(engine: Served, requests: Sequence[Request], arrivals: ArrivalSchedule) -> TimedRegion:
    """Serve all requests of an idle engine under an arrival process, to the end of the last.

    Results stay in the engine: making lists and text of them is for after the timed region.
    """
    if arrivals.spec.clients is not None:
        return _closed_loop(engine, requests, arrivals.spec.clients)
    if arrivals.offsets_s is not None:
        return _at_their_times(engine, requests, arrivals.offsets_s)
    arrival_s = engine.clock.now()
    for request in requests:
        engine.submit(replace(request, arrival_s=arrival_s))
    return _serve(engine, engine.clock.now())


def _at_their_times(
    engine: Served, requests: Sequence[Request], offsets_s: Sequence[float]
) -> TimedRegion:
    start_s = engine.clock.now() + _lead_s(requests)
    for request, offset_s in zip(requests, offsets_s, strict=True):
        engine.submit(replace(request, arrival_s=start_s + offset_s))
    engine.clock.wait_until(start_s)
    return _serve(engine, start_s)


def _lead_s(requests: Sequence[Request]) -> float:
    tokens = sum(len(r.prompt) + 2 * r.new_tokens for r in requests)
    return LEAD_S + LEAD_REQUEST_S * len(requests) + LEAD_TOKEN_S * tokens


def _closed_loop(engine: Served, requests: Sequence[Request], clients: int) -> TimedRegion:
    sent, before = min(clients, len(requests)), engine.ended_count
    arrival_s = engine.clock.now()
    for request in requests[:sent]:
        engine.submit(replace(request, arrival_s=arrival_s))
    start_s = engine.clock.now()
    while True:
        while sent < len(requests) and sent - (engine.ended_count - before) < clients:
            engine.submit(replace(requests[sent], arrival_s=engine.clock.now()))
            sent += 1
        if not engine.tick() and sent == len(requests):
            return TimedRegion(start_s, engine.clock.now())


def _serve(engine: Served, start_s: float) -> TimedRegion:
    while engine.tick():
        pass
    return TimedRegion(start_s, engine.clock.now())

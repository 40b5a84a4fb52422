"""When requests arrive, as ``workload.arrivals`` has it: read, checked, written back.

    all-at-once                      everything is there at the start
    closed-loop:CLIENTS              each of so many clients sends its next request when one ends
    open-loop:RATE[:BURSTINESS]      gamma gaps around RATE requests a second; 1 is Poisson
    ramp:RATE1-RATE2[:BURSTINESS]    the same, the rate growing or falling linearly with time
    trace:FILE                       seconds from the start, one arrival a line

The times themselves are made in ``cdbench.workloads.arrival_times``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cdbench.errors import UsageError
from cdbench.metrics.trace import Arrivals

FORMS = (
    "all-at-once",
    "closed-loop:CLIENTS",
    "open-loop:RATE[:BURSTINESS]",
    "ramp:RATE1-RATE2[:BURSTINESS]",
    "trace:FILE",
)
MIN_BURSTINESS, MAX_BURSTINESS = 0.01, 10_000.0
"""Outside, all arrivals fall together or stand in a row to the last digit a float has."""

MAX_RATE = 1e6
"""Requests per second. A microsecond apart they come all at once for any engine."""
MAX_CLIENTS = 1_000_000

_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_OPEN_LOOP = re.compile(rf"({_NUMBER})(?::({_NUMBER}))?")
_RAMP = re.compile(rf"({_NUMBER})-({_NUMBER})(?::({_NUMBER}))?")


@dataclass(frozen=True)
class ArrivalSpec:
    """An arrival process as written; ``str()`` gives the text back.

    ``rate`` is in requests per second: throughout, or at the start of a ramp to ``end_rate``.
    ``burstiness`` is the shape of the gamma distribution of gaps: below 1 they come in bursts.
    """

    kind: Arrivals = Arrivals.ALL_AT_ONCE
    clients: int | None = None
    rate: float | None = None
    end_rate: float | None = None
    burstiness: float = 1.0
    file: str | None = None

    def __str__(self) -> str:
        if self.kind is Arrivals.CLOSED_LOOP:
            return f"closed-loop:{self.clients}"
        if self.kind is Arrivals.TRACE:
            return f"trace:{self.file}"
        if self.rate is None:
            return "all-at-once"
        rates = f"open-loop:{_short(self.rate)}"
        if self.end_rate is not None:
            rates = f"ramp:{_short(self.rate)}-{_short(self.end_rate)}"
        return rates if self.burstiness == 1 else f"{rates}:{_short(self.burstiness)}"

    @property
    def mean_rate(self) -> float | None:
        """Requests per second offered, over a whole ramp; None without a rate of its own."""
        if self.rate is None or self.end_rate is None:
            return self.rate
        return (self.rate + self.end_rate) / 2

    @property
    def wall_ratios_allowed(self) -> bool:
        """Whether wall times may form ratios: where arrivals set the pace, they measure that."""
        return self.kind in (Arrivals.ALL_AT_ONCE, Arrivals.CLOSED_LOOP)


def parse_arrivals(text: str) -> ArrivalSpec:
    """Read one of ``FORMS``; UsageError for anything else. A trace's file is not opened."""
    kind, colon, argument = text.partition(":")
    if kind == "all-at-once" and not colon:
        return ArrivalSpec()
    if kind == "closed-loop" and re.fullmatch(r"[+-]?[0-9]+", argument):
        return _closed_loop(text, argument)
    if kind == "open-loop" and (found := _OPEN_LOOP.fullmatch(argument)):
        rate, burstiness = found.groups()
        return _open_loop(text, rate, None, burstiness)
    if kind == "ramp" and (found := _RAMP.fullmatch(argument)):
        return _open_loop(text, *found.groups())
    if kind == "trace" and argument:
        return ArrivalSpec(Arrivals.TRACE, file=argument)
    form = next((form for form in FORMS if form.partition(":")[0] == kind), None)
    if form is not None:
        raise UsageError(f"workload.arrivals: {text!r} is not of the form {form}; use that form")
    raise UsageError(f"workload.arrivals: {text!r} is unknown; write {', '.join(FORMS)}")


def _closed_loop(text: str, clients: str) -> ArrivalSpec:
    # Leading zeros and thousands of digits are no number of clients either.
    if len(clients) > len(str(MAX_CLIENTS)) or not 1 <= int(clients) <= MAX_CLIENTS:
        raise UsageError(
            f"workload.arrivals: {text!r} has a number of clients out of range; use 1 to "
            f"{MAX_CLIENTS:,}"
        )
    return ArrivalSpec(Arrivals.CLOSED_LOOP, clients=int(clients))


def _open_loop(text: str, rate: str, end_rate: str | None, burstiness: str | None) -> ArrivalSpec:
    rates = [float(given) for given in (rate, end_rate) if given is not None]
    if not all(0 < given <= MAX_RATE for given in rates):
        raise UsageError(
            f"workload.arrivals: {text!r} has a rate out of range; give requests per second above "
            f"0, up to {MAX_RATE:,.0f}, or use all-at-once"
        )
    shape = 1.0 if burstiness is None else float(burstiness)
    if not MIN_BURSTINESS <= shape <= MAX_BURSTINESS:
        raise UsageError(
            f"workload.arrivals: {text!r} has burstiness {shape:g}; use {MIN_BURSTINESS:g} "
            f"(bursts) to {MAX_BURSTINESS:g} (even gaps); 1 is Poisson"
        )
    return ArrivalSpec(
        Arrivals.OPEN_LOOP,
        rate=rates[0],
        end_rate=rates[1] if len(rates) > 1 else None,
        burstiness=shape,
    )


def _short(number: float) -> str:
    """The shortest text that reads back as the same number."""
    return repr(number).removesuffix(".0")

"""Numbers of a cell, by the names of a table's columns, over the blocks of all its rounds.

``MODE.METRIC`` is the mean over blocks with a t interval, ``MODE.METRIC.p99`` a percentile (the
mean over rounds), ``MODE/OVER`` the end-to-end speed-up and ``MODE/OVER.decode`` that of the decode
scope (geometric mean over blocks), ``MODE.realised.BOUND`` the share of a bound in its own scope,
``MODE.accuracy`` the rate of the live pass. What a cell does not have is undefined, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from cdbench import resources
from cdbench.config import RunConfig
from cdbench.errors import UsageError
from cdbench.metrics.registry import METRICS
from cdbench.schema import BoundRecord, Comparison, IntervalRecord, Result, Scope
from cdbench.stats.blocks import geometric_mean, mean
from cdbench.stats.interval import Interval

PERCENTILES = ("p50", "p90", "p95", "p99")
ACCURACY = "accuracy"
REALISED = "realised"
STEADY = "_steady"


@dataclass(frozen=True)
class Figure:
    """One column: what is read (``kind``), of which mode, and what of it."""

    kind: str
    mode: str
    what: str = ""
    over: str = ""

    @property
    def name(self) -> str:
        """The text of the column, as a sweep file writes it."""
        if self.kind == "speedup":
            return f"{self.mode}/{self.over}" + (".decode" if self.what == "decode" else "")
        parts = {
            "metric": [self.what],
            "percentile": [self.what, self.over],
            REALISED: [REALISED, self.what],
            ACCURACY: [ACCURACY],
        }[self.kind]
        return ".".join([self.mode, *parts])


def parse_figure(text: str, modes: Collection[str]) -> Figure:
    """Read the name of a column. UsageError where no mode or metric has that name."""
    owners = [m for m in modes if text.startswith((f"{m}.", f"{m}/"))]
    if not owners:
        raise UsageError(f"show: {text!r}: starts with no mode of the sweep ({', '.join(modes)})")
    mode = max(owners, key=len)
    rest = text[len(mode) :]
    if rest.startswith("/"):
        return _speedup(text, mode, rest[1:], modes)
    what, _, detail = rest[1:].partition(".")
    if what == ACCURACY and not detail:
        return Figure(ACCURACY, mode)
    if what == REALISED and detail:
        return Figure(REALISED, mode, detail)
    if what not in METRICS:
        raise UsageError(
            f"show: {text!r}: no metric {what!r}; {resources.nearest_hint(what, tuple(METRICS))}"
        )
    if not detail:
        return Figure("metric", mode, what)
    if detail not in PERCENTILES or METRICS[what].samples is None:
        raise UsageError(
            f"show: {text!r}: {detail!r} of {what} is not kept; a latency has "
            f"{', '.join(PERCENTILES)}"
        )
    return Figure("percentile", mode, what, detail)


def _speedup(text: str, mode: str, over: str, modes: Collection[str]) -> Figure:
    scope = "decode" if over.endswith(".decode") else "e2e"
    over = over.removesuffix(".decode")
    if over not in modes:
        raise UsageError(f"show: {text!r}: {over!r} is no mode of the sweep ({', '.join(modes)})")
    return Figure("speedup", mode, scope, over)


def columns(show: Sequence[str], configs: Sequence[RunConfig]) -> tuple[Figure, ...]:
    """The columns asked for, or those that suit the modes. UsageError for an unknown one."""
    modes = list(dict.fromkeys(str(m) for config in configs for m in config.resolved_modes))
    if show:
        return tuple(parse_figure(text, modes) for text in show)
    return tuple(_default(modes, configs))


def _default(modes: Sequence[str], configs: Sequence[RunConfig]) -> Iterable[Figure]:
    work = {kind for config in configs for kind in config.work}
    subject = next((m for m in ("cdb", "lockstep", "static") if m in modes), modes[0])
    if "live" in work:
        yield Figure(ACCURACY, subject)
    if "equal" not in work:
        return
    yield Figure("metric", subject, "mean_depth")
    yield Figure("metric", subject, "output_throughput")
    if any(config.slo != type(config.slo)() for config in configs):
        yield Figure("metric", subject, "goodput")
    if any(not config.workload.arrivals.startswith("all-at-once") for config in configs):
        yield Figure("percentile", subject, "tpot", "p90")
        yield Figure("percentile", subject, "e2e", "p90")
    for over in modes:
        if over != subject and subject == "cdb" and over in ("static", "lockstep"):
            yield Figure("speedup", subject, "e2e", over)
    if subject == "cdb" and "static" in modes:
        yield Figure("speedup", subject, "decode", "static")
        yield Figure(REALISED, subject, "flop_bound")


def value(figure: Figure, results: Sequence[Result]) -> IntervalRecord | None:
    """A figure over the complete results of a cell, one a round; None where it has none."""
    if not results:
        return None
    found = {
        "metric": _metric,
        "percentile": _percentile,
        "speedup": _ratio,
        REALISED: _realised,
        ACCURACY: _accuracy,
    }[figure.kind](figure, results)
    return found


def _metric(figure: Figure, results: Sequence[Result]) -> IntervalRecord | None:
    values = block_values(results, figure.mode, figure.what)
    if not values and not any(result.blocks for result in results):
        # Nothing was timed: what the live pass says, of the first round as with accuracy.
        row = results[0].modes.get(figure.mode)
        found = row.live.get(figure.what) if row is not None else None
        return None if found is None else IntervalRecord(estimate=found, n=1)
    if values and len(set(values)) == 1:  # a counter that every block repeats has no spread
        return IntervalRecord(estimate=values[0], n=len(values))
    interval = mean(values)
    return None if interval is None else IntervalRecord.of(interval)


def block_values(results: Sequence[Result], mode: str, metric: str) -> list[float]:
    """A metric's mean over a mode's runs of each block, over all rounds; undefined ones left out.

    A block that lacks one of the mode's two runs is left out too, as the result's own means do.
    """
    blocks: dict[tuple[int, int], list[float | None]] = {}
    for number, result in enumerate(results):
        for run in result.blocks:
            if run.mode == mode:
                blocks.setdefault((number, run.index), []).append(run.metrics.get(metric))
    most = max(map(len, blocks.values()), default=0)
    whole = [found for found in blocks.values() if len(found) == most]
    known = [[v for v in found if v is not None] for found in whole]
    return [sum(values) / len(values) for values in known if values]


def _percentile(figure: Figure, results: Sequence[Result]) -> IntervalRecord | None:
    found = [
        result.modes[figure.mode].percentiles.get(figure.what, {}).get(figure.over)
        for result in results
        if figure.mode in result.modes
    ]
    known = [v for v in found if v is not None]
    if not known or len(known) < len(found):
        return None
    return IntervalRecord(estimate=sum(known) / len(known), n=results[0].workload.requests)


def _comparisons(figure: Figure, results: Sequence[Result], over: str, scope: str) -> list[float]:
    wanted = (figure.mode, over, scope)
    return [
        log
        for result in results
        for c in result.comparisons
        if _key(c) == wanted
        for log in c.log_ratios
    ]


def _key(comparison: Comparison) -> tuple[str, str, Scope]:
    return comparison.mode, comparison.over, comparison.scope


def _ratio(figure: Figure, results: Sequence[Result]) -> IntervalRecord | None:
    interval = geometric_mean(_comparisons(figure, results, figure.over, figure.what))
    return None if interval is None else IntervalRecord.of(interval)


def _realised(figure: Figure, results: Sequence[Result]) -> IntervalRecord | None:
    """Speed-up over static / bound, each round's against its own bound.

    A share in the steady window is a ratio of rates and not of walls: it is a single round's own.
    """
    if figure.what.endswith(STEADY):
        bound = results[0].bounds.get(figure.mode, {}).get(figure.what)
        return bound.realised if bound is not None and len(results) == 1 else None
    logs: list[float] = []
    reaches: list[float] = []
    for result in results:
        bound = result.bounds.get(figure.mode, {}).get(figure.what)
        if bound is None or not bound.value or bound.value <= 0:
            return None
        found = _comparisons(figure, [result], "static", bound.scope)
        logs += [log - math.log(bound.value) for log in found]
        reaches += _reach(bound)
    interval = geometric_mean(logs)
    if interval is None:
        return None
    # How far off the mean of the rounds' bounds may be, each from passes of its own.
    off = math.exp(math.hypot(*reaches) / len(results))
    return IntervalRecord.of(interval.widened(Interval(1.0, 1 / off, off, len(results))))


def _reach(bound: BoundRecord) -> list[float]:
    """How far other passes would move a bound, as a log; empty where it is not known."""
    spread = bound.over_passes
    if spread is None or not spread.estimate or not spread.high or spread.estimate <= 0:
        return []
    return [abs(math.log(spread.high / spread.estimate))] if spread.high > 0 else []


def _accuracy(figure: Figure, results: Sequence[Result]) -> IntervalRecord | None:
    """The first round's: greedy answers do not differ between rounds, sampled ones not in law."""
    accuracy = results[0].accuracy
    found = accuracy.modes.get(figure.mode) if accuracy is not None else None
    return None if found is None else found.rate

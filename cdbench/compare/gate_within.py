"""Floors and ceilings on figures of one run: they carry from machine to machine best.

With an interval there are three answers: PASS where its bad end keeps the bound, FAIL where its
good end does not, INCONCLUSIVE between. Ends are those of the 95 % interval that the run reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdbench.compare.gate_file import WithinCheck
from cdbench.compare.sides import Side
from cdbench.metrics.registry import METRICS
from cdbench.render.formats import Kind, format_value
from cdbench.schema import BoundRecord, IntervalRecord
from cdbench.schema.gating import GateCheck, GateVerdict

BOUND_OF = {
    "realised_flop": "flop_bound",
    "realised_work": "work_bound",
    "realised_time": "time_bound",
}
KINDS = {"accuracy": Kind.PERCENT, "accuracy_difference": Kind.POINTS, "host_share": Kind.PERCENT}


@dataclass(frozen=True)
class Figure:
    """A figure of a run: its estimate, and its interval where it has noise.

    ``exact``: it did not vary, so it needs no interval.
    """

    record: IntervalRecord
    exact: bool = False


def within_check(asked: WithinCheck, run: Side, reason: str | None) -> GateCheck:
    """One floor or ceiling. ``reason``: why it cannot be judged, if so."""
    return judged_within(asked, _figure(asked, run) if reason is None else None, reason)


def judged_within(asked: WithinCheck, found: Figure | None, reason: str | None = None) -> GateCheck:
    """The check on a figure, wherever it comes from; None: it cannot be judged."""
    check = GateCheck(
        name=asked.name,
        kind="within",
        verdict="INVALID",
        why=f"{_subject(asked)} cannot be judged: {reason or 'it was not measured'}",
        mode=asked.mode,
        metric=asked.metric,
        floor=asked.at_least,
        ceiling=asked.at_most,
    )
    if found is None or found.record.estimate is None:
        return check
    verdict = _verdict(asked, found)
    return check.model_copy(
        update={
            "verdict": verdict,
            "why": _words(asked, found, verdict),
            "run": found.record.estimate,
            "n": found.record.n,
        }
    )


def _figure(asked: WithinCheck, run: Side) -> Figure | None:
    if asked.metric == "speedup":
        for c in run.result.comparisons:
            if (c.mode, c.over, c.scope) == (asked.mode, asked.over, asked.scope):
                return Figure(c.speedup)
        return None
    if asked.metric in BOUND_OF:
        return _realised(asked, run)
    if asked.metric in ("accuracy", "accuracy_difference"):
        return _accuracy(asked, run)
    return _metric(asked, run)


def _realised(asked: WithinCheck, run: Side) -> Figure | None:
    name = BOUND_OF[asked.metric]
    if asked.metric == "realised_time" and asked.scope == "e2e":
        name = "time_bound_e2e"
    bound: BoundRecord | None = run.result.bounds.get(asked.mode, {}).get(name)
    return None if bound is None or bound.realised is None else Figure(bound.realised)


def _accuracy(asked: WithinCheck, run: Side) -> Figure | None:
    accuracy = run.result.accuracy
    found = accuracy.modes.get(asked.mode) if accuracy is not None else None
    if found is None:
        return None
    if asked.metric == "accuracy":
        return None if found.rate is None else Figure(found.rate)
    if found.paired is None or found.paired.over != asked.over:
        return None
    return Figure(found.paired.difference)


def _metric(asked: WithinCheck, run: Side) -> Figure | None:
    mode = run.result.modes.get(asked.mode)
    value = mode.metrics.get(asked.metric) if mode is not None else None
    if mode is None or value is None:
        return None
    interval = mode.intervals.get(asked.metric)
    if interval is not None:
        return Figure(interval)
    return Figure(IntervalRecord(estimate=value, n=len(run.result.blocks)), exact=True)


def _verdict(asked: WithinCheck, found: Figure) -> GateVerdict:
    low, high = found.record.low, found.record.high
    if found.exact:
        low = high = found.record.estimate
    if low is None or high is None:
        return "INCONCLUSIVE"
    if asked.at_least is not None:
        bad, good, bound = low, high, asked.at_least
    else:
        assert asked.at_most is not None, "one of the two is given"
        bad, good, bound = -high, -low, -asked.at_most
    if bad >= bound:
        return "PASS"
    return "FAIL" if good < bound else "INCONCLUSIVE"


def _subject(asked: WithinCheck) -> str:
    over = f" over {asked.over}" if asked.metric in ("speedup", "accuracy_difference") else ""
    scope = f", {asked.scope}," if asked.metric in ("speedup", "realised_time") else ""
    return f"{asked.metric} of {asked.mode}{over}{scope}"


def _words(asked: WithinCheck, found: Figure, verdict: GateVerdict) -> str:
    kind = _kind(asked.metric)
    record = found.record
    bound = asked.at_least if asked.at_least is not None else asked.at_most
    side = "at least" if asked.at_least is not None else "at most"
    figure = format_value(record.estimate, kind, record.low, record.high).line
    words = f"{_subject(asked)} is {figure}, and has to be {side} {format_value(bound, kind).line}"
    if verdict == "INCONCLUSIVE":
        words += (
            ": there is no interval" if record.low is None else ": the interval holds the bound"
        )
    return words


def _kind(metric: str) -> Kind:
    if metric in KINDS:
        return KINDS[metric]
    if metric == "speedup":
        return Kind.RATIO
    if metric in BOUND_OF or (metric in METRICS and METRICS[metric].unit == "fraction"):
        return Kind.PERCENT
    return Kind.NUMBER

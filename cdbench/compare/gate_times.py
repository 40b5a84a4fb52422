"""The timed checks of a gate on two stored runs: all of them in one judgement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdbench.compare.gate_file import GateFile
from cdbench.compare.sides import Side
from cdbench.compare.timed import metric_gain, unlike
from cdbench.metrics.registry import METRICS
from cdbench.render.formats import ratio
from cdbench.schema import IntervalRecord
from cdbench.schema.gating import GateCheck, GateVerdict
from cdbench.stats.blocks import LEVEL
from cdbench.stats.gains import Gain, unpaired_gain
from cdbench.stats.gate import SINGLE_LOOK, ErrorShares, Judged, judge

Key = tuple[str, str]
"""Mode and metric."""


def timed_keys(gate: GateFile) -> Iterator[Key]:
    """Every mode and metric that a gate compares."""
    for label in gate.timed_modes:
        for metric in gate.timed.metrics:
            if metric != "speedup" or label != gate.timed.over:
                yield label, metric


def timed_checks(gate: GateFile, base: Side, run: Side, reason: str | None) -> list[GateCheck]:
    """A check for each mode and metric. ``reason``: why none can be judged, if so."""
    gains: dict[Key, Gain] = {}
    why: dict[Key, str] = {}
    for key in timed_keys(gate):
        found = None if reason else _gain(gate, base, run, key)
        if isinstance(found, Gain):
            gains[key] = found
        else:
            why[key] = reason or found or "not measured"
    judged = judged_checks(gate, gains)
    values = {key: (_value(gate, base, key), _value(gate, run, key)) for key in timed_keys(gate)}
    checks = []
    for key in timed_keys(gate):
        check = judged[key] if key in judged else invalid_check(key, why[key])
        checks.append(check.model_copy(update=dict(zip(("base", "run"), values[key], strict=True))))
    return checks


def judged_checks(
    gate: GateFile, gains: dict[Key, Gain], errors: ErrorShares = SINGLE_LOOK
) -> dict[Key, GateCheck]:
    """The checks that can be judged, together: they share the error of FAIL."""
    margins = [gate.timed.margin] * len(gains)
    decided = judge(list(gains.values()), margins, errors)
    return {key: _check(key, found) for key, found in zip(gains, decided, strict=True)}


def timed_name(key: Key) -> str:
    """The name of a timed check: the same from run to run."""
    mode, metric = key
    return f"timed: {mode} {metric}"


def invalid_check(key: Key, why: str) -> GateCheck:
    """A check that cannot be judged."""
    mode, metric = key
    return GateCheck(
        name=timed_name(key),
        kind="timed",
        verdict="INVALID",
        why=f"{metric} of {mode} cannot be judged: {why}",
        mode=mode,
        metric=metric,
    )


def _gain(gate: GateFile, base: Side, run: Side, key: Key) -> Gain | str | None:
    """How much better the run is; a text says why that cannot be told."""
    mode, metric = key
    for label in (mode, gate.timed.over) if metric == "speedup" else (mode,):
        ways = [side.result.modes.get(label) for side in (base, run)]
        if ways[0] is None or ways[1] is None:
            return f"mode {label} did not run on both sides"
        if (other := unlike(ways[0], ways[1])) is not None:
            return f"{label}: {other}"
    if metric == "speedup":
        logs = [
            _speedup_logs(side, mode, gate.timed.over, gate.timed.scope) for side in (base, run)
        ]
        return unpaired_gain(logs[0], logs[1]) or f"no speed-up of {mode} over {gate.timed.over}"
    values = [side.block_values.get(mode, {}).get(metric, []) for side in (base, run)]
    if not all(values):
        return f"{metric} was not measured on both sides"
    return (
        metric_gain(values[0], values[1], METRICS[metric].direction) or f"{metric} is not above 0"
    )


def _speedup_logs(side: Side, mode: str, over: str, scope: str) -> Sequence[float]:
    for found in side.result.comparisons:
        if (found.mode, found.over, found.scope) == (mode, over, scope):
            return found.log_ratios
    return ()


def _value(gate: GateFile, side: Side, key: Key) -> float | None:
    label, metric = key
    if metric == "speedup":
        timed = gate.timed
        for found in side.result.comparisons:
            if (found.mode, found.over, found.scope) == (label, timed.over, timed.scope):
                return found.speedup.estimate
        return None
    mode = side.result.modes.get(label)
    return mode.metrics.get(metric) if mode is not None else None


def _check(key: Key, judged: Judged) -> GateCheck:
    mode, metric = key
    interval = judged.gain.interval(LEVEL)
    verdict: GateVerdict = judged.decision.value
    unit = METRICS[metric].unit if metric in METRICS else "ratio"
    return GateCheck(
        name=timed_name(key),
        kind="timed",
        verdict=verdict,
        why=_words(mode, metric, judged),
        mode=mode,
        metric=metric,
        unit=unit,
        ratio=IntervalRecord.of(interval),
        margin=judged.margin,
        p=judged.adjusted_p,
        n=judged.gain.n,
        pass_bound=judged.pass_bound,
        fail_bound=judged.fail_bound,
    )


def _words(mode: str, metric: str, judged: Judged) -> str:
    interval = judged.gain.interval(LEVEL)
    figure = (
        f"{metric} of {mode} is {ratio(interval.estimate, interval.low, interval.high)} as good"
    )
    if not interval.defined:
        return f"{figure}, from {interval.n} blocks: too few for an interval"
    margin, least = f"{100 * judged.margin:.3g} %", f"{1 / (1 + judged.margin):.3f}×"
    assert judged.pass_bound is not None, "an interval has ends"
    bound = f"the one-sided bound to pass by is {judged.pass_bound:.3f}×"
    return {
        "PASS": f"{figure}: worse than {least} (margin {margin}) is excluded; {bound}",
        "FAIL": f"{figure}: worse beyond the noise and the margin of {margin} ({least})",
        "INCONCLUSIVE": (
            f"{figure}: worse than {least} (margin {margin}) can be neither shown nor excluded; "
            f"{bound}"
        ),
    }[judged.decision.value]

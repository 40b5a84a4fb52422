"""The looks of a paired gate: what its timed checks say after so many pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdbench.compare.gate_file import GateFile
from cdbench.compare.gate_times import Key, invalid_check, judged_checks
from cdbench.compare.pair.seen import Seen, all_gains
from cdbench.metrics.registry import METRICS
from cdbench.schema.gating import GateCheck, LookRecord
from cdbench.schema.pairing import PairRun
from cdbench.stats.gains import Gain, paired_gain
from cdbench.stats.gate import Decision, ErrorShares
from cdbench.stats.sequential import settled

Checks = dict[Key, GateCheck]


def timed_checks(
    gate: GateFile, keys: Sequence[Key], runs: Sequence[PairRun], errors: ErrorShares
) -> Checks:
    """Every timed check on the pairs so far."""
    seen = Seen(runs)
    logs, why = all_gains(seen, keys, gate.timed)
    gains: dict[Key, Gain] = {}
    for key, values in logs.items():
        gain = paired_gain(values)
        assert gain is not None, "there is a pair"
        gains[key] = gain
    judged = judged_checks(gate, gains, errors)
    checks = {key: judged[key] if key in judged else invalid_check(key, why[key]) for key in keys}
    return {key: _with_values(check, seen, key) for key, check in checks.items()}


def look_record(pairs: int, errors: ErrorShares, checks: Mapping[Key, GateCheck]) -> LookRecord:
    """What a look found."""
    return LookRecord(
        pairs=pairs,
        fail_error=errors.fail,
        pass_error=errors.passes,
        verdicts={check.name: check.verdict for check in checks.values()},
    )


def may_stop(checks: Mapping[Key, GateCheck]) -> bool:
    """Whether more pairs are not needed: all is decided, or something cannot be judged at all."""
    verdicts = [check.verdict for check in checks.values()]
    if "INVALID" in verdicts:
        return True
    return settled([Decision(verdict) for verdict in verdicts])


def _with_values(check: GateCheck, seen: Seen, key: Key) -> GateCheck:
    """With the mean of the metric on either side, where it is a metric of one run."""
    mode, metric = key
    if metric not in METRICS:
        return check
    means = [seen.means(side, mode, metric) for side in ("old", "new")]
    base, run = (sum(values) / len(values) if values else None for values in means)
    return check.model_copy(update={"base": base, "run": run})

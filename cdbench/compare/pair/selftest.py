"""``--self-test``: what a paired gate would say of no change at all, at the noise that it met."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from cdbench.compare.gate_file import GateFile
from cdbench.compare.gate_times import Key, timed_name
from cdbench.compare.pair.seen import Seen, all_gains
from cdbench.errors import UsageError
from cdbench.render.formats import ratio
from cdbench.schema import IntervalRecord
from cdbench.schema.pairing import NoiseRecord, PairRun, SelfTestRecord
from cdbench.stats.blocks import LEVEL
from cdbench.stats.gains import paired_gain
from cdbench.stats.gate import LOOKS, Decision
from cdbench.stats.sequential import (
    Series,
    decide,
    flipped,
    sign_choices,
    smallest_loss,
    smallest_margin,
)

FEW = 400
"""Choices of signs that the smallest loss and margin are looked for on."""
OFTEN, NEARLY_ALWAYS = 0.80, 0.98


def self_test(
    gate: GateFile,
    keys: Sequence[Key],
    runs: Sequence[PairRun],
    looks: Sequence[int] = LOOKS,
    seed: int = 0,
) -> SelfTestRecord:
    """False alarms by sign flips, the noise, and what can be seen at it.

    Raises:
        UsageError: a metric is undefined in some pair.
    """
    logs, why = all_gains(Seen(runs), keys, gate.timed)
    for reason in why.values():
        raise UsageError(f"--self-test: {reason}; take another metric")
    series = list(logs.values())
    margins = [gate.timed.margin] * len(series)
    signs, enumerated = sign_choices(looks[-1], seed=seed)
    said = Counter(decide(flip, margins, looks).decision for flip in flipped(series, signs))
    few = list(flipped(series, sign_choices(looks[-1], FEW, seed + 1)[0]))
    checks = {
        timed_name(key): _noise(series, few, margins, place, looks)
        for place, key in enumerate(logs)
    }
    found = SelfTestRecord(
        pairs=looks[-1],
        flips=len(signs),
        enumerated=enumerated,
        false_alarms=said[Decision.FAIL] / len(signs),
        passes=said[Decision.PASS] / len(signs),
        inconclusive=said[Decision.INCONCLUSIVE] / len(signs),
        checks=checks,
        sentences=[],
    )
    return found.model_copy(update={"sentences": list(_sentences(found, gate.timed.margin))})


def _noise(
    series: Series,
    few: Sequence[list[list[float]]],
    margins: Sequence[float],
    place: int,
    looks: Sequence[int],
) -> NoiseRecord:
    own = series[place]
    gain = paired_gain(own)
    assert gain is not None, "there are pairs"
    losses = [smallest_loss(flip, margins, place, looks) for flip in few]
    least = [smallest_margin(flip, place, looks) for flip in few]
    return NoiseRecord(
        spread=float(np.std(own, ddof=1)),
        offset=IntervalRecord.of(gain.interval(LEVEL)),
        loss_failed_80=_reached(losses, OFTEN),
        loss_failed_98=_reached(losses, NEARLY_ALWAYS),
        margin_passed_80=_reached(least, OFTEN),
        margin_passed_98=_reached(least, NEARLY_ALWAYS),
    )


def _reached(values: Sequence[float], share: float) -> float | None:
    """The value that at least this share lies at or below; None where that has no end."""
    found = float(np.quantile(values, share, method="higher"))
    return found if math.isfinite(found) else None


def _sentences(found: SelfTestRecord, margin: float) -> Iterator[str]:
    drawn = f"all {found.flips:,}" if found.enumerated else f"{found.flips:,} random"
    yield (
        f"Self-test, the same code twice, {found.pairs} pairs: with the signs of its pairs in "
        f"{drawn} orders the gate says FAIL {_percent(found.false_alarms)} of the time, which are "
        f"false alarms, PASS {_percent(found.passes)}, INCONCLUSIVE {_percent(found.inconclusive)}."
    )
    for name, noise in found.checks.items():
        offset = ratio(noise.offset.estimate, noise.offset.low, noise.offset.high)
        yield (
            f"{name}: pairs scatter by {_percent(noise.spread)}. At this noise and a margin of "
            f"{_percent(margin)} a loss of {_percent(noise.loss_failed_80)} FAILs in 80 of 100 "
            f"gates and one of {_percent(noise.loss_failed_98)} in 98. Unchanged code PASSes at a "
            f"margin of {_percent(noise.margin_passed_80)} in 80 of 100 gates and at "
            f"{_percent(noise.margin_passed_98)} in 98. Of the two processes one was {offset} as "
            "good as the other."
        )


def _percent(share: float | None) -> str:
    return "more than 100 %" if share is None else f"{100 * share:.3g} %"

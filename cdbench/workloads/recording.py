"""A recorded run: its tokens, its depths, and what its exit rule saw at every loop.

Depths at other thresholds follow from the signals without the model: a token leaves at the first
loop whose signal passes the test. At the recorded threshold they are exact. At any other they are
an approximation, because the signals were computed over keys and values that earlier tokens left
behind at the recorded threshold; ``cdbench record`` measures how good a one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cdbench.errors import UsageError
from cdbench.runtime.core import BoolArray, ExitPolicy, FloatArray, IntArray
from cdbench.runtime.exit_rule import Needs
from cdbench.runtime.exits import RULES
from cdbench.schema.recording import Recording

DEFAULT_QUANTILES = (0.25, 0.5, 0.75)
"""Of the signals before the last loop: where the default thresholds of an agreement lie."""


@dataclass(frozen=True)
class Depths:
    """Loops of one request's later tokens ``[T]``: what they execute, and what the rule asks for.

    ``requested`` is the depth at lag 0, the executed one where the rule never asked.
    """

    executed: IntArray
    requested: IntArray


@dataclass(frozen=True)
class Recorded:
    """A recording with its signals, one array ``[later tokens, R]`` a request."""

    document: Recording
    signals: tuple[FloatArray, ...]

    @property
    def policy(self) -> ExitPolicy:
        """The rule that ran."""
        ran = self.document.exit
        return ExitPolicy(ran.rule, ran.threshold, ran.min_loops, ran.lag)

    def depths(self, threshold: float | None = None) -> list[Depths]:
        """Of every request's later tokens, at a threshold (None: the recorded one)."""
        policy = self.policy
        if threshold is not None:
            policy = ExitPolicy(policy.rule, threshold, policy.min_loops, policy.lag)
        return [derive(signals, policy) for signals in self.signals]


def derive(signals_TR: FloatArray, policy: ExitPolicy) -> Depths:
    """The depths of tokens with these signals ``[T, R]`` under a rule, floor and lag.

    A decision may be taken at loop k where k + lag reaches the floor, and ends the token after loop
    k + lag; the last loop ends every token, and a NaN never does.
    """
    tokens, loops = signals_TR.shape
    if not tokens:
        return Depths(np.empty(0, np.int64), np.empty(0, np.int64))
    met = met_tests(signals_TR, policy)
    loop_R = np.arange(1, loops + 1)
    leaves = _first_loop(met & (loop_R + policy.lag >= policy.min_loops), loops) + policy.lag
    executed = np.minimum(leaves, loops)
    asked = _first_loop(met & (loop_R >= policy.min_loops), loops)
    return Depths(executed, np.minimum(asked, executed))


def met_tests(signals_TR: FloatArray, policy: ExitPolicy) -> BoolArray:
    """The rule's own test ``[T, R]``, as the engine makes it: on float64 values of both sides."""
    threshold = torch.tensor(policy.threshold, dtype=torch.float64)
    signals = torch.from_numpy(np.ascontiguousarray(signals_TR)).double()
    met: BoolArray = RULES[policy.rule].met(signals, threshold).numpy()
    return met


def _first_loop(met_TR: BoolArray, otherwise: int) -> IntArray:
    first: IntArray = np.where(met_TR.any(1), met_TR.argmax(1) + 1, otherwise)
    return first


def check_recordable(policy: ExitPolicy) -> None:
    """Raise UsageError for a rule without a signal that could be recorded."""
    if policy.lookahead is not None:
        raise UsageError(
            "exit rule 'lookahead': its depths do not follow from the signals of its rule; record "
            f"the rule itself, --exit {policy.rule}@{policy.threshold:g}"
        )
    if RULES[policy.rule].needs is Needs.NOTHING:
        raise UsageError(
            f"exit rule {policy.rule!r}: has no signal to record; name one with a threshold, "
            "--exit RULE@THRESHOLD (`cdbench list rules`)"
        )


def default_thresholds(signals: Sequence[FloatArray], policy: ExitPolicy) -> tuple[float, ...]:
    """Thresholds at which an agreement is measured: quartiles of what the rule saw.

    Three significant digits, inside the rule's range (its ends exit nothing or everything), without
    the recorded one; fewer than three where they coincide, none where no token could exit early.
    """
    seen = np.concatenate([s[:, :-1].ravel() for s in signals] or [np.empty(0)])
    seen = seen[np.isfinite(seen)]
    allowed = RULES[policy.rule].threshold_range
    if not seen.size or allowed is None:
        return ()
    rounded = [float(f"{x:.3g}") for x in np.quantile(seen, DEFAULT_QUANTILES)]
    inside = (x for x in rounded if allowed.low < x < allowed.high and x != policy.threshold)
    return tuple(dict.fromkeys(inside))

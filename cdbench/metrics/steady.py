"""The share of ``time_bound`` realised in the steady window: without fill and drain.

A window holds other tokens in each mode, so wall times of the windows form no speed-up. Rates do:
the ratio of later-token rates (decode time, prefill launches taken out) is divided by the ratio of
what those very tokens cost at ideal packing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cdbench.metrics.curves import Curves
from cdbench.metrics.ideal import LaterTokens, Packing
from cdbench.metrics.rates import SteadyWindow, steady_window
from cdbench.metrics.trace import RunTrace
from cdbench.stats.blocks import LEVEL, BlockRun, geometric_mean, log_ratios
from cdbench.stats.interval import Interval


@dataclass(frozen=True)
class SteadyRun:
    """The later tokens of one timed run's window: seconds each as measured, and their packing."""

    block: int
    mode: str
    measured_s: float
    tokens: LaterTokens
    packing: Packing

    @property
    def ideal_s(self) -> float:
        """Seconds a token at ideal packing. ValueError where the curves do not reach the width."""
        return self.packing.ideal_s(self.tokens).total / self.tokens.count

    def on(self, curves: Curves) -> SteadyRun:
        """The same window, costed on other curves."""
        return replace(self, packing=replace(self.packing, curves=curves))


@dataclass(frozen=True)
class SteadyShare:
    """In the steady window: ratio of rates, the bound of those tokens, and the share realised."""

    speedup: Interval
    bound: Interval
    realised: Interval


def window_tokens(
    trace: RunTrace, window: SteadyWindow, requested: Mapping[str, Sequence[int]]
) -> LaterTokens:
    """Later tokens that came out within a window, at the depths requested (by request id)."""
    contexts, loops = [np.empty(0)], [np.empty(0)]
    for request in trace.requests:
        token_s = np.asarray(request.token_s, np.float64)
        inside = np.flatnonzero((token_s > window.opened_s) & (token_s <= window.closed_s))
        later = inside[inside > 0]
        contexts.append(request.prompt_tokens + later.astype(np.float64))
        loops.append(np.asarray(requested[request.id], np.float64)[later])
    return LaterTokens(np.concatenate(contexts), np.concatenate(loops))


def steady_run(
    block: int, trace: RunTrace, requested: Mapping[str, Sequence[int]], packing: Packing
) -> SteadyRun | None:
    """One run's window; None without a steady one, or without later tokens in it."""
    window = steady_window(trace)
    if window is None or window.decode_s is None:
        return None
    tokens = window_tokens(trace, window, requested)
    if not tokens.count:
        return None
    return SteadyRun(block, trace.mode, window.decode_s / tokens.count, tokens, packing)


def steady_share(
    runs: Iterable[SteadyRun], mode: str, over: str, level: float = LEVEL
) -> SteadyShare | None:
    """A mode over another in their steady windows; None without a whole block of both.

    Raises:
        ValueError: the curves do not reach the width.
    """
    kept = list(runs)
    rates = log_ratios([BlockRun(r.block, r.mode, r.measured_s) for r in kept], mode, over)
    bounds = log_ratios([BlockRun(r.block, r.mode, r.ideal_s) for r in kept], mode, over)
    shares = [rate - bound for rate, bound in zip(rates, bounds, strict=True)]
    speedup, bound, realised = (geometric_mean(logs, level) for logs in (rates, bounds, shares))
    if speedup is None or bound is None or realised is None:
        return None
    return SteadyShare(speedup, bound, realised)

"""Rates and shares of the timed region, and its decode scope.

Rates count the tokens of finished requests; the wall includes fill, drain and whatever went to
requests that did not finish.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdbench.metrics.latency import meets
from cdbench.metrics.trace import LaunchTrace, RunTrace


def output_tokens(trace: RunTrace) -> int:
    """Output tokens of finished requests, first tokens included."""
    return sum(len(r.tokens) for r in trace.finished)


def later_tokens(trace: RunTrace) -> int:
    """Output tokens of finished requests but the first of each."""
    return sum(max(0, len(r.tokens) - 1) for r in trace.finished)


def output_throughput(trace: RunTrace) -> float | None:
    """Output tokens / wall, token/s. None where no request finished."""
    return output_tokens(trace) / trace.wall_s if trace.finished else None


def request_throughput(trace: RunTrace) -> float | None:
    """Finished requests / wall, req/s. None where no request finished."""
    return len(trace.finished) / trace.wall_s if trace.finished else None


def goodput(trace: RunTrace) -> float | None:
    """Finished requests meeting every SLO given / wall, req/s. None without an SLO."""
    if trace.slo is None or not trace.finished:
        return None
    return sum(meets(r, trace.slo) for r in trace.finished) / trace.wall_s


def decode_throughput(trace: RunTrace) -> float | None:
    """Later tokens / decode wall, token/s. None without a later token or a decode scope."""
    wall_s, tokens = decode_wall_s(trace), later_tokens(trace)
    return tokens / wall_s if wall_s and tokens else None


def decode_wall_s(trace: RunTrace) -> float | None:
    """Wall of the decode scope: timed region − time in prefill launches, s. Host gaps stay in.

    None where a launch mixes prompt and decode rows and the trace has no ``prefill_share`` to split
    it, or where nothing is left.
    """
    prefill_s = 0.0
    for launch in trace.launches:
        share = prefill_share(trace, launch)
        if share is None:
            return None
        prefill_s += share * launch.duration_s
    left_s = trace.wall_s - prefill_s
    return left_s if left_s > 0 else None


def prefill_share(trace: RunTrace, launch: LaunchTrace) -> float | None:
    """Fraction of a launch's time that belongs to prompt rows; None where it cannot be told."""
    if launch.prefill_rows == 0:
        return 0.0
    if launch.decode_rows == 0:
        return 1.0
    return trace.prefill_share(launch) if trace.prefill_share else None


def host_share(trace: RunTrace) -> float | None:
    """Wall with no stage running / wall. None without launch records."""
    if not trace.launches:
        return None
    # A launch timer may overshoot the host's clock by a hair; RunTrace refuses more than that.
    return max(0.0, 1 - trace.busy_s / trace.wall_s)


@dataclass(frozen=True)
class SteadyWindow:
    """The part of a run without fill and drain, in seconds on the run's clock.

    It opens when ``max_residents`` requests have finished while others wait, and closes when the
    waiting queue next empties. ``decode_s`` is its length less the time of prefill launches within
    it; None where a mixed launch cannot be split.
    """

    opened_s: float
    closed_s: float
    decode_s: float | None

    @property
    def length_s(self) -> float:
        return self.closed_s - self.opened_s

    def holds(self, when_s: float) -> bool:
        """Whether a moment lies in it; the opening itself does not."""
        return self.opened_s < when_s <= self.closed_s


def steady_window(trace: RunTrace) -> SteadyWindow | None:
    """The steady window of a run; None where there was none."""
    ends = _window_ends(trace)
    if ends is None:
        return None
    opened, closed = ends
    prefill_s = _prefill_within(trace, opened, closed)
    left_s = None if prefill_s is None else closed - opened - prefill_s
    return SteadyWindow(opened, closed, left_s if left_s is not None and left_s > 0 else None)


def steady_throughput(trace: RunTrace) -> float | None:
    """Tokens in the steady window / its length, token/s: the rate without fill and drain.

    None where there is no such window.
    """
    window = steady_window(trace)
    if window is None:
        return None
    tokens = sum(window.holds(t) for r in trace.requests for t in r.token_s)
    return tokens / window.length_s


def steady_decode_throughput(trace: RunTrace) -> float | None:
    """Later tokens in the steady window / its decode time, token/s. None without them."""
    window = steady_window(trace)
    if window is None or window.decode_s is None:
        return None
    tokens = sum(window.holds(t) for r in trace.requests for t in r.token_s[1:])
    return tokens / window.decode_s if tokens else None


def cost_per_million_tokens(trace: RunTrace) -> float | None:
    """price_per_hour / 3600 · wall / output tokens · 10^6, in the price's currency."""
    tokens = output_tokens(trace)
    if trace.price_per_hour is None or tokens == 0:
        return None
    return trace.price_per_hour / 3600 * trace.wall_s / tokens * 1e6


def _prefill_within(trace: RunTrace, opened_s: float, closed_s: float) -> float | None:
    """Seconds of prefill launches between two moments; None where a launch cannot be split."""
    total_s = 0.0
    for launch in trace.launches:
        if launch.prefill_rows == 0:
            continue
        end_s = launch.start_s + launch.duration_s
        inside_s = min(end_s, closed_s) - max(launch.start_s, opened_s)
        share = prefill_share(trace, launch)
        if inside_s > 0 and share is None:
            return None
        total_s += max(0.0, inside_s) * (share or 0.0)
    return total_s


def _window_ends(trace: RunTrace) -> tuple[float, float] | None:
    ends = sorted(r.finish_s for r in trace.finished)
    if len(ends) < trace.max_residents:
        return None
    served = [r for r in trace.requests if r.error is None]
    arrived = np.sort(np.array([r.arrival_s for r in served]))
    admitted = np.sort(np.array([r.admitted_s for r in served if r.admitted_s is not None]))

    def waiting(when_s: float) -> int:
        return int(
            np.searchsorted(arrived, when_s, "right") - np.searchsorted(admitted, when_s, "right")
        )

    opened = ends[trace.max_residents - 1]
    if waiting(opened) == 0:
        return None
    later = (float(t) for t in admitted[np.searchsorted(admitted, opened, "right") :])
    closed = next((t for t in later if waiting(t) == 0), None)
    return None if closed is None else (opened, closed)

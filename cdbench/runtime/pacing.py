"""``engine.max_itl_s``: how long prompts may hold up tokens in flight, alike in every mode.

Before each launch of a prompt chunk the token level asks whether the token that has been waited for
longest can still come in time:

    its age + the chunk's launch + what it still needs ≤ max_itl_s

Its age runs from its request's last token; what it needs are the loops that it may have left, R at
most, each with a coda and a prelude of others where depths mix, and its own coda and prelude. If
not, decode launches go first. Chunks are cut so that one fits beside a whole token of decode, at
least one prompt token long, and never shorter than what fits into a quarter of ``max_itl_s``: that
little a prompt may always have.

No prompt starves. While nothing decodes a chunk always runs, and while tokens are in flight one
launch may run in each gap, that is, once each of them has come since the last one. So a gap is at
most ``max_itl_s``, or where decode alone takes nearly that or more, decode plus one launch.

Times come from the stage curves, else from the launches of this very run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cdbench.metrics.curves import MeasuredCurves
from cdbench.runtime.core import IntArray
from cdbench.runtime.residents import Residents
from cdbench.runtime.schedules.base import Launch, Work

ALWAYS = 0.25
"""The share of the limit that a chunk's launch may take however slow decode is."""
LATEST = 0.2
"""Weight of the latest launch in what launches of this run are taken to last, where it is less."""


class LaunchTimes(Protocol):
    """What launches take, seconds."""

    def chunk_s(self, tokens: int) -> float:
        """One launch over so many prompt tokens."""
        ...

    def core_s(self, rows: int) -> float:
        """One core launch of so many decode rows."""
        ...

    def ending_s(self, rows: int) -> float:
        """The coda launch that ends so many tokens and the prelude launch of the next."""
        ...


class CurveTimes:
    """From stage curves, in the middle of their contexts.

    A chunk's time on its curve is that of all its launches, nearly all of it in R core launches.
    """

    def __init__(self, curves: MeasuredCurves, prompt_loops: int) -> None:
        self._curves, self._prompt_loops = curves, prompt_loops
        self._context = curves.middle_context("core")
        self._prompt = curves.contexts("prefill")[0]

    def chunk_s(self, tokens: int) -> float:
        # Beyond the largest chunk measured time goes on in proportion.
        measured = min(tokens, self._curves.widest("prefill"))
        whole_s = self._curves.launch_s("prefill", measured, self._prompt)
        return whole_s * tokens / measured / self._prompt_loops

    def core_s(self, rows: int) -> float:
        return self._curves.launch_s("core_with_exit", rows, self._context)

    def ending_s(self, rows: int) -> float:
        coda_s = self._curves.launch_s("coda_with_exit", rows, self._context)
        return coda_s + self._curves.launch_s("prelude_with_exit", rows, self._context)


@dataclass
class SeenTimes:
    """From the launches of this run: times rise at once and fall slowly, from 0 before the first.

    Chunks are taken to last in proportion to their tokens, other launches whatever their rows.
    """

    token_s: float | None = None
    loop_s: float | None = None
    end_s: float | None = None

    def chunk_s(self, tokens: int) -> float:
        return tokens * (self.token_s or 0.0)

    def core_s(self, rows: int) -> float:
        return self.loop_s or 0.0

    def ending_s(self, rows: int) -> float:
        return self.end_s or 0.0

    def saw(self, launch: Launch, prompt_tokens: int, took_s: float) -> None:
        """Take in a launch. One that mixes prompt and decode rows says nothing of either."""
        if launch.work is Work.PREFILL:
            if prompt_tokens:
                self.token_s = _bound(self.token_s, took_s / prompt_tokens)
        elif prompt_tokens:
            return
        elif launch.work is Work.CORE:
            self.loop_s = _bound(self.loop_s, took_s)
        else:
            self.end_s = _bound(self.end_s, took_s)


class Pacing:
    """Says when a prompt chunk may be launched, and how large chunks may be.

    ``mixes_depths``: other tokens' codas may run between any two loops of a token.
    """

    def __init__(
        self,
        max_itl_s: float,
        residents: Residents,
        width: int,
        prefill_tokens: int,
        mixes_depths: bool,
    ) -> None:
        self.max_itl_s = max_itl_s
        self.residents = residents
        self.width, self.prefill_tokens = width, prefill_tokens
        self.mixes_depths = mixes_depths
        self._curve_times: CurveTimes | None = None
        self.start_afresh()

    def use_curves(self, curves: MeasuredCurves, prompt_loops: int) -> None:
        """Take launch times from these curves, of prompts that ran ``prompt_loops`` loops.

        Raises:
            ValueError: they do not reach the width.
        """
        times = CurveTimes(curves, prompt_loops)
        times.core_s(self.width)
        times.ending_s(self.width)
        self._curve_times = times

    def start_afresh(self) -> None:
        """Forget the launches of the run so far."""
        self._seen = SeenTimes()
        self._last_chunk_s = -math.inf

    @property
    def times(self) -> LaunchTimes:
        return self._curve_times or self._seen

    def chunk_tokens(self, in_flight: int) -> int:
        """The most prompt tokens of a launch, beside so many tokens in flight."""
        if not in_flight:
            return self.prefill_tokens
        rows = min(in_flight, self.width)
        decode_s = self._needs_s(self.residents.max_loops, rows)
        room_s = max(self.max_itl_s - decode_s, ALWAYS * self.max_itl_s)
        fits, too_many = 1, self.prefill_tokens + 1
        while too_many - fits > 1:
            half = (fits + too_many) // 2
            if self.times.chunk_s(half) <= room_s:
                fits = half
            else:
                too_many = half
        return fits

    def allows(self, decoding: IntArray, tokens: int, preparing: int, now_s: float) -> bool:
        """Whether a launch over so many prompt tokens may hold up these residents now.

        Without a token it is the last of a job: ``preparing`` prompts are read out.
        """
        if not decoding.size:
            return True
        res = self.residents
        since_s = res.outputs.token_s[decoding, res.outputs.count[decoding] - 1]
        oldest = int(np.argmin(since_s))
        if since_s[oldest] > self._last_chunk_s:
            return True
        loops = res.max_loops - int(res.loop[decoding[oldest]])
        rows = min(decoding.size, self.width)
        wait_s = now_s - float(since_s[oldest]) + self._needs_s(loops, rows)
        if tokens:
            wait_s += self.times.chunk_s(tokens)
        else:
            wait_s += self.times.ending_s(min(preparing, self.width))
        return wait_s <= self.max_itl_s

    def saw(self, launch: Launch, prompt_tokens: int, began_s: float, ended_s: float) -> None:
        """Take in a launch that has run; ``prompt_tokens`` of it were of prompts."""
        if launch.work is Work.PREFILL or prompt_tokens:
            self._last_chunk_s = ended_s
        self._seen.saw(launch, prompt_tokens, ended_s - began_s)

    def _needs_s(self, loops: int, rows: int) -> float:
        """Seconds until a token with so many loops to go has come, at most."""
        between = self.mixes_depths or self.residents.any_reads_out
        endings = max(1, loops) if between else 1
        return loops * self.times.core_s(rows) + endings * self.times.ending_s(rows)


def _bound(before: float | None, now: float) -> float:
    """A limit is kept by the slower launches: the cheap prelude of a chunk says little."""
    return now if before is None else max(now, (1 - LATEST) * before + LATEST * now)

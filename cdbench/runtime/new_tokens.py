"""What a new token means: it is recorded, and its request ends or goes on with the next one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from cdbench.runtime.calls import look_before
from cdbench.runtime.core import BoolArray, Clock, FinishReason, FloatArray, IntArray
from cdbench.runtime.prefill import FirstTokens
from cdbench.runtime.readback import Array, Awaited, Chosen
from cdbench.runtime.request_lines import NO_STOP
from cdbench.runtime.results import Detokenize, Ended, completed, ended, first_stop
from cdbench.runtime.runner import Runner
from cdbench.runtime.schedules.base import Schedule

TokenWatch = Callable[[IntArray, IntArray, IntArray], None]
"""Told whose tokens are complete, which tokens were chosen, and their requested depths."""


class NewTokens:
    """Takes the tokens of finished launches; ``done`` has the requests that they ended."""

    def __init__(
        self,
        width: int,
        runner: Runner,
        schedule: Schedule,
        clock: Clock,
        detokenize: Detokenize | None,
        awaited: Awaited,
    ) -> None:
        self.width, self.runner, self.schedule = width, runner, schedule
        self.awaited = awaited
        self.residents, self.cache = runner.residents, runner.cache
        self.clock, self.detokenize = clock, detokenize
        self.done: deque[Ended] = deque()
        self.watch: TokenWatch | None = None
        """Told of new tokens before any is recorded: their states are still there."""

    def take_first(self, first: FirstTokens) -> None:
        """Take the tokens that a finished prefill yields."""
        res = self.residents
        for r in first.residents:
            res.position[r] = len(res.request(int(r)).prompt) - 1
        full = np.full_like(first.residents, res.max_loops)
        self.take(first.residents, first.chosen, full, first.depths)

    def take(self, rows: IntArray, chosen: Chosen, executed: IntArray, requested: IntArray) -> None:
        """Record new tokens, end the requests they end, and start the others' next tokens.

        A token that may stop its request is waited for: no work is done for one that turns out not
        to be there. Where only the number of tokens ends requests, none has to be known for that.
        """
        if self.watch is not None or self._may_stop(rows):
            self._take_known(rows, *chosen.wait(), executed, requested)
        else:
            self._take_coming(rows, chosen, executed, requested)

    def _may_stop(self, rows: IntArray) -> bool:
        """Whether what the tokens of these rows are may end a request."""
        res = self.residents
        has_ids = res.any_stop_ids and bool((res.stop_ids[rows] != NO_STOP).any())
        return has_ids or (res.any_stop_strings and bool(res.has_stop_strings[rows].any()))

    def _take_coming(
        self, rows: IntArray, chosen: Chosen, executed: IntArray, requested: IntArray
    ) -> None:
        """Go on from tokens that the device has; they are written down when the host has them."""
        res, out = self.residents, self.residents.outputs
        numbers = out.claim(rows, executed, requested)
        if res.foresight.any:
            res.keep_predictions(rows)
        res.position[rows] += 1
        going = out.count[rows] < res.limit[rows]
        gone = [self._leave(int(r), FinishReason.LENGTH, None, math.nan) for r in rows[~going]]

        def write_down(*arrays: Array) -> None:
            tokens, logprobs = chosen.read(*arrays)
            now_s = self.clock.now()
            stay = rows[going], numbers[going], tokens[going], logprobs[going]
            out.fill(*stay, now_s)
            lasts = zip(gone, tokens[~going], logprobs[~going], strict=True)
            for request, token, logprob in lasts:
                last = int(token), float(logprob), now_s
                self.done.append(completed(request, *last, self.clock.now()))

        self.awaited.expect(chosen.readback, write_down)
        if going.any():
            self._start(rows[going], executed[going])

    def _take_known(
        self,
        rows: IntArray,
        tokens: IntArray,
        logprobs: FloatArray,
        executed: IntArray,
        requested: IntArray,
    ) -> None:
        if self.watch is not None:
            self.watch(rows, tokens, requested)
        res = self.residents
        stopped = res.hits_stop_id(rows, tokens)
        # A stop token is not listed.
        listed = ~stopped
        whose = rows[listed]
        numbers = res.outputs.claim(whose, executed[listed], requested[listed])
        now_s = self.clock.now()
        res.outputs.fill(whose, numbers, tokens[listed], logprobs[listed], now_s)
        if res.foresight.any:
            res.keep_predictions(whose)
        finishing = stopped | (res.outputs.count[rows] >= res.limit[rows])
        if res.any_stop_strings:
            watched = res.has_stop_strings[rows]
            finishing |= self._hits_stop_string(rows, watched & ~stopped)
        res.position[rows] += 1
        ends = np.flatnonzero(finishing)
        if not ends.size:
            self._start(rows, executed)
            return
        for i in ends:
            reason = FinishReason.STOP if stopped[i] else FinishReason.LENGTH
            self.finish(int(rows[i]), reason, int(executed[i]) if stopped[i] else None)
        if ends.size < rows.size:
            going = ~finishing
            self._start(rows[going], executed[going])

    def finish(self, r: int, reason: FinishReason, stop_depth: int | None) -> None:
        """End a resident's request: its rows and its number are free."""
        # What is on its way for it is written down first.
        self.awaited.take_all()
        self.done.append(self._leave(r, reason, stop_depth, self.clock.now()))

    def _leave(
        self, r: int, reason: FinishReason, stop_depth: int | None, finish_s: float
    ) -> Ended:
        """What a resident leaves behind as it goes."""
        gone = ended(self.residents, r, reason, stop_depth, finish_s)
        self.cache.release(r)
        self.residents.free(r)
        return gone

    def _start(self, rows: IntArray, depths: IntArray) -> None:
        """Run the prelude of the residents' next tokens and hand them to the schedule.

        ``depths`` are the loops that their last tokens executed.
        """
        self.residents.start_token(rows)
        # A pack of prompts may hold more requests than a launch may have rows.
        for begin in range(0, rows.size, self.width):
            end = begin + self.width
            part = rows[begin:end]
            calls = self.runner.prelude(part, depths[begin:end])
            if calls is not None:
                self.awaited.expect(calls, partial(look_before, self.residents, part))
        self.schedule.enter(rows)

    def _hits_stop_string(self, rows: IntArray, watched: BoolArray) -> BoolArray:
        """Which of the watched rows have a stop string in their text so far."""
        hits = np.zeros(rows.size, np.bool_)
        for i in np.flatnonzero(watched):
            r = int(rows[i])
            strings = self.residents.request(r).stop_strings
            hits[i] = first_stop(self._text(r), strings) is not None
        return hits

    def _text(self, r: int) -> str | None:
        if self.detokenize is None:
            return None
        out = self.residents.outputs
        return self.detokenize(out.tokens[r, : out.count[r]].tolist())

"""Scoring through the ordinary engine, one token after the other: any layout, rule and schedule.

Where prefixes are cached, one continuation of each context goes first, so that the others find the
context there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from torch import Tensor

from cdbench.runtime.core import Clock, IntArray, LaunchObserver, RequestResult
from cdbench.runtime.engine import Engine
from cdbench.runtime.scoring.continuation import Continuation, Scored
from cdbench.runtime.scoring.packs import by_context
from cdbench.runtime.scoring.setting import Setting

KEPT_PREFILLS = 4
"""Cached prefixes that stay from wave to wave without a budget, in chunks of prefill tokens."""


class ScoringEngine(Engine):
    """An engine that also tells, for each token of a request, whether it was the likeliest one.

    ``greedy`` has the answers by request id, aligned with the request's tokens.
    """

    def __init__(self, setting: Setting, clock: Clock | None, observer: LaunchObserver | None):
        super().__init__(setting.model, setting.config, clock=clock, observer=observer)
        self.greedy: dict[str, list[bool]] = {}
        self._likeliest = np.zeros(self.residents.capacity, np.int64)
        self._one_before = np.zeros_like(self._likeliest)
        self.runner.watch_choice = self._saw
        self.new_tokens.watch = self._taken

    def _saw(self, residents: IntArray, likeliest_T: Tensor) -> None:
        self._one_before[residents] = self._likeliest[residents]
        self._likeliest[residents] = likeliest_T.cpu().numpy()

    def _taken(self, rows: IntArray, tokens: IntArray, requested: IntArray) -> None:
        res = self.residents
        likeliest = self._likeliest[rows]
        if self.model.dims.coda_layers and self.config.first_token == "select":
            # After an earlier loop was picked, the last one is read again for its coda row alone.
            read_again = (res.outputs.count[rows] == 0) & (requested < self.max_loops)
            likeliest = np.where(read_again, self._one_before[rows], likeliest)
        for r, greedy in zip(rows.tolist(), (likeliest == tokens).tolist(), strict=True):
            self.greedy.setdefault(res.request(r).id, []).append(greedy)


def score_token_by_token(
    setting: Setting,
    continuations: Sequence[Continuation],
    clock: Clock | None = None,
    observer: LaunchObserver | None = None,
    advance: Callable[[int], None] | None = None,
) -> Iterator[Scored]:
    """The scores of sound continuations, as they come."""
    if not continuations:
        return
    engine = ScoringEngine(setting, clock, observer)
    for wave in _waves(setting, continuations):
        for result in engine.run(continuation.request for continuation in wave):
            yield _scored(result, engine.greedy.pop(result.id, []))
            if advance is not None:
                advance(1)
        _trim(engine)
    engine.cache.clear_prefixes()


def _waves(
    setting: Setting, continuations: Sequence[Continuation]
) -> Iterator[Sequence[Continuation]]:
    """What is served together: all, or contexts a few at a time, one continuation of each first."""
    if not setting.config.prefix_cache:
        yield continuations
        return
    groups = list(by_context(continuations, setting).values())
    step = setting.config.max_residents
    for begin in range(0, len(groups), step):
        these = groups[begin : begin + step]
        yield [group[0] for group in these]
        yield [continuation for group in these for continuation in group[1:]]


def _trim(engine: Engine) -> None:
    """Without a budget nothing else bounds what stays cached."""
    cache, limit = engine.cache, KEPT_PREFILLS * engine.config.prefill_tokens
    while cache.prefixes is not None and cache.prefixes.positions > limit:
        if not cache.evict_prefix():
            return


def _scored(result: RequestResult, greedy: list[bool]) -> Scored:
    return Scored(
        result.id,
        result.logprobs,
        greedy,
        result.executed_depths,
        result.requested_depths,
        result.error,
    )

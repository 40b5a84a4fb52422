"""Packed scoring: all tokens of many continuations run together, loop by loop.

At loop k every token that has not exited runs, and token j reads what token i before it wrote at
slot k, or its deepest slot where it has exited. That is exact where each loop has a slot of its own
(``Setting.can_pack`` has the whole condition): slot k of a token depends on slots up to k of its
predecessors and on nothing that they do later. A sequence of T tokens then costs R launches of T
rows instead of T·R launches of one.

Each token that runs has a resident number of its own, so that rules, thresholds, floors, lag and
what rules remember are those of generation; its keys and values lie on its continuation's line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from cdbench.runtime.attention.packed import PackedPlan
from cdbench.runtime.core import (
    BoolArray,
    Clock,
    IntArray,
    LaunchObserver,
    MonotonicClock,
    Request,
    Stage,
)
from cdbench.runtime.kv_cache import KVCache
from cdbench.runtime.launch_contexts import LaunchContext, LaunchContexts
from cdbench.runtime.request_lines import write_policy, write_sampling, write_scripts
from cdbench.runtime.residents import LINES, Residents
from cdbench.runtime.runner import Runner
from cdbench.runtime.scoring.contexts import Contexts
from cdbench.runtime.scoring.continuation import Continuation, Scored
from cdbench.runtime.scoring.packs import ContextKey, Pack, PackLimits, by_context, cut_packs
from cdbench.runtime.scoring.setting import Setting

MOST_LOGITS = 2**26
"""Logits of one readout, at most: it is cut where the vocabulary is large."""


class TokenResidents(Residents):
    """One resident number for each token that runs, with the token that it leads to forced."""

    def seat(self, item: Continuation, begin: int) -> None:
        """Give numbers from ``begin`` on to the tokens of a continuation that run."""
        end, start = begin + item.fed, len(item.context)
        one = Request(item.id, item.context, force=item.tokens[:1], exit=item.exit)
        write_policy(self, begin, one.exit)
        write_sampling(self, begin, one)
        write_scripts(self, begin, one)
        for name in LINES:
            array = getattr(self, name)
            array[begin + 1 : end] = array[begin]
        self.forced[begin:end, 0] = item.tokens[1:]
        self.position[begin:end] = np.arange(start, start + item.fed)


class PackedContexts(LaunchContexts):
    """Of launches whose rows are tokens of continuations; all rows of one are at the same loop.

    ``lines`` has, by resident number, the line of the cache that its keys and values lie on.
    """

    def __init__(
        self,
        cache: KVCache,
        residents: Residents,
        device: torch.device,
        dtype: torch.dtype,
        lines: IntArray,
    ) -> None:
        super().__init__(cache, residents, device, dtype)
        self.lines = lines

    def decode(self, stage: Stage, residents: IntArray, loops: IntArray) -> LaunchContext:
        positions = self.residents.position[residents]
        cache = self.cache.stages.get(stage)
        if cache is None:
            return self.bare(positions, loops)
        lines = self.lines[residents]
        rows = cache.write_rows(lines, positions, loops)
        slot = int(cache.slots_of(loops[:1])[0])
        plan = PackedPlan(cache, lines, positions, slot, self.dtype)
        return LaunchContext.of_arrays(positions, loops, self.device, cache, rows, plan)


class PackedScorer:
    """Scores packs one after the other; caches and residents are made once, for the largest."""

    def __init__(
        self,
        setting: Setting,
        continuations: Sequence[Continuation],
        clock: Clock | None = None,
        observer: LaunchObserver | None = None,
        limits: PackLimits | None = None,
    ) -> None:
        self.setting = setting
        self.packs = cut_packs(continuations, setting, limits or PackLimits.of(setting))
        model, clock = setting.model, clock or MonotonicClock()
        lines = max(len(pack.items) for pack in self.packs)
        self.rows = setting.config.prefill_tokens
        self.readout_rows = max(1, min(self.rows, MOST_LOGITS // model.dims.vocab_size))
        self.cache = _cache(setting, lines, max(pack.held for pack in self.packs))
        wanted = _first_tokens(continuations, setting)
        self.contexts = Contexts(setting, self.cache, lines, wanted, clock, observer)
        self.first_line = lines
        capacity = max(1, *(pack.fed for pack in self.packs))
        self.residents = TokenResidents.of(model, capacity, setting.max_loops)
        self.runner = Runner(
            model, self.cache, self.residents, clock, observer, setting.random_state
        )
        self.lines = np.zeros(capacity, np.int64)
        self.runner.contexts = PackedContexts(
            self.cache, self.residents, model.device, model.dtype, self.lines
        )
        self.runner.watch_choice = self._saw
        self.logprobs = np.zeros(capacity)
        self.likeliest = np.zeros(capacity, np.int64)

    def run(self, advance: Callable[[int], None] | None = None) -> Iterator[Scored]:
        """The scores of all continuations, pack by pack. Frees every row at the end."""
        for pack in self.packs:
            self.contexts.move_to(pack)
            begins = self._seat(pack)
            if begins[-1]:
                self._run_tokens(np.arange(begins[-1]))
            yield from map(self._scored, pack.keys, pack.items, begins[:-1])
            for i in range(len(pack.items)):
                self.cache.release(self.first_line + i)
            if advance is not None:
                advance(len(pack.items))
        self.contexts.close()

    def _saw(self, residents: IntArray, likeliest_T: Tensor) -> None:
        self.likeliest[residents] = likeliest_T.cpu().numpy()

    def _seat(self, pack: Pack) -> list[int]:
        """Give every token its number; where each continuation's numbers begin, and the end."""
        begins = [0]
        for i, (key, item) in enumerate(zip(pack.keys, pack.items, strict=True)):
            begin, end = begins[-1], begins[-1] + item.fed
            begins.append(end)
            if item.fed:
                line, context = self.first_line + i, self.contexts[key].line
                self.cache.lend(context, line, len(item.context), item.positions)
                self.residents.seat(item, begin)
                self.lines[begin:end] = line
        self.residents.upload()
        numbers = np.arange(begins[-1])
        fed = [token for item in pack.items for token in item.tokens[:-1]]
        self.runner.put_tokens(numbers, np.array(fed, np.int64))
        self.residents.start_token(numbers)
        runnable = len(pack.items)
        self.runner.runnable = runnable
        return begins

    def _run_tokens(self, tokens: IntArray) -> None:
        """All loops of all tokens, and their readouts."""
        for part in _cut(tokens, self.rows):
            # At full depth nothing is settled: here that is done where a token exits.
            self.runner.prelude(part, np.full_like(part, self.setting.max_loops))
        going, unread = tokens, np.ones(tokens.size, np.bool_)
        while going.size:
            exited = np.concatenate([self._loop(part, unread) for part in _cut(going, self.rows)])
            self._settle(going[exited])
            going = going[~exited]
        for part in _cut(tokens[unread], self.readout_rows):
            self._read(part)

    def _loop(self, tokens: IntArray, unread: BoolArray) -> BoolArray:
        """One loop of some tokens: who has exited now."""
        res = self.residents
        exited = res.decide(tokens, self.runner.core(tokens).wait())
        if res.any_reads_out:
            asking = tokens[res.reads_out[tokens] & ~exited]
            for part in _cut(asking, self.readout_rows):
                # This readout, if it decides so, is the token's last.
                left = part[self._read(part)]
                unread[left] = False
            exited = res.exited(tokens)
        return exited

    def _read(self, tokens: IntArray) -> BoolArray:
        """Read out some tokens' states: who has exited by what is seen there."""
        chosen = self.runner.coda(tokens)
        _, self.logprobs[tokens] = chosen.wait()
        return self.residents.decide(tokens, chosen.met())

    def _settle(self, tokens: IntArray) -> None:
        res = self.residents
        for cache in self.cache.stages.values():
            cache.settle(self.lines[tokens], res.position[tokens], res.loop[tokens])

    def _scored(self, key: ContextKey, item: Continuation, begin: int) -> Scored:
        context, res = self.contexts[key], self.residents
        first = context.readout
        tokens = np.arange(begin, begin + item.fed)
        later_greedy = self.likeliest[tokens] == res.forced[tokens, 0]
        return Scored(
            item.id,
            [first.logprobs[item.tokens[0]], *self.logprobs[tokens].tolist()],
            [first.likeliest == item.tokens[0], *later_greedy.tolist()],
            [self.setting.max_loops, *res.loop[tokens].tolist()],
            [context.depth, *res.requested_depths(tokens).tolist()],
        )


def _cache(setting: Setting, lines: int, held: int) -> KVCache:
    """Pools for the largest pack, and lines for its contexts and continuations.

    Prefixes are cached where every loop has a slot, and what is left of the KV budget serves them.
    """
    config, model = setting.config, setting.model
    caches = config.prefix_cache and setting.keeps_every_loop
    if caches:
        held += config.prefill_tokens
        if setting.most_positions is not None:
            held = min(held, setting.most_positions)
    budget = setting.shape.budget_for(held)
    return KVCache(
        model.dims,
        config.kv_layout,
        setting.max_loops,
        2 * lines,
        budget if config.kv_budget_bytes is None else min(budget, config.kv_budget_bytes),
        model.dtype,
        model.device,
        prefix_cache=caches,
    )


def _first_tokens(
    continuations: Sequence[Continuation], setting: Setting
) -> dict[ContextKey, IntArray]:
    """By context, the distinct tokens that its continuations begin with."""
    return {
        key: np.array(sorted({item.tokens[0] for item in group}), np.int64)
        for key, group in by_context(continuations, setting).items()
    }


def _cut(tokens: IntArray, rows: int) -> list[IntArray]:
    """Parts of at most ``rows`` tokens, none of them empty."""
    return [tokens[begin : begin + rows] for begin in range(0, tokens.size, rows)]

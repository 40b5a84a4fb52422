"""The contexts of packed continuations: each prefilled once, and its last position read once.

A context is a resident whose prompt runs through the ordinary prefill. What its readout says of
every first token wanted there is kept, and its rows are lent to the continuations that stand on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from cdbench.models.layers import at_least_float32
from cdbench.runtime.core import Clock, FloatArray, IntArray, LaunchObserver, Request
from cdbench.runtime.exit_rule import Needs
from cdbench.runtime.kv_cache import KVCache
from cdbench.runtime.prefill import PrefillJob
from cdbench.runtime.prefix_cache import Prefix
from cdbench.runtime.readback import Chosen, Here
from cdbench.runtime.residents import Residents
from cdbench.runtime.runner import Runner
from cdbench.runtime.scoring.continuation import Continuation
from cdbench.runtime.scoring.packs import ContextKey, Pack
from cdbench.runtime.scoring.setting import Setting
from cdbench.runtime.vocabulary import likeliest, log_total

LEAST_CACHED_SHARE = 0.5
"""Of a context, for a cached prefix to be used: what continues one attends in calls of its own."""


@dataclass(frozen=True)
class Readout:
    """One context's last position: the likeliest token, and logprobs of the tokens wanted there."""

    likeliest: int
    logprobs: dict[int, float]


@dataclass(frozen=True)
class Context:
    """A prefilled context: the line its rows are on, its readout, the loop that was read."""

    line: int
    readout: Readout
    depth: int


class ContextRunner(Runner):
    """Prefills contexts. The tokens that it reports are numbers of ``readouts``.

    Several tokens are wanted from one readout, and under ``first_token: select`` the readout that
    counts is known only at the end.
    """

    wanted: dict[int, IntArray]
    """By resident, the tokens that continuations of its context begin with."""
    readouts: list[Readout]

    def choose(
        self, residents: IntArray, where: Tensor, logits: Tensor, tested: bool = False
    ) -> Chosen:
        wanted = [self.wanted[r] for r in residents.tolist()]
        rows = np.repeat(np.arange(residents.size), [tokens.size for tokens in wanted])
        picked = _logprobs_at(logits, self.tensor(rows), self.tensor(np.concatenate(wanted)))
        parts = np.split(picked, np.cumsum([tokens.size for tokens in wanted])[:-1])
        best = likeliest(logits).tolist()
        first = len(self.readouts)
        for token, tokens, values in zip(best, wanted, parts, strict=True):
            pairs = zip(tokens.tolist(), values.tolist(), strict=True)
            self.readouts.append(Readout(token, dict(pairs)))
        met_T = self.tests.met(residents, {Needs.LOGITS: (logits,)}) if tested else None
        met = () if met_T is None else self.link.fetch(met_T).wait()
        numbers = first + np.arange(residents.size)
        return Chosen(Here((numbers, np.zeros(residents.size), *met)))


def _logprobs_at(logits_TV: Tensor, rows_N: Tensor, tokens_N: Tensor) -> FloatArray:
    """log p of each token in its row under the raw model, in float32 or better."""
    picked = at_least_float32(logits_TV[rows_N, tokens_N]) - log_total(logits_TV)[rows_N]
    values: FloatArray = picked.double().cpu().numpy()
    return values


class Contexts:
    """The contexts that lie in the cache now; they take its lines from 0 to ``capacity`` - 1."""

    def __init__(
        self,
        setting: Setting,
        cache: KVCache,
        capacity: int,
        wanted: dict[ContextKey, IntArray],
        clock: Clock,
        observer: LaunchObserver | None,
    ) -> None:
        self.setting, self.cache, self._wanted = setting, cache, wanted
        model = setting.model
        self.residents = Residents.of(model, capacity, setting.max_loops)
        self.runner = ContextRunner(
            model, cache, self.residents, clock, observer, setting.random_state
        )
        self._open: dict[ContextKey, Context] = {}

    def __getitem__(self, key: ContextKey) -> Context:
        return self._open[key]

    def move_to(self, pack: Pack) -> None:
        """Prefill the contexts of a pack that are not there yet, once the others have gone."""
        here = set(pack.keys)
        for key in [key for key in self._open if key not in here]:
            self._close(key)
        new = dict(zip(pack.keys, pack.items, strict=True))
        for key in self._open:
            del new[key]
        cached = self._cached_beginnings(new, pack.fed)
        if new:
            self._prefill(new, cached)

    def close(self) -> None:
        """Free all rows, those of cached prefixes too."""
        for key in list(self._open):
            self._close(key)
        self.cache.clear_prefixes()

    def _close(self, key: ContextKey) -> None:
        line = self._open.pop(key).line
        self.cache.release(line)
        self.residents.free(line)

    def _cached_beginnings(
        self, new: dict[ContextKey, Continuation], fed: int
    ) -> dict[ContextKey, Prefix]:
        """Cached prefixes for new contexts, once there is room for what they and ``fed`` lack."""
        if self.cache.prefixes is None:
            return {}
        found = {key: prefix for key, item in new.items() if (prefix := self._prefix(_ids(item)))}
        lacking = fed + sum(len(item.context) for item in new.values())
        lacking -= sum(prefix.length for prefix in found.values())
        for prefix in found.values():
            prefix.pins += 1
        while self._free_positions < lacking and self.cache.evict_prefix():
            pass
        for prefix in found.values():
            prefix.pins -= 1
        if self._free_positions < lacking:
            # What they would have used stands in the way of the rest.
            self.cache.clear_prefixes()
            return {}
        return found

    @property
    def _free_positions(self) -> int:
        return min(c.pool.free_count // c.slots for c in self.cache.stages.values())

    def _prefill(
        self, new: dict[ContextKey, Continuation], cached: dict[ContextKey, Prefix]
    ) -> None:
        self.runner.wanted, self.runner.readouts = {}, []
        prompts: dict[int, IntArray] = {}
        starts: dict[int, int] = {}
        keys: dict[int, ContextKey] = {}
        for key, item in new.items():
            line, ids = self.residents.admit(self._request(item), 0.0), _ids(item)
            starts[line] = self.cache.open_prompt(line, ids, ids.size, cached.get(key))
            prompts[line], keys[line] = ids, key
            self.runner.wanted[line] = self._wanted[key]
        self.residents.upload()
        setting = self.setting
        job = PrefillJob(
            self.runner,
            prompts,
            setting.max_loops,
            setting.config.prefill_tokens,
            select_first=setting.selects_first,
            starts=starts,
        )
        while (first := job.step()) is None:
            pass
        numbers, _ = first.chosen.wait()
        for line, number, depth in zip(first.residents, numbers, first.depths, strict=True):
            r = int(line)
            self.cache.close_prompt(r, prompts[r], prompts[r].size)
            self._open[keys[r]] = Context(r, self.runner.readouts[number], int(depth))

    def _request(self, item: Continuation) -> Request:
        """A context as a request. Its rule matters only where it picks the loop to read."""
        if not self.setting.selects_first:
            return Request(item.id, item.context, max_new_tokens=1)
        return Request(item.id, item.context, max_new_tokens=1, exit=item.exit)

    def _prefix(self, ids: IntArray) -> Prefix | None:
        found = self.cache.cached_prefix(ids, ids.size)
        if found is None or found.length < LEAST_CACHED_SHARE * ids.size:
            return None
        return found


def _ids(item: Continuation) -> IntArray:
    return np.asarray(item.context, dtype=np.int64)

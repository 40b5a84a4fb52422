"""Engines short of memory: what to serve them, what must hold at every tick, what must come out.

Everything is drawn from a ``random.Random``, so that hypothesis, the soak test and the long runs of
``scripts/soak.py`` make their examples with the same code.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from cdbench.models.base import StagedModel
from cdbench.runtime.core import (
    ExitPolicy,
    FinishReason,
    LaunchLog,
    Request,
    RequestResult,
    SamplingParams,
    Stage,
)
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.exits import RULES, suits
from cdbench.runtime.kv_cache import KVCache
from tests import tiny
from tests.reference import Continuation, continue_alone
from tests.staged import staged

LAYOUTS = ("per-loop", "first-shared", "shared", "slots:3")
VOCAB: int = tiny.OURO_CONFIG["vocab_size"]
MODELS: dict[str, Callable[[], StagedModel]] = {
    "ouro": tiny.ouro,
    "staged": staged,
    "huginn": tiny.huginn,
    "universal": tiny.universal,
}
THRESHOLDS: dict[str, list[float]] = {
    "cdf": [0.0, 0.3, 0.6, 0.9, 1.0],
    "act": [0.4, 0.7, 0.99],
    "confidence": [0.2, 0.5, 0.8],
    "margin": [0.2, 0.5, 0.8],
    "latent-diff": [0.3, 0.6, 0.9],
    "cosine": [0.05, 0.2, 0.5],
    "entropy-diff": [0.1, 0.3, 0.8],
    "kl": [0.05, 0.3, 1.0],
    "minp-kl": [0.05, 0.3, 1.0],
    "argmax-stability": [0, 1, 2],
}
TOLERANCE = 1e-6
"""Of logprobs, and the margin below which a choice of token is a tie. Random Huginn weights make a
rounding error grow a thousandfold in two tokens: alone and in company differ by up to some 1e-8.
A wrong row, loop or memory is seen in the third digit.
"""
LONGEST = 12
"""Most new tokens of a request here; shorter continuations are its beginnings."""


FORCED = [7 * i % VOCAB for i in range(LONGEST)]


@functools.cache
def model_of(name: str) -> StagedModel:
    """One of the four tiny models, made once."""
    return MODELS[name]()


# What to serve.


def draw_policy(rng: random.Random, model: StagedModel) -> ExitPolicy:
    """Any rule the model can run; mostly one that exits, at any floor and lag."""
    loops = model.dims.max_loops
    floor, lag = rng.choice([1, 1, rng.randint(1, loops)]), rng.randint(0, 1)
    kind = rng.randint(0, 9)
    if kind == 0:
        return ExitPolicy()
    if kind == 1:
        return ExitPolicy("fixed", min_loops=floor, lag=lag, depth=rng.randint(1, loops))
    rule = rng.choice([name for name in THRESHOLDS if suits(RULES[name], model.dims)])
    return ExitPolicy(rule, rng.choice(THRESHOLDS[rule]), floor, lag)


def draw_prompts(rng: random.Random) -> list[list[int]]:
    """Prompts with much in common: equal ones, beginnings of others, and a few of their own."""
    trunk = [rng.randrange(VOCAB) for _ in range(6)]
    prompts = []
    for _ in range(rng.randint(2, 5)):
        kept = trunk[: rng.randint(0, len(trunk))]
        own = [rng.randrange(VOCAB) for _ in range(rng.randint(0 if kept else 1, 3))]
        prompts.append(kept + own)
    return prompts


@dataclass(frozen=True)
class Palette:
    """What the requests of an example are put together from; few, so that references recur."""

    prompts: list[list[int]]
    policies: list[ExitPolicy]

    @staticmethod
    def draw(rng: random.Random, model: StagedModel, policies: int = 4) -> Palette:
        return Palette(draw_prompts(rng), [draw_policy(rng, model) for _ in range(policies)])


@functools.cache
def palette_of(name: str, number: int) -> Palette:
    """A palette for each of the tiny models and each number, so that examples have it in common."""
    return Palette.draw(random.Random(f"{name} {number}"), model_of(name), policies=6)


def draw_request(rng: random.Random, palette: Palette, name: str) -> Request:
    """A short prompt, a longer continuation; sometimes forced, sampled, stopped or late."""
    sampled = rng.random() < 0.15
    forced = not sampled and rng.random() < 0.15
    tokens = rng.randint(1, LONGEST)
    return Request(
        id=name,
        prompt=rng.choice(palette.prompts),
        max_new_tokens=tokens,
        exit=rng.choice(palette.policies),
        sampling=SamplingParams(1.5, 0, 0.95, seed=1) if sampled else SamplingParams(),
        force=FORCED[:tokens] if forced else None,
        stop_ids=frozenset([rng.randrange(VOCAB)]) if rng.random() < 0.2 else frozenset(),
        arrival_s=rng.choice([0.0, 0.0, 0.0, float(rng.randint(0, 80))]),
    )


def draw_batch(rng: random.Random, palette: Palette, most: int = 9) -> list[Request]:
    return [draw_request(rng, palette, str(i)) for i in range(rng.randint(2, most))]


def draw_config(
    rng: random.Random, model: StagedModel, batch: list[Request], mode: str | None = None
) -> EngineConfig:
    """An engine whose KV budget is near what its longest request needs alone."""
    cap = rng.randint(2, 9)
    width = rng.randint(1, cap)
    config = EngineConfig(
        mode=mode or rng.choice(["cdb", "lockstep"]),
        max_residents=cap,
        width=width,
        kv_layout=rng.choice(LAYOUTS),
        prefix_cache=rng.random() < 0.5,
        prefill_tokens=rng.choice([1, 3, 8, 64]),
        coda_min_rows=rng.randint(1, width + 1),
        min_free_residents=rng.choice([None, rng.randint(1, cap)]),
        first_token=rng.choice(["full", "select"]),
    )
    shape = shape_of(model, config)
    longest = max(request.positions for request in batch)
    budget = shape.budget_for(longest + rng.choice([0, 0, 1, rng.randint(0, 2 * longest)]))
    budget += rng.choice([0, rng.randrange(shape.position_bytes)])
    host = rng.choice([None, 1, rng.randint(1, 3 * budget)])
    return dataclasses.replace(config, kv_budget_bytes=budget, kv_host_bytes=host)


def shape_of(model: StagedModel, config: EngineConfig):
    """Sizes of the engine's cache."""
    free = dataclasses.replace(config, kv_budget_bytes=None, kv_host_bytes=None)
    return Engine(model, free).cache.shape


# What must hold between any two ticks.


def owners_of(cache: KVCache, stage: Stage) -> dict[int, str]:
    """Who owns each row of a stage; an assertion that nobody else does and that all are known."""
    owner: dict[int, str] = {}

    def give(rows: Iterator[int], name: str) -> None:
        for row in rows:
            assert owner.setdefault(row, name) == name, f"row {row}: {owner[row]} and {name}"

    pool, held = cache.stages[stage].pool, cache.stages[stage]
    free = pool._free[: pool.free_count].tolist()
    assert len(set(free)) == len(free), "a row is free twice"
    give(free, "free")
    in_tree: Counter[int] = Counter()
    if cache.prefixes is not None:
        for node in cache.prefixes._nodes():
            in_tree.update(node.lines[stage].reshape(-1).tolist() if node.lines else [])
    assert not in_tree or max(in_tree.values()) == 1, "the tree holds a row twice"
    give(iter(in_tree), "tree")
    for resident in range(held.table.host.shape[0]):
        tables = [held.table, *([held.by_loop] if held.by_loop is not None else [])]
        mine = {int(row) for t in tables for row in np.unique(t.host[resident])} - {0}
        borrowed = mine & in_tree.keys()
        assert borrowed <= pinned_rows(cache, stage, resident), "reads a prefix it does not pin"
        give(iter(mine - borrowed), f"resident {resident}")
    assert sorted(owner) == list(range(1, pool.rows + 1)), "a row is lost"
    return owner


def pinned_rows(cache: KVCache, stage: Stage, resident: int) -> set[int]:
    """The cached rows that a resident may read."""
    node = cache._pinned.get(resident)
    if node is None:
        return set()
    return {row for edge in node.path() for row in edge.lines[stage].reshape(-1).tolist()}


def check_worst(cache: KVCache, resident: int, prompt: int, positions: int) -> None:
    """A request keeps no more rows from others than it is counted for on admission."""
    for stage, worst in cache.worst_rows(prompt, positions).items():
        held = cache.stages[stage]
        tables = [held.table, *([held.by_loop] if held.by_loop is not None else [])]
        rows = {int(row) for t in tables for row in np.unique(t.host[resident])} - {0}
        kept = rows | pinned_rows(cache, stage, resident)
        assert len(kept) <= worst, f"{len(kept)} rows of the {stage}, counted for {worst}"


def check_cache(cache: KVCache) -> None:
    """Every row is owned once: free, by a cached prefix, or by one resident."""
    for stage in cache.stages:
        owners_of(cache, stage)
    if cache.prefixes is None:
        assert not cache._pinned
        return
    nodes = list(cache.prefixes._nodes())
    assert cache.prefixes.positions == sum(node.tokens.size for node in nodes)
    pins = Counter(id(node) for node in cache._pinned.values())
    assert {id(n): n.pins for n in nodes if n.pins} == pins, "pins and their holders disagree"
    for node in nodes:
        for first, child in node.children.items():
            assert child.parent is node
            assert first == child.tokens[0]
            assert child.tokens.size, "an edge of the tree is empty"


def check_engine(engine: Engine) -> None:
    """No row, resident or host byte is unaccounted for, and every limit is kept."""
    cache, res, memory = engine.cache, engine.residents, engine.memory
    check_cache(cache)
    occupied = set(res.occupied.tolist())
    assert len(res._free) == len(set(res._free))
    assert occupied | set(res._free) == set(range(res.capacity))
    assert not occupied & set(res._free)
    assert engine.schedule.in_flight + len(engine.intake.preparing) == len(occupied)
    for resident in set(range(res.capacity)) - occupied:
        for held in cache.stages.values():
            assert not held.table.host[resident].any(), "who is gone has rows"
            assert held.by_loop is None or not held.by_loop.host[resident].any()
        assert resident not in cache._pinned
    if cache.budget_bytes is not None:
        for resident in occupied:
            request = res.request(resident)
            check_worst(cache, resident, len(request.prompt), request.positions)
        assert sum(c.pool.rows * c.pool.row_bytes for c in cache.stages.values()) <= (
            cache.budget_bytes
        )
    if memory.host_bytes is not None:
        assert memory.host_bytes_in_use <= memory.host_bytes
        assert memory.counters.peak_host_bytes <= memory.host_bytes
    ages = [int(away.resident.lines["age"]) for away in memory.preempted]
    assert ages == sorted(ages), "the oldest is to come back first"
    if ages and occupied:
        assert ages[0] > res.age[sorted(occupied)].min(), "the oldest of all was moved away"


def check_drained(engine: Engine) -> None:
    """After the last result: everything is free, but for cached prefixes that nobody reads."""
    check_engine(engine)
    assert engine.idle
    assert not engine.memory.preempted
    assert engine.memory.host_bytes_in_use == 0
    assert engine.residents.occupied_count == 0
    assert engine.schedule.in_flight == 0
    engine.cache.clear_prefixes()
    assert engine.cache.rows_in_use == 0
    assert engine.cache.prefixes is None or engine.cache.prefixes.positions == 0


# Serving.


@dataclass
class Served:
    """What an engine made of a batch."""

    engine: Engine
    results: dict[str, RequestResult]
    log: LaunchLog
    cancelled: set[str] = field(default_factory=set)


def serve(
    model: StagedModel,
    config: EngineConfig,
    batch: list[Request],
    rng: random.Random | None = None,
    cancel_rate: float = 0.0,
    check_every: int = 1,
    prepare: Callable[[Engine], object] | None = None,
) -> Served:
    """Serve a batch tick by tick, checking in between; with an rng, cancel some on the way.

    ``prepare`` is given the engine before the first request.
    """
    log = LaunchLog()
    engine = Engine(model, config, clock=tiny.StepClock(), observer=log)
    if prepare is not None:
        prepare(engine)
    for request in batch:
        engine.submit(request)
    served = Served(engine, {}, log)
    names = [request.id for request in batch]
    ticks = 0
    while engine.tick():
        ticks += 1
        if rng is not None and rng.random() < cancel_rate:
            name = rng.choice(names)
            if engine.cancel(name):
                served.cancelled.add(name)
        if ticks % check_every == 0:
            check_engine(engine)
    for result in engine.run():
        assert result.id not in served.results, "a result came twice"
        served.results[result.id] = result
    assert served.results.keys() == set(names)
    check_launches(served)
    check_drained(engine)
    return served


def check_launches(served: Served) -> None:
    """Every loop that ran is some token's, none ran twice, and no launch was too wide."""
    engine, results = served.engine, served.results.values()
    records = served.log.records
    core = [r for r in records if r.stage is Stage.CORE]
    assert sum(r.decode_rows for r in core) == sum(r.token_loops for r in results)
    assert max((r.decode_rows for r in records), default=0) <= engine.width
    embedded = sum(r.prefill_rows for r in records if r.stage is Stage.PRELUDE)
    assert embedded == engine.cache.prompt_tokens - engine.cache.prefix_tokens
    looped = sum(r.prefill_rows for r in core)
    assert looped == embedded * engine.max_loops
    assert max((r.prefill_rows for r in core), default=0) <= engine.config.prefill_tokens


# What must come out.


class Oracle:
    """Results of requests alone, each computed once.

    Greedy and forced ones by the independent engine of ``reference.py``, drawn ones by an engine
    with all the memory it wants.
    """

    def __init__(self, model: StagedModel) -> None:
        self.model = model
        self._known: dict[object, Continuation] = {}
        self.largest_difference = 0.0
        """Of a logprob from the one known, among the results checked."""

    def alone(self, request: Request, layout: str, first_token: str = "full") -> Continuation:
        """What the request yields alone."""
        if request.sampling.temperature > 0:
            return self._drawn(request, layout, first_token)
        # A shorter continuation is the beginning of a longer one, under equal rules and tokens.
        tokens, force = max(LONGEST, request.new_tokens), request.force
        if force is not None and list(force) == FORCED[: len(force)]:
            force = FORCED
        whole = dataclasses.replace(
            request, force=force, max_new_tokens=tokens, stop_ids=frozenset()
        )
        forced = None if force is None else tuple(force)
        key = (tuple(request.prompt), request.exit, forced, tokens, layout, first_token)
        if key not in self._known:
            with torch.inference_mode():
                known = continue_alone(self.model, whole, layout, first_token=first_token)
            self._known[key] = known
        return _shortened(self._known[key], request)

    def _drawn(self, request: Request, layout: str, first_token: str) -> Continuation:
        config = EngineConfig(max_residents=1, kv_layout=layout, first_token=first_token)
        (result,) = Engine(self.model, config).run([dataclasses.replace(request, arrival_s=0.0)])
        return Continuation(
            result.tokens,
            result.executed_depths,
            result.requested_depths,
            result.logprobs,
            result.stop_depth,
        )

    def check(self, served: Served, batch: list[Request]) -> None:
        """Every result is what its request yields alone; a cancelled one is a beginning of it."""
        config = served.engine.config
        for request in batch:
            result = served.results[request.id]
            known = self.alone(request, config.kv_layout, config.first_token)
            if known.margins and min(known.margins) < TOLERANCE:
                continue
            check_result(known, result, request.id in served.cancelled)
            pairs = zip(known.logprobs, result.logprobs, strict=False)
            self.largest_difference = max(
                [self.largest_difference, *(abs(a - b) for a, b in pairs)]
            )


@functools.cache
def oracle_of(name: str) -> Oracle:
    """One for each of the tiny models."""
    return Oracle(model_of(name))


def _shortened(whole: Continuation, request: Request) -> Continuation:
    """The beginning of a continuation that a request's own limit and stops leave of it."""
    stops = frozenset[int]() if request.force is not None else request.stop_ids
    tokens = whole.tokens[: request.new_tokens]
    end = next((i for i, token in enumerate(tokens) if token in stops), None)
    n = len(tokens) if end is None else end
    return Continuation(
        tokens[:n],
        whole.executed[:n],
        whole.requested[:n],
        whole.logprobs[:n],
        None if end is None or end == 0 else whole.executed[end],
        whole.margins[: n + 1],
    )


def check_result(known: Continuation, result: RequestResult, cancelled: bool = False) -> None:
    """A result against what is known; of a cancelled request, as far as it came."""
    n = len(result.tokens) if cancelled else len(known.tokens)
    assert result.error is None
    assert result.tokens == known.tokens[:n]
    assert result.executed_depths == known.executed[:n]
    assert result.requested_depths == known.requested[:n]
    assert result.logprobs == pytest.approx(known.logprobs[:n], abs=TOLERANCE)
    if cancelled:
        assert result.finish_reason is FinishReason.CANCELLED
        return
    assert result.stop_depth == known.stop_depth
    assert result.finish_reason is not FinishReason.CANCELLED

"""The KV cache's promises: rows are taken when first written, shared when settled, never lost."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from cdbench.errors import UsageError
from cdbench.models.base import ModelDims
from cdbench.runtime.cache_shape import slots_of_layout as slots_of
from cdbench.runtime.core import IntArray, Stage
from cdbench.runtime.kv_cache import KVCache
from cdbench.runtime.row_pool import RowPool
from cdbench.runtime.stage_cache import GROWTH_STEP_POSITIONS, RowTable, SavedRows, StageCache
from tests import pressure
from tests.staged import DIMS

CORE_ONLY = dataclasses.replace(DIMS, prelude_layers=0, coda_layers=0)
CPU = torch.device("cpu")
RESIDENTS = 4


def stage_cache(slots: int, rows: int = 64, dims: ModelDims = CORE_ONLY) -> StageCache:
    cache = StageCache(2, slots, RESIDENTS, dims, torch.float64, CPU)
    cache.pool.grow(rows)
    return cache


def kv_cache(layout: str = "per-loop", budget: int | None = None, loops: int = 4) -> KVCache:
    return KVCache(DIMS, layout, loops, RESIDENTS, budget, torch.float64, CPU)


def ints(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def run_token(cache: StageCache, resident: int, position: int, depth: int) -> list[int]:
    """The rows a token writes at loops 1 … depth, before it settles."""
    return [
        int(cache.write_rows(ints(resident), ints(position), ints(loop))[0])
        for loop in range(1, depth + 1)
    ]


@pytest.mark.parametrize(
    ("layout", "loops", "slots"),
    [
        ("per-loop", 4, 4),
        ("first-shared", 4, 2),
        ("first-shared", 1, 1),
        ("shared", 4, 1),
        ("slots:3", 4, 3),
        ("slots:9", 4, 4),
        ("slots:1", 4, 1),
    ],
)
def test_layout_gives_slots(layout: str, loops: int, slots: int) -> None:
    assert slots_of(layout, loops) == slots


@pytest.mark.parametrize(
    "layout", ["", "slots", "slots:", "slots:0", "slots:-1", "slots:x", "last"]
)
def test_unknown_layout_is_refused_by_name(layout: str) -> None:
    with pytest.raises(UsageError, match="per-loop, first-shared, shared or slots:M"):
        slots_of(layout, 4)


@given(slots=st.integers(1, 5), depth=st.integers(1, 8))
def test_a_row_is_taken_only_when_its_slot_is_first_written(slots: int, depth: int) -> None:
    cache = stage_cache(slots)
    rows = run_token(cache, resident=1, position=0, depth=depth)
    assert cache.pool.rows_in_use == min(depth, slots)
    assert len(set(rows[:slots])) == min(depth, slots), "slots share a row before settling"
    assert set(rows[slots:]) <= {rows[min(depth, slots) - 1]}, "a later loop overwrites slot m"


def test_a_repeated_readout_overwrites_its_one_row() -> None:
    coda = stage_cache(slots=1)
    assert len({run_token(coda, 0, 3, depth=1)[0] for _ in range(4)}) == 1
    assert coda.pool.rows_in_use == 1


@given(slots=st.integers(1, 5), depths=st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_settling_points_unwritten_slots_at_the_deepest_row(slots: int, depths: list[int]) -> None:
    cache = stage_cache(slots)
    written = [run_token(cache, resident, 0, depth) for resident, depth in enumerate(depths)]
    before = cache.pool.rows_in_use
    who = np.arange(len(depths))
    cache.settle(who, np.zeros_like(who), np.array(depths))
    assert cache.pool.rows_in_use == before
    for resident, rows in enumerate(written):
        expected = [rows[min(slot, len(rows) - 1)] for slot in range(slots)]
        assert cache.table.host[resident, :, 0].tolist() == expected


@given(depths=st.lists(st.integers(1, 5), min_size=1, max_size=6), slots=st.integers(1, 4))
def test_release_gives_back_every_row_and_clears_the_line(depths: list[int], slots: int) -> None:
    cache = stage_cache(slots)
    kept = run_token(cache, 0, 0, 2)
    for position, depth in enumerate(depths):
        run_token(cache, 1, position, depth)
        cache.settle(ints(1), ints(position), ints(depth))
    cache.release(1)
    assert cache.pool.rows_in_use == len(set(kept))
    assert not cache.table.host[1].any()
    assert cache.table.host[0].any()


def test_a_released_row_is_handed_out_once() -> None:
    cache = stage_cache(slots=2, rows=4)
    run_token(cache, 0, 0, 2)
    cache.release(0)
    rows = [*run_token(cache, 1, 0, 2), *run_token(cache, 2, 0, 2)]
    assert sorted(rows) == [1, 2, 3, 4]


@given(first=st.integers(1, 8), more=st.integers(0, 8), taken=st.integers(0, 8))
def test_growing_a_pool_keeps_rows_and_numbers(first: int, more: int, taken: int) -> None:
    pool = RowPool(2, CORE_ONLY, torch.float64, CPU)
    pool.grow(first)
    held = pool.take(min(taken, first))
    for layer in pool.layers:
        layer[held] = torch.from_numpy(held).double()[:, None, None, None]
    pool.grow(first + more)
    assert pool.rows == first + more
    assert pool.rows_in_use == held.size
    for layer in pool.layers:
        assert (layer[held, 0, 0, 0].numpy() == held).all()
    rest = pool.take(pool.rows - held.size)
    assert sorted([*held, *rest]) == list(range(1, pool.rows + 1))


def test_growing_the_table_keeps_its_lines() -> None:
    cache = stage_cache(slots=2)
    rows = run_token(cache, 1, 5, 2)
    cache.hold_positions(GROWTH_STEP_POSITIONS + 1)
    assert cache.table.host.shape[-1] == 2 * GROWTH_STEP_POSITIONS
    assert cache.table.host[1, :, 5].tolist() == rows
    assert cache.lines(torch.tensor([1]), torch.tensor([1]), 6)[0].tolist() == [0] * 5 + rows[1:]
    cache.write_rows(ints(1), ints(GROWTH_STEP_POSITIONS), ints(1))
    assert cache.table.on_device[1, 0, GROWTH_STEP_POSITIONS] > 0, "the device's table fell behind"


def test_row_zero_stays_zero_and_unused_entries_read_it() -> None:
    cache = stage_cache(slots=2, rows=6)
    for resident in range(3):
        rows = ints(*run_token(cache, resident, 0, 2))
        assert (rows > 0).all()
        kv = torch.ones((2, DIMS.kv_heads, DIMS.head_dim), dtype=torch.float64)
        for layer in range(2):
            cache.store(layer, torch.from_numpy(rows), kv, kv)
    assert not any(layer[0].any() for layer in cache.pool.layers)
    assert all(layer[1:-1].all() for layer in cache.pool.layers)
    assert not any(layer[cache.pool.scratch_row].any() for layer in cache.pool.layers)
    assert cache.lines(torch.tensor([3]), torch.tensor([0]), 4).tolist() == [[0, 0, 0, 0]]


def test_gather_returns_what_store_wrote() -> None:
    cache = stage_cache(slots=1)
    rows = torch.tensor([3, 5])
    k, v = torch.randn(2, 2, DIMS.kv_heads, DIMS.head_dim, dtype=torch.float64)
    cache.store(1, rows, k, v)
    gathered = cache.gather(1, torch.tensor([5, 0, 3]))
    torch.testing.assert_close(gathered[:, 0], torch.stack([k[1], torch.zeros_like(k[0]), k[0]]))
    torch.testing.assert_close(gathered[2, 1], v[0])
    assert not cache.pool.layers[0].any(), "the other layer was written"


@pytest.mark.parametrize(("layout", "slots"), [("per-loop", 4), ("first-shared", 2), ("shared", 1)])
def test_a_position_costs_the_core_slots_and_one_row_per_boundary_stage(
    layout: str, slots: int
) -> None:
    cache = kv_cache(layout)
    layer_bytes = 2 * DIMS.kv_heads * DIMS.head_dim * 8
    layers = DIMS.prelude_layers + slots * DIMS.core_layers + DIMS.coda_layers
    assert cache.position_bytes == layers * layer_bytes
    assert {s: c.slots for s, c in cache.stages.items()} == {
        Stage.PRELUDE: 1,
        Stage.CORE: slots,
        Stage.CODA: 1,
    }


@given(positions=st.integers(1, 40), layout=st.sampled_from(["per-loop", "first-shared", "shared"]))
def test_pools_keep_to_the_budget_and_the_least_one_holds_its_positions(
    positions: int, layout: str
) -> None:
    shape = kv_cache(layout).shape
    budget = shape.budget_for(positions)
    cache = kv_cache(layout, budget)
    assert cache.could_ever_hold(positions)
    held = sum(c.pool.rows * c.pool.row_bytes for c in cache.stages.values())
    assert held <= budget
    # Little less no longer does, and the split leaves little over.
    assert shape.holds(budget - 3 * shape.position_bytes) < positions
    assert budget - held < 2 * shape.position_bytes


def test_a_model_without_boundary_layers_spends_the_whole_budget_on_its_core() -> None:
    cache = KVCache(CORE_ONLY, "per-loop", 4, RESIDENTS, None, torch.float64, CPU)
    unit = cache.position_bytes
    assert cache.shape.pool_rows(10 * unit + unit // 2) == {Stage.CORE: 42}
    assert cache.shape.budget_for(7) == 7 * unit


def prompt_of(length: int, start: int = 1) -> IntArray:
    return np.arange(start, start + length)


def test_a_prompts_rows_are_taken_as_it_is_opened() -> None:
    cache = kv_cache(budget=kv_cache().shape.budget_for(20))
    free = cache.free_rows
    assert cache.open_prompt(0, prompt_of(6), 9, None) == 0
    taken = {stage: free[stage] - rows for stage, rows in cache.free_rows.items()}
    assert taken == cache.prompt_rows(6, 9, cached=0)
    assert taken == {Stage.PRELUDE: 7, Stage.CORE: 24, Stage.CODA: 6}
    cache.release(0)
    assert cache.free_rows == free


def test_without_a_budget_the_pool_grows_to_fit() -> None:
    cache = kv_cache()
    cache.open_prompt(0, prompt_of(2), 5, None)
    cache.open_prompt(1, prompt_of(3), 200, None)
    assert cache.capacity_positions >= 205
    assert cache.stages[Stage.CORE].pool.rows >= 205 * cache.slots
    assert cache.stages[Stage.CODA].table.host.shape[-1] >= 200


def test_peak_bytes_remember_the_most_rows_in_use() -> None:
    cache = kv_cache("shared")
    cache.open_prompt(0, prompt_of(3), 3, None)
    most = 3 * cache.position_bytes
    cache.release(0)
    assert cache.rows_in_use == 0
    assert cache.peak_bytes == most
    cache.start_afresh()
    assert cache.peak_bytes == 0


@pytest.mark.parametrize("layout", ["per-loop", "first-shared", "shared"])
def test_saved_rows_come_back_bit_for_bit_in_other_rows(layout: str) -> None:
    cache = kv_cache(layout, budget=kv_cache(layout).shape.budget_for(40))
    cache.open_prompt(0, prompt_of(4), 9, None)
    core = cache.stages[Stage.CORE]
    run_token(core, 0, 4, 2)
    core.settle(ints(0), ints(4), ints(2))
    run_token(core, 0, 5, 3)
    for stage in cache.stages.values():
        for layer in stage.pool.layers:
            layer[1:].normal_()

    def seen(resident: int) -> list[torch.Tensor]:
        return [
            layer[stage.table.on_device[resident, :, :6].long()]
            for stage in cache.stages.values()
            for layer in stage.pool.layers
        ]

    before = seen(0)
    saved = cache.save(0)
    assert cache.rows_in_use == 0
    cache.open_prompt(1, prompt_of(7), 9, None)
    cache.restore(2, saved)
    assert all(torch.equal(a, b) for a, b in zip(seen(2), before, strict=True))
    shared_rows = core.table.host[2, :, 4]
    assert len(set(shared_rows.tolist())) == min(2, cache.slots), "settled slots stay one row"
    cache.release(1)
    cache.release(2)
    assert cache.rows_in_use == 0


class CacheMachine(RuleBasedStateMachine):
    """Tokens loop, settle, and residents leave in any order: rows are never shared or lost."""

    @initialize(slots=st.integers(1, 4), mirrored=st.booleans())
    def start(self, slots: int, mirrored: bool) -> None:
        self.cache = stage_cache(slots, rows=1)
        # As on an accelerator, where the device has a table of its own.
        self.cache.table.mirrored = mirrored
        self.cache.table.mirror()
        self.loop = [0] * RESIDENTS
        self.positions = [0] * RESIDENTS

    @rule(resident=st.integers(0, RESIDENTS - 1))
    def loop_on(self, resident: int) -> None:
        self.loop[resident] += 1
        if self.cache.pool.rows_in_use == self.cache.pool.rows:
            self.cache.pool.grow(self.cache.pool.rows + 3)
        where = ints(resident), ints(self.positions[resident]), ints(self.loop[resident])
        assert self.cache.write_rows(*where)[0] > 0

    @rule(resident=st.integers(0, RESIDENTS - 1))
    @precondition(lambda self: any(self.loop))
    def exit(self, resident: int) -> None:
        if self.loop[resident]:
            where = ints(self.positions[resident]), ints(self.loop[resident])
            self.cache.settle(ints(resident), *where)
            self.positions[resident] += 1
            self.loop[resident] = 0

    @rule(resident=st.integers(0, RESIDENTS - 1))
    def leave(self, resident: int) -> None:
        self.cache.release(resident)
        self.loop[resident] = self.positions[resident] = 0

    @invariant()
    def rows_belong_to_one_token_each(self) -> None:
        owners: dict[int, tuple[int, int]] = {}
        for resident, _, position in np.argwhere(self.cache.table.host):
            for row in set(self.cache.table.host[resident, :, position].tolist()) - {0}:
                assert owners.setdefault(row, (resident, position)) == (resident, position)
        assert len(owners) == self.cache.pool.rows_in_use

    @invariant()
    def the_devices_table_follows_the_hosts(self) -> None:
        assert (self.cache.table.on_device.numpy() == self.cache.table.host).all()

    @rule(positions=st.integers(1, 3 * GROWTH_STEP_POSITIONS))
    def lengthen(self, positions: int) -> None:
        self.cache.hold_positions(positions)

    @invariant()
    def settled_tokens_can_be_read_in_every_slot(self) -> None:
        for resident, length in enumerate(self.positions):
            assert (self.cache.table.host[resident, :, :length] > 0).all()


CacheMachine.TestCase.settings = settings(
    max_examples=20, stateful_step_count=30, deadline=None, derandomize=True
)
TestCacheMachine = CacheMachine.TestCase


# Residents and cached prefixes together.

LOOPS = 4


@dataclass
class Held:
    """A request of the machine below: what it asked for, and how far it is."""

    name: int
    prompt: IntArray
    positions: int
    cached: int = 0
    closed: bool = False
    length: int = 0
    depths: list[int] = field(default_factory=list)

    def content(self, position: int, loop: int) -> float:
        """What a row must hold: a prompt's depend on the ids up to there, later tokens' on whom."""
        if position < self.prompt.size:
            return float(hash((tuple(self.prompt[: position + 1].tolist()), loop)) % 2**40)
        return float(hash((self.name, position, loop)) % 2**40)


PROMPTS = st.sampled_from([[1, 2, 3, 4], [1, 2, 3], [1, 2, 9], [1], [1, 2, 3, 4, 1], [7, 7]])


class PrefixMachine(RuleBasedStateMachine):
    """Requests come, are cached, decode, are moved away and back, and leave, in any order.

    Every row is marked with what was written to it, so that a row shared wrongly, lost, or freed
    under a reader shows as a wrong mark or as a row with two owners.
    """

    @initialize(
        layout=st.sampled_from(["per-loop", "first-shared", "shared", "slots:3"]),
        positions=st.none() | st.integers(5, 9) | st.integers(10, 24),
        mirrored=st.booleans(),
    )
    def start(self, layout: str, positions: int | None, mirrored: bool) -> None:
        budget = None if positions is None else kv_cache(layout).shape.budget_for(positions)
        self.cache = KVCache(
            DIMS, layout, LOOPS, RESIDENTS, budget, torch.float64, CPU, prefix_cache=True
        )
        for table in self.tables():
            table.mirrored = mirrored
            table.mirror()
        self.here: dict[int, Held] = {}
        self.away: list[tuple[Held, dict[Stage, SavedRows]]] = []
        self.names = itertools.count()

    def tables(self) -> list[RowTable]:
        return [
            table
            for stage in self.cache.stages.values()
            for table in (stage.table, stage.by_loop)
            if table is not None
        ]

    def free_residents(self) -> list[int]:
        return sorted(set(range(RESIDENTS)) - self.here.keys())

    def makes_room(self, rows: dict[Stage, int]) -> bool:
        """Give up prefixes until so many rows are free; False where they cannot be."""
        free = self.cache.free_rows
        while any(free[stage] < count for stage, count in rows.items()):
            if not self.cache.evict_prefix():
                return False
            free = self.cache.free_rows
        return True

    def mark(self, stage: Stage, rows: IntArray, contents: list[float]) -> None:
        for layer in self.cache.stages[stage].pool.layers:
            layer[rows] = torch.tensor(contents, dtype=torch.float64)[:, None, None, None]

    # Prompts.

    @rule(prompt=PROMPTS, later=st.integers(0, 4))
    @precondition(lambda self: len(self.here) < RESIDENTS)
    def prefill(self, prompt: list[int], later: int) -> None:
        resident = self.opened(prompt, later)
        if resident is not None:
            self.closed(resident)

    @rule(prompt=PROMPTS, later=st.integers(0, 4))
    @precondition(lambda self: len(self.here) < RESIDENTS)
    def open(self, prompt: list[int], later: int) -> None:
        self.opened(prompt, later)

    @rule(data=st.data())
    @precondition(lambda self: any(not held.closed for held in self.here.values()))
    def close(self, data: st.DataObject) -> None:
        running = sorted(r for r, held in self.here.items() if not held.closed)
        self.closed(data.draw(st.sampled_from(running)))

    def opened(self, prompt: list[int], later: int) -> int | None:
        """Who runs this prompt now; None where there is no room for it."""
        ids = np.array(prompt, dtype=np.int64)
        held = Held(next(self.names), ids, ids.size + later)
        if not self.cache.could_ever_hold(held.positions):
            return None
        while True:
            prefix = self.cache.cached_prefix(ids, held.positions)
            held.cached = prefix.length if prefix is not None else 0
            assert held.cached < ids.size, "the last position always runs"
            rows = self.cache.prompt_rows(ids.size, held.positions, held.cached)
            free = self.cache.free_rows
            if self.cache.budget_bytes is None or all(free[s] >= n for s, n in rows.items()):
                break
            if not self.cache.evict_prefix():
                return None
        resident = self.free_residents()[0]
        before = self.cache.rows_in_use
        assert self.cache.open_prompt(resident, ids, held.positions, prefix) == held.cached
        assert self.cache.rows_in_use - before == sum(rows.values()), "not the rows announced"
        self.here[resident] = held
        run = np.arange(held.cached, ids.size)
        who = np.full_like(run, resident)
        for loop in range(1, LOOPS + 1):
            rows_T = self.cache.stages[Stage.CORE].prompt_rows(who, run, loop)
            assert (rows_T > 0).all()
            self.mark(Stage.CORE, rows_T, [held.content(p, loop) for p in run.tolist()])
        for stage in (Stage.PRELUDE, Stage.CODA):
            rows_T = self.cache.stages[stage].prompt_rows(who, run, 1)
            self.mark(stage, rows_T, [held.content(p, 0) for p in run.tolist()])

        return resident

    def closed(self, resident: int) -> None:
        held = self.here[resident]
        self.cache.close_prompt(resident, held.prompt, held.positions)
        held.closed, held.length = True, held.prompt.size

    # Later tokens.

    @rule(data=st.data(), depth=st.integers(1, LOOPS))
    @precondition(lambda self: any(self.can_go_on(held) for held in self.here.values()))
    def decode(self, data: st.DataObject, depth: int) -> None:
        going = sorted(r for r, held in self.here.items() if self.can_go_on(held))
        resident = data.draw(st.sampled_from(going))
        held, position = self.here[resident], self.here[resident].length
        who, where = ints(resident), ints(position)
        wanted = {
            stage: cache.rows_missing(who, where, ints(1)) if stage is not Stage.CORE else 0
            for stage, cache in self.cache.stages.items()
        }
        wanted[Stage.CORE] = min(depth, self.cache.slots)
        if self.cache.budget_bytes is None:
            assert all(self.cache.free_rows[s] >= n for s, n in wanted.items()), "grown too little"
        if not self.makes_room(wanted):
            assert len(self.here) > 1, "a request alone has not the rows it was admitted for"
            return
        for stage in (Stage.PRELUDE, Stage.CODA):
            rows_T = self.cache.stages[stage].write_rows(who, where, ints(1))
            self.mark(stage, rows_T, [held.content(position, 0)])
        core = self.cache.stages[Stage.CORE]
        for loop in range(1, depth + 1):
            rows_T = core.write_rows(who, where, ints(loop))
            self.mark(Stage.CORE, rows_T, [held.content(position, loop)])
        core.settle(who, where, ints(depth))
        held.depths.append(depth)
        held.length += 1

    def can_go_on(self, held: Held) -> bool:
        return held.closed and held.length < held.positions

    # Leaving, for good or for a while.

    @rule(data=st.data())
    @precondition(lambda self: any(held.closed for held in self.here.values()))
    def release(self, data: st.DataObject) -> None:
        resident = data.draw(st.sampled_from(self.settled()))
        self.cache.release(resident)
        del self.here[resident]

    @rule(data=st.data())
    @precondition(
        lambda self: (
            self.cache.budget_bytes is not None and any(h.closed for h in self.here.values())
        )
    )
    def save(self, data: st.DataObject) -> None:
        resident = data.draw(st.sampled_from(self.settled()))
        held = self.here.pop(resident)
        self.away.append((held, self.cache.save(resident)))

    @rule(data=st.data())
    @precondition(lambda self: self.away and len(self.here) < RESIDENTS)
    def restore(self, data: st.DataObject) -> None:
        held, saved = self.away[-1]
        if not self.makes_room({stage: rows.rows for stage, rows in saved.items()}):
            return
        self.away.pop()
        resident = data.draw(st.sampled_from(self.free_residents()))
        self.cache.restore(resident, saved)
        self.here[resident] = held

    def settled(self) -> list[int]:
        return sorted(r for r, held in self.here.items() if held.closed)

    @rule()
    @precondition(lambda self: self.cache.prefixes.positions > 0)
    def evict(self) -> None:
        """One prefix goes, or none where all that are cached are read."""
        prefixes = self.cache.prefixes
        assert prefixes is not None
        before = prefixes.positions
        pinned = {id(edge) for node in self.cache._pinned.values() for edge in node.path()}
        unread = [n for n in prefixes._nodes() if n.parent is not None and id(n) not in pinned]
        assert self.cache.evict_prefix() == bool(unread)
        assert (prefixes.positions < before) == bool(unread)

    # Always.

    @invariant()
    def every_row_has_one_owner(self) -> None:
        pressure.check_cache(self.cache)

    @invariant()
    def nobody_keeps_more_than_its_worst_case(self) -> None:
        for resident, held in self.here.items():
            pressure.check_worst(self.cache, resident, held.prompt.size, held.positions)

    @invariant()
    def whoever_reads_finds_what_was_written(self) -> None:
        core = self.cache.stages[Stage.CORE]
        for resident, held in self.here.items():
            for position in range(held.length if held.closed else held.prompt.size):
                for stage in (Stage.PRELUDE, Stage.CODA):
                    cache = self.cache.stages[stage]
                    row = int(cache.table.on_device[resident, 0, position])
                    self.holds(stage, row, held.content(position, 0))
                slots = self.cache.slots if held.closed else 0
                for slot in range(1, slots + 1):
                    row = int(core.table.on_device[resident, slot - 1, position])
                    self.holds(
                        Stage.CORE, row, held.content(position, self.loop_in(held, slot, position))
                    )

    def loop_in(self, held: Held, slot: int, position: int) -> int:
        """The loop whose keys a slot holds once its token is complete."""
        if position < held.prompt.size:
            return LOOPS if slot == self.cache.slots else slot
        depth = held.depths[position - held.prompt.size]
        return depth if slot == self.cache.slots else min(slot, depth)

    def holds(self, stage: Stage, row: int, content: float) -> None:
        for layer in self.cache.stages[stage].pool.layers:
            assert row > 0
            assert (layer[row] == content).all(), f"{stage} row {row} holds something else"

    @invariant()
    def the_devices_tables_follow_the_hosts(self) -> None:
        for table in self.tables():
            assert (table.on_device.numpy() == table.host).all()

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for resident, held in list(self.here.items()):
            if not held.closed:
                self.cache.close_prompt(resident, held.prompt, held.positions)
            self.cache.release(resident)
        self.cache.clear_prefixes()
        assert self.cache.rows_in_use == 0


PrefixMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)
TestPrefixMachine = PrefixMachine.TestCase


def test_a_prefix_that_is_read_is_not_given_up() -> None:
    cache = KVCache(DIMS, "shared", LOOPS, RESIDENTS, None, torch.float64, CPU, prefix_cache=True)
    for resident, ids in enumerate(([1, 2, 3], [1, 2, 4], [5, 6])):
        prompt = np.array(ids, dtype=np.int64)
        cache.open_prompt(resident, prompt, 5, cache.cached_prefix(prompt, 5))
        cache.close_prompt(resident, prompt, 5)
    assert cache.prefixes is not None
    assert not cache.evict_prefix(), "all three are read"
    cache.release(0)
    assert cache.evict_prefix()
    assert cache.prefixes.positions == 2 + 1 + 2, "3 went; 1 2 is read on the way to 4"
    assert not cache.evict_prefix()
    cache.release(2)
    assert cache.evict_prefix()
    assert cache.prefixes.positions == 3
    cache.release(1)
    cache.clear_prefixes()
    assert cache.rows_in_use == 0

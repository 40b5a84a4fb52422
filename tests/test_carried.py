"""What residents carry is gathered once for as long as a batch stays the same, and never stale."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch
from torch import Tensor

from cdbench.runtime.attention.causal import causal_bias
from cdbench.runtime.carried import Carried
from cdbench.runtime.core import ExitPolicy, IntArray, Request
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from tests import pressure, tiny
from tests.staged import DIMS

F64, CPU = torch.float64, torch.device("cpu")


def ids(*residents: int) -> IntArray:
    return np.array(residents, np.int64)


def filled() -> Carried:
    """Lines that tell residents and tensors apart."""
    carried = Carried(6, DIMS, F64, F64, CPU)
    assert carried.injection is not None
    numbers = torch.arange(6, dtype=F64)[:, None].expand(6, DIMS.hidden_size)
    carried.begin(torch.arange(6), numbers.clone(), 10 + numbers)
    return carried


def rows(values: Tensor | None) -> list[float]:
    assert values is not None
    return values[:, 0].tolist()


def ones(count: int, value: float) -> Tensor:
    return torch.full((count, DIMS.hidden_size), value, dtype=F64)


def test_a_batch_that_stays_is_what_the_last_loop_left_and_is_not_gathered_again() -> None:
    carried = filled()
    batch = carried.batch(ids(4, 1))
    assert (rows(batch.state), rows(batch.injection)) == ([4, 1], [14, 11])
    left = ones(2, 0.5)
    carried.keep(batch.where, left, None, batch)
    again = carried.batch(ids(4, 1))
    assert again.state is left
    assert again.injection is batch.injection
    # The lines are the truth all the same.
    assert rows(carried.state) == [0, 0.5, 2, 3, 0.5, 5]


@pytest.mark.parametrize("residents", [ids(1, 4), ids(4), ids(4, 1, 2), ids(4, 2)])
def test_another_batch_is_gathered(residents: IntArray) -> None:
    carried = filled()
    batch = carried.batch(ids(4, 1))
    carried.keep(batch.where, ones(2, 0.5), None, batch)
    other = carried.batch(residents)
    assert rows(other.state) == [{1: 0.5, 4: 0.5}.get(r, r) for r in residents.tolist()]
    assert rows(other.injection) == (10 + residents).tolist()


def test_whoever_writes_a_line_ends_the_batch() -> None:
    carried = filled()
    one = torch.tensor([1])
    writes = {
        "begin": lambda: carried.begin(one, ones(1, 7.0), ones(1, 8.0)),
        "keep": lambda: carried.keep(one, ones(1, 7.0), None),
        "restore": lambda: carried.restore(1, [ones(1, 7.0)[0], ones(1, 8.0)[0]]),
    }
    for name, write in writes.items():
        batch = carried.batch(ids(4, 1))
        carried.keep(batch.where, ones(2, 0.5), None, batch)
        write()
        assert rows(carried.batch(ids(4, 1)).state) == [0.5, 7.0], name


def test_a_caller_may_use_its_array_again() -> None:
    carried, mine = filled(), ids(4, 1)
    batch = carried.batch(mine)
    carried.keep(batch.where, ones(2, 0.5), None, batch)
    mine[:] = 2, 3
    assert rows(carried.batch(mine).state) == [2, 3]
    assert batch.where.tolist() == [4, 1]


def gathers(engine: Engine, requests: list[Request], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """By core launch of decode rows, how often states were gathered for it."""
    counts: list[int] = []
    right_rows, right_core = Carried.rows, type(engine.runner).core

    def counted_rows(self: Carried, where: Tensor):
        counts[-1] += 1
        return right_rows(self, where)

    def counted_core(self, residents: IntArray):
        counts.append(0)
        return right_core(self, residents)

    monkeypatch.setattr(Carried, "rows", counted_rows)
    monkeypatch.setattr(type(engine.runner), "core", counted_core)
    assert all(result.error is None for result in engine.run(requests))
    return counts


@pytest.mark.parametrize("mode", ["static", "lockstep", "cdb"])
def test_with_no_exits_states_are_gathered_once_a_token(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = pressure.model_of("staged")
    loops = model.dims.max_loops
    requests = [Request(str(i), [1, 2, 3 + i], max_new_tokens=5) for i in range(4)]
    counts = gathers(Engine(model, EngineConfig(mode, 4)), requests, monkeypatch)
    assert len(counts) == 4 * loops
    assert counts == [1, *[0] * (loops - 1)] * 4


def test_a_batch_held_over_a_written_line_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules in which batches stay can fail: here, a new token goes on from the old state."""
    right = Carried.begin

    def forgetful(self: Carried, where: Tensor, state: Tensor, injection: Tensor | None) -> None:
        held = self._batch
        right(self, where, state, injection)
        self._batch = held

    model = tiny.ouro()
    request = Request("a", [1, 2, 3], max_new_tokens=6, exit=ExitPolicy("cdf", 0.6))
    (known,) = Engine(model, EngineConfig()).run([request])
    monkeypatch.setattr(Carried, "begin", forgetful)
    (wrong,) = Engine(model, EngineConfig()).run([request])
    assert wrong.logprobs != known.logprobs


@pytest.mark.parametrize("seed", range(12))
def test_batches_that_stay_and_change_give_every_request_what_it_yields_alone(seed: int) -> None:
    """Riding chunks, cancelled and preempted requests, prefixes, wide and narrow launches."""
    name = list(pressure.MODELS)[seed % len(pressure.MODELS)]
    rng, model = random.Random(f"stay {seed}"), pressure.model_of(name)
    batch = pressure.draw_batch(rng, pressure.palette_of(name, seed % 3))
    config = pressure.draw_config(rng, model, batch)
    # As wide as there are residents: a batch stays for as long as nobody leaves or comes.
    config = dataclasses.replace(config, width=None, ride=seed % 2 == 0)
    served = pressure.serve(model, config, batch, rng, cancel_rate=0.03, check_every=4)
    oracle_of(name).check(served, batch)


_ORACLES: dict[str, pressure.Oracle] = {}


def oracle_of(name: str) -> pressure.Oracle:
    return _ORACLES.setdefault(name, pressure.Oracle(pressure.model_of(name)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_query_reads_up_to_its_own_position(dtype: torch.dtype) -> None:
    bias = causal_bias(ids(0, 3, 1), context=4, reach=64, dtype=dtype, device=CPU)
    seen = 0.0
    hidden = float("-inf")
    assert bias.dtype is dtype
    assert bias.tolist() == [
        [seen, hidden, hidden, hidden],
        [seen, seen, seen, seen],
        [seen, seen, hidden, hidden],
    ]


def test_a_bias_as_long_as_the_table() -> None:
    bias = causal_bias(ids(63, 0), context=64, reach=64, dtype=F64, device=CPU)
    assert (bias == 0).sum(1).tolist() == [64, 1]

"""What reads logits goes over the vocabulary by chunks: the same numbers, no wide copy of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cdbench.runtime import sampling, vocabulary
from cdbench.runtime.core import ExitPolicy, Request, SamplingParams
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.exit_rule import ExitRule, Needs
from cdbench.runtime.exits import RULES
from cdbench.runtime.sampling import draw, logprobs_of
from cdbench.runtime.scoring.continuation import Continuation
from cdbench.runtime.scoring.score import score
from cdbench.runtime.vocabulary import likeliest, log_probabilities, log_total, mass
from tests import tiny
from tests.staged import DIMS

NEAR_A_BOUNDARY = 1e-12
ROWS, VOCAB = 64, 65_536
READOUT_RULES = [name for name, rule in RULES.items() if rule.needs is Needs.LOGITS]


@contextmanager
def small(chunk: int = 3, ranks: int = 4, cells: int = 20, group: int = 3) -> Iterator[None]:
    """Sizes at which a vocabulary of some ten tokens is a large one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "CHUNK_TOKENS", chunk)
        patch.setattr(vocabulary, "GROUP_TOKENS", group)
        patch.setattr(sampling, "FIRST_RANKS", ranks)
        patch.setattr(sampling, "MOST_CELLS", cells)
        yield


# The same numbers.

matrices = st.integers(1, 12).flatmap(
    lambda size: st.lists(
        st.lists(st.integers(-6, 6), min_size=size, max_size=size), min_size=1, max_size=5
    )
)
"""Rows of half logits: many are equal."""


def logits_of(matrix: Sequence[Sequence[int]], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(matrix).to(dtype) / 2


@given(matrix=matrices, chunk=st.integers(1, 13))
def test_sums_over_chunks_are_those_over_the_row(matrix: list[list[int]], chunk: int) -> None:
    logits = logits_of(matrix)
    with small(chunk):
        torch.testing.assert_close(log_total(logits), logits.logsumexp(-1))
        parts = torch.cat(list(log_probabilities(logits)), dim=-1)
        torch.testing.assert_close(parts, logits.log_softmax(-1))
        best = logits.amax(-1, keepdim=True)
        warm = mass(logits, best, torch.full_like(best, 2.0))
        torch.testing.assert_close(warm, ((logits - best) / 2).exp().sum(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = (4 * torch.randn(3, 50)).to(dtype)
    for size in (7, 64):
        with small(size):
            total = log_total(logits)
            assert total.dtype is torch.float32
            torch.testing.assert_close(total, logits.float().logsumexp(-1))
            assert next(log_probabilities(logits)).dtype is torch.float32


def test_impossible_tokens_add_nothing_and_a_nan_is_seen() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0, -torch.inf, -torch.inf]])
    with small(2):
        assert float(log_total(logits)) == pytest.approx(np.log(2))
        for place in range(5):
            broken = logits.clone()
            broken[0, place] = torch.nan
            assert log_total(broken).isnan().all()


def test_a_row_of_one_chunk_has_the_bits_it_has_always_had() -> None:
    torch.manual_seed(0)
    logits, tokens = torch.randn(5, 300), torch.arange(5)
    known = logits.gather(-1, tokens[:, None])[:, 0] - logits.logsumexp(-1)
    assert torch.equal(logprobs_of(logits, tokens), known)


@given(matrix=matrices, group=st.integers(1, 5))
def test_the_likeliest_is_the_first_of_the_best(matrix: list[list[int]], group: int) -> None:
    with small(group=group):
        found = likeliest(logits_of(matrix))
    assert found.tolist() == [row.index(max(row)) for row in matrix]


@pytest.mark.parametrize("place", range(11))
def test_of_a_row_with_a_nan_the_likeliest_is_that_one(place: int) -> None:
    logits = torch.arange(11.0)[None].repeat(2, 1)
    logits[1, place] = torch.nan
    with small(group=3):
        assert likeliest(logits).tolist() == [10, place]


# Rules that read logits.


@pytest.mark.parametrize("name", READOUT_RULES)
@given(readouts=st.lists(matrices, min_size=1, max_size=4), chunk=st.integers(1, 5))
def test_a_rules_signal_is_the_same_by_chunks(
    name: str, readouts: list[list[list[int]]], chunk: int
) -> None:
    rule, size = RULES[name], min(len(m[0]) for m in readouts)
    assume(size > 1)
    whole, parted = (memory_of(rule, 1, size, torch.float64) for _ in range(2))
    for matrix in readouts:
        logits = logits_of([matrix[0][:size]])
        known = rule.signal((logits,), whole)
        with small(chunk):
            torch.testing.assert_close(rule.signal((logits,), parted), known)


@pytest.mark.parametrize("name", [name for name in READOUT_RULES if RULES[name].remembers_logits])
def test_a_readout_remembered_in_its_own_dtype_loses_nothing(name: str) -> None:
    torch.manual_seed(0)
    rule = RULES[name]
    narrow, wide = (memory_of(rule, 3, 50, dtype) for dtype in (torch.bfloat16, torch.float32))
    for _ in range(3):
        logits = (4 * torch.randn(3, 50)).bfloat16()
        assert torch.equal(rule.signal((logits,), narrow), rule.signal((logits,), wide))


def memory_of(rule: ExitRule, rows: int, size: int, dtype: torch.dtype) -> Tensor:
    """What a rule remembers of some rows before loop 1, over a vocabulary of some size."""
    return rule.memory_start(replace(DIMS, vocab_size=size)).to(dtype).repeat(rows, 1)


# Draws.


def sorted_draw(
    logits_TV: Tensor, temperature_T: Tensor, top_k_T: Tensor, top_p_T: Tensor, uniform_T: Tensor
) -> tuple[Tensor, float]:
    """Every row sorted whole, and how close the draw came to falling on another token."""
    logits, order = logits_TV.double().sort(dim=-1, descending=True, stable=True)
    probs = ((logits - logits[:, :1]) / temperature_T.double()[:, None]).softmax(-1)
    rank = torch.arange(probs.shape[-1])
    limit = torch.where(top_k_T > 0, top_k_T, probs.shape[-1])
    probs = probs * (rank < limit[:, None])
    reached = probs.cumsum(-1)
    share = top_p_T.double()[:, None] * reached[:, -1:]
    cut = (reached - probs - share).abs()[:, 1:]
    kept = (rank == 0) | ((probs > 0) & (reached - probs < share))
    kept_mass = (probs * kept).cumsum(-1)
    target = uniform_T.double()[:, None] * kept_mass[:, -1:]
    chosen = (kept_mass <= target).sum(-1, keepdim=True)
    tokens = order.gather(-1, torch.minimum(chosen, kept.sum(-1, keepdim=True) - 1))[:, 0]
    closest = (kept_mass - target).abs().min()
    cut_closest = cut[(top_p_T < 1)].min() if cut.numel() and bool((top_p_T < 1).any()) else closest
    return tokens, float(torch.minimum(closest, cut_closest))


@st.composite
def drawn_rows(
    draw_from: st.DrawFn, matrix: list[list[int]]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Temperature, top_k, top_p and the number of each row."""
    rows = range(len(matrix))
    temperature = [draw_from(st.sampled_from([0.05, 0.5, 1.0, 3.0])) for _ in rows]
    top_k = [draw_from(st.integers(0, 14)) for _ in rows]
    top_p = [draw_from(st.sampled_from([1.0, 1.0, 0.95, 0.5, 1e-9])) for _ in rows]
    number = [draw_from(st.floats(0, 1, exclude_max=True)) for _ in rows]
    return (
        torch.tensor(temperature, dtype=torch.float64),
        torch.tensor(top_k),
        torch.tensor(top_p, dtype=torch.float64),
        torch.tensor(number, dtype=torch.float64),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@given(matrix=matrices, data=st.data())
def test_first_ranks_draw_what_sorting_everything_does(
    dtype: torch.dtype, matrix: list[list[int]], data: st.DataObject
) -> None:
    """Among ties too, with cuts of any kind, and where the first ranks leave a row open."""
    logits, rows = logits_of(matrix, dtype), data.draw(drawn_rows(matrix))
    wanted, closest = sorted_draw(logits, *rows)
    assume(closest > NEAR_A_BOUNDARY)
    with small():
        assert torch.equal(draw(logits, *rows), wanted)


def test_every_way_to_settle_a_row_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the property above could hold of sorting alone."""
    logits = torch.arange(10.0).flip(0)[None].repeat(5, 1) / 4
    ones = torch.ones(5, dtype=torch.float64)
    top_k = torch.tensor([3, 0, 0, 0, 7])
    top_p = torch.tensor([1.0, 1.0, 0.3, 1.0, 1.0])
    number = torch.tensor([0.9, 0.1, 0.9, 0.95, 0.1])
    sorted_rows: list[int] = []
    whole = sampling._draw_sorted

    def seen(logits_TV: Tensor, cuts: sampling.Cuts) -> Tensor:
        sorted_rows.extend(cuts.top_k_T.tolist())
        return whole(logits_TV, cuts)

    monkeypatch.setattr(sampling, "_draw_sorted", seen)
    with small():
        found = draw(logits, ones, top_k, top_p, number)
    assert sorted_rows == [0, 7], "the uncut draw beyond the first ranks, and a top_k beyond them"
    assert torch.equal(found, sorted_draw(logits, ones, top_k, top_p, number)[0])


def test_a_large_vocabulary_draws_what_sorting_everything_does() -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(40, 9000)).bfloat16()
    cuts = (
        torch.rand(40).double() + 0.5,
        torch.tensor([0, 50, 0, 2000]).repeat(10),
        torch.tensor([1.0, 1.0, 0.9, 0.99]).double().repeat(10),
        torch.rand(40).double(),
    )
    wanted, closest = sorted_draw(logits, *cuts)
    assert closest > NEAR_A_BOUNDARY
    assert torch.equal(draw(logits, *cuts), wanted)


# Memory.


class WideTensors(TorchDispatchMode):
    """Notes every tensor of more than ``most`` numbers that are wider than a logit."""

    def __init__(self, logits: torch.dtype, most: int) -> None:
        super().__init__()
        self.bytes, self.most = logits.itemsize, most
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(made, Tensor) and made.dtype.itemsize > self.bytes:
                held = made.untyped_storage().nbytes() // made.dtype.itemsize
                if held > self.most:
                    self.found.append(f"{func}: {made.dtype} {list(made.shape)}")
        return result


LARGE: dict[str, Callable[[Tensor], object]] = {
    "likeliest": likeliest,
    "logprobs": lambda logits: logprobs_of(logits, torch.arange(ROWS)),
    "top_k": lambda logits: draw(logits, *cuts_of(top_k=50)),
    "top_k and top_p": lambda logits: draw(logits, *cuts_of(top_k=5000, top_p=0.9)),
    "top_p": lambda logits: draw(logits, *cuts_of(top_p=0.8)),
    "uncut": lambda logits: draw(logits, *cuts_of()),
    **{
        name: lambda logits, rule=RULES[name]: rule.signal(  # type: ignore[misc]
            (logits,), kept_of(rule)
        )
        for name in READOUT_RULES
    },
}


def cuts_of(top_k: int = 0, top_p: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    numbers = (torch.arange(ROWS) + 0.5) / ROWS
    return torch.ones(ROWS), torch.full((ROWS,), top_k), torch.full((ROWS,), top_p), numbers


def kept_of(rule: ExitRule) -> Tensor:
    """As the engine keeps it: a readout in the model's dtype, all else in float32."""
    dtype = torch.bfloat16 if rule.remembers_logits else torch.float32
    return memory_of(rule, ROWS, VOCAB, dtype)


@pytest.mark.parametrize("name", LARGE)
def test_nothing_wider_than_the_logits_is_larger_than_a_chunk_of_them(name: str) -> None:
    torch.manual_seed(0)
    logits = (2 * torch.randn(ROWS, VOCAB)).bfloat16()
    # Memory is made beforehand; only what the work makes is looked at.
    with WideTensors(torch.bfloat16, ROWS * vocabulary.CHUNK_TOKENS) as wide:
        LARGE[name](logits)
    assert wide.found == []


def test_a_wide_copy_would_be_seen() -> None:
    logits = torch.zeros(ROWS, VOCAB, dtype=torch.bfloat16)
    with WideTensors(torch.bfloat16, ROWS * vocabulary.CHUNK_TOKENS) as wide:
        logits.float()
    assert len(wide.found) == 1


# Served.

MOST_ROWS = 8
"""Of a launch. With as many, a wide copy of two rows is larger than their chunks together."""


def served(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> list[str]:
    """What was wrong while some work ran: wide tensors, and vocabulary axes copied to the host."""
    copied: list[str] = []

    def watched(name: str) -> None:
        known = getattr(Tensor, name)

        def ask(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            if VOCAB in self.shape:
                copied.append(f"{name} of {list(self.shape)}")
            return known(self, *args, **kwargs)

        monkeypatch.setattr(Tensor, name, ask)

    for name in ("cpu", "numpy", "tolist"):
        watched(name)
    # What first ranks leave open is sorted a row at a time.
    monkeypatch.setattr(sampling, "MOST_CELLS", VOCAB)
    with WideTensors(torch.bfloat16, MOST_ROWS * vocabulary.CHUNK_TOKENS) as wide:
        work()
    return [*copied, *wide.found]


@pytest.mark.parametrize("build", [tiny.ouro, tiny.huginn], ids=["ouro", "huginn"])
def test_the_engine_makes_no_wide_copy_and_sends_no_logits_to_the_host(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(torch.bfloat16, vocab_size=VOCAB)
    thresholds = {name: RULES[name].default_threshold for name in READOUT_RULES}
    policies = [ExitPolicy(), *(ExitPolicy(name, x) for name, x in thresholds.items())]
    drawn = SamplingParams(temperature=1.0, seed=3), SamplingParams(temperature=0.7, top_k=20)
    batch = [
        Request(str(i), [i, 5, 9], 4, policy, sampling=(SamplingParams(), *drawn)[i % 3])
        for i, policy in enumerate(policies * 2)
    ]
    engine = Engine(model, EngineConfig(max_residents=MOST_ROWS))
    lengths: list[int] = []
    wrong = served(monkeypatch, lambda: lengths.extend(len(r.tokens) for r in engine.run(batch)))
    assert wrong == []
    assert lengths == [4] * len(batch)


def test_scoring_makes_no_wide_copy_and_sends_no_logits_to_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny.ouro(torch.bfloat16, vocab_size=VOCAB)
    items = [Continuation(str(i), (1, 2, i), (4, 5, 6)) for i in range(MOST_ROWS // 2)]
    scored: list[Any] = []
    wrong = served(monkeypatch, lambda: scored.extend(score(model, EngineConfig(), items)))
    assert wrong == []
    assert len(scored) == len(items)

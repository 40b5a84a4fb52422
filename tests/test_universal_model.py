"""The Universal Transformer: its halting-weighted readout, its coordinates and its files."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from cdbench.errors import UsageError
from cdbench.models.checkpoint import save_checkpoint
from cdbench.models.loading import load_model
from cdbench.models.registry import build_model
from cdbench.models.sequence import SequenceContext, loop_states
from cdbench.models.universal import LEFTOVER, MASS, MEAN, UniversalTransformer
from tests import tiny
from tests.tiny import UNIVERSAL_CONFIG

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]])
HIDDEN = 16


def universal(dtype: torch.dtype = torch.float64, **changes: Any) -> UniversalTransformer:
    model = tiny.universal(dtype, **changes)
    assert isinstance(model, UniversalTransformer)
    return model


def scripted() -> UniversalTransformer:
    """A model whose halting logit is the state's first channel."""
    model = universal()
    model.halting.weight.zero_()[0, 0] = 1.0
    model.halting.bias.zero_()
    return model


def scripted_states(halting: list[list[float]], seed: int) -> list[Tensor]:
    """Random states per loop ``[T, D]``; channel 0 is the logit of ``halting``, channel 1 one."""
    states = torch.randn(
        len(halting),
        len(halting[0]),
        HIDDEN,
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(seed),
    )
    states[:, :, 0] = torch.tensor(halting, dtype=torch.float64).logit()
    states[:, :, 1] = 1.0
    return list(states)


def fresh(rows: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.zeros(rows, MEAN + HIDDEN, dtype=dtype)


def weights_of(halting: list[float], halt_at: float, leaves: int) -> list[float]:
    """ACT in plain Python: one token's weights over loops 1 … ``leaves``.

    It halts at the first loop where the mass reaches ``halt_at``, or when it leaves; that loop
    takes the remainder, and loops after it nothing.
    """
    weights: list[float] = []
    for loop, h in enumerate(halting[:leaves], start=1):
        remainder = 1.0 - sum(weights)
        if sum(halting[:loop]) >= halt_at or loop == leaves:
            return [*weights, remainder] + [0.0] * (leaves - loop)
        weights.append(h)
    raise AssertionError("a token leaves at loop 1 or later")


# The readout.


@given(
    rows=st.integers(1, 5),
    loops=st.integers(1, 8),
    lowest=st.sampled_from([0.01, 0.2, 0.6]),
    seed=st.integers(0, 2**20),
)
def test_absorbing_is_act_token_by_token(rows: int, loops: int, lowest: float, seed: int) -> None:
    """At every loop a token might leave at, whatever the halting of the rows beside it."""
    rng = random.Random(seed)
    halting = [[rng.uniform(lowest, 0.98) for _ in range(rows)] for _ in range(loops)]
    halt_at = [rng.choice([0.5, 0.75, 0.99, 1.0, rng.uniform(0.5, 1.0)]) for _ in range(rows)]
    model, states, memory = scripted(), scripted_states(halting, seed), fresh(rows)
    for loop, state in enumerate(states, start=1):
        memory = model.absorb(state, memory, torch.tensor(halt_at, dtype=torch.float64))
        output = model.readout(state, memory)
        for row in range(rows):
            own = [halting[k][row] for k in range(loop)]
            weights = weights_of(own, halt_at[row], loop)
            assert sum(weights) == pytest.approx(1.0, abs=1e-12)
            wanted = sum(w * states[k][row] for k, w in enumerate(weights))
            torch.testing.assert_close(output[row], wanted, atol=1e-12, rtol=0)
            assert output[row, 1].item() == pytest.approx(1.0, abs=1e-12)  # weights sum to 1
            assert memory[row, MASS].item() == pytest.approx(sum(own), abs=1e-12)


def test_one_token_by_hand() -> None:
    """h = 0.3, 0.5, 0.4 at ``halt_at`` 0.99: weights 0.3, 0.5, 0.2; if it leaves at 2, 0.3, 0.7."""
    model, states = scripted(), scripted_states([[0.3], [0.5], [0.4], [0.9]], seed=1)
    halt_at, memory, columns = torch.tensor([0.99]), fresh(1), []
    outputs = []
    for state in states:
        memory = model.absorb(state, memory, halt_at)
        columns.append([round(x, 9) for x in memory[0, :MEAN].tolist()])
        outputs.append(model.readout(state, memory)[0])
    assert columns == [[0.3, 0.7], [0.8, 0.2], [1.2, 0.0], [2.1, 0.0]]
    one, two, three, _ = (state[0] for state in states)
    by_hand = [one, 0.3 * one + 0.7 * two, 0.3 * one + 0.5 * two + 0.2 * three]
    for output, wanted in zip(outputs, [*by_hand, by_hand[-1]], strict=True):
        torch.testing.assert_close(output, wanted, atol=1e-12, rtol=0)


def test_loops_after_halting_change_nothing() -> None:
    """Bit for bit, and whatever the later states hold: an exit lag or a floor is harmless."""
    halting = [[0.6, 0.2], [0.5, 0.2], [0.9, 0.2]]
    model, states = scripted(), scripted_states(halting, seed=2)
    halt_at, memory = torch.full((2,), 0.99, dtype=torch.float64), fresh(2)
    for state in states[:2]:
        memory = model.absorb(state, memory, halt_at)
    settled = model.readout(states[1], memory)
    later = model.absorb(states[2] * 1e3, memory, halt_at)
    output = model.readout(states[2] * 1e3, later)
    assert torch.equal(output[0], settled[0])
    assert torch.equal(later[0, MEAN:], memory[0, MEAN:])
    assert later[0, MASS] > memory[0, MASS]  # the mass keeps growing
    assert later[0, LEFTOVER] == 0.0
    assert not torch.equal(output[1], settled[1])  # the other row has not halted


def test_a_lower_threshold_ends_the_mean_earlier() -> None:
    halting = [[0.5, 0.6], [0.5, 0.5]]  # the first halts at 0.5 exactly
    model, states = scripted(), scripted_states(halting, seed=3)
    halt_at, memory = torch.tensor([0.5, 1.0], dtype=torch.float64), fresh(2)
    for state in states:
        memory = model.absorb(state, memory, halt_at)
    output = model.readout(states[1], memory)
    torch.testing.assert_close(output[0], states[0][0], atol=1e-12, rtol=0)
    wanted = 0.6 * states[0][1] + 0.4 * states[1][1]
    torch.testing.assert_close(output[1], wanted, atol=1e-12, rtol=0)


def test_tokens_halt_at_every_depth() -> None:
    """The tiny model is a fair one to test a runtime with."""
    ids = torch.randint(0, 23, (8, 20), generator=torch.Generator().manual_seed(0))
    model, memory = universal(), fresh(ids.numel())
    masses = []
    for state in loop_states(model, ids):
        memory = model.absorb(state, memory, torch.full_like(memory[:, MASS], 0.7))
        masses.append(memory[:, MASS])
    depths = 1 + (torch.stack(masses[:-1]) < 0.7).sum(dim=0)
    assert min(torch.bincount(depths, minlength=5)[1:]) >= 5


def test_absorbing_is_functional_and_in_the_memorys_precision() -> None:
    model = universal(torch.bfloat16)
    state = next(loop_states(model, IDS))
    memory = fresh(len(state), torch.float32)
    before = memory.clone()
    after = model.absorb(state, memory, torch.ones(len(state)))
    assert torch.equal(memory, before)
    assert (state.dtype, after.dtype) == (torch.bfloat16, torch.float32)
    assert after.shape == memory.shape == (len(state), model.dims.readout_values)
    # Halting is decided in float32: a bfloat16 mass would be rounded.
    assert not torch.equal(after[:, MASS], after[:, MASS].bfloat16().float())
    settled = after.clone()
    output = model.readout(state, after)
    assert torch.equal(after, settled)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, state)  # one loop: the whole weight is its own


def test_gradients_are_those_of_the_weighted_mean() -> None:
    model = scripted()
    states = scripted_states([[0.3, 0.6, 0.2], [0.5, 0.6, 0.1], [0.4, 0.2, 0.1]], seed=4)
    halt_at = torch.full((3,), 0.99, dtype=torch.float64)

    def output(*states: Tensor) -> Tensor:
        memory = fresh(3)
        for state in states:
            memory = model.absorb(state, memory, halt_at)
        return model.readout(states[-1], memory)

    assert torch.autograd.gradcheck(output, [state.requires_grad_() for state in states])


def test_a_loss_reaches_every_weight() -> None:
    model = universal(rope_theta=10000.0).requires_grad_(True)
    memory = fresh(IDS.numel())
    for state in loop_states(model, IDS):
        memory = model.absorb(state, memory, torch.ones(IDS.numel(), dtype=torch.float64))
    ctx = SequenceContext(2, 8, IDS.device)
    logits = model.head(model.coda(model.readout(state, memory), ctx))
    torch.nn.functional.cross_entropy(logits, IDS.flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


# Coordinates and positions.


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_every_loop_adds_the_papers_coordinates(dtype: torch.dtype) -> None:
    model = universal(dtype)
    ctx = SequenceContext(1, 60, torch.device("cpu"))
    ctx.loops = ctx.positions % 4 + 1
    added = model.coordinates.add_to(torch.zeros(60, HIDDEN, dtype=dtype), ctx)
    assert added.dtype == dtype
    for i in range(60):
        t = i % 4 + 1
        for j in range(HIDDEN // 2):
            scale = 10000.0 ** (2 * j / HIDDEN)
            wanted = [math.sin(i / scale) + math.sin(t / scale)]
            wanted.append(math.cos(i / scale) + math.cos(t / scale))
            assert added[i, 2 * j : 2 * j + 2].tolist() == pytest.approx(wanted, abs=1e-6)


def test_coordinates_are_added_at_the_start_of_each_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """With branches that add nothing, the state is embedding·√D plus every loop's coordinates."""
    model = universal()
    for name in ("layers.0.attention.out.weight", "layers.0.mlp.down.weight"):
        model.get_parameter(name).zero_()
    wanted = model.embedding(IDS.flatten()) * 4.0
    ctx = SequenceContext(2, 8, IDS.device)
    for loop, state in enumerate(loop_states(model, IDS), start=1):
        ctx.loops = torch.full_like(ctx.positions, loop)
        wanted = wanted + model.coordinates.add_to(torch.zeros_like(wanted), ctx)
        torch.testing.assert_close(state, wanted, atol=1e-12, rtol=0)


def test_more_loops_than_positions_are_tabulated() -> None:
    model = universal(max_loops=20, max_position_embeddings=8)
    assert all(state.isfinite().all() for state in loop_states(model, IDS))


@pytest.mark.parametrize(
    ("changes", "turns"),
    [({}, False), ({"rope_theta": None}, False), ({"rope_theta": 10000.0}, True)],
    ids=str,
)
def test_rotary_is_optional(changes: dict[str, Any], turns: bool) -> None:
    """Equal rows at two positions give equal keys exactly where there is no rotary."""
    model = universal(**changes)
    seen: list[Tensor] = []

    class Recording(SequenceContext):
        def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
            seen.append(k_TGE)
            return super().attend(layer, q_THE, k_TGE, v_TGE)

    row = torch.linspace(-1.0, 1.0, HIDDEN, dtype=torch.float64)
    state, ctx = row.repeat(2, 1), Recording(1, 2, row.device)
    model.layers[0](state, model._rope(state, ctx), 0, ctx)
    assert torch.equal(seen[0][0], seen[0][1]) != turns


def test_without_halting_the_logits_are_those_of_a_prefix() -> None:
    """Causal: later tokens change nothing earlier, at any loop."""
    model = universal(rope_theta=10000.0)
    for whole, prefix in zip(loop_states(model, IDS), loop_states(model, IDS[:, :5]), strict=True):
        cut = whole.view(2, 8, HIDDEN)[:, :5].flatten(0, 1)
        torch.testing.assert_close(cut, prefix, atol=1e-12, rtol=0)


# Configuration and files.


def test_dimensions() -> None:
    dims = universal(num_hidden_layers=2).dims
    assert (dims.prelude_layers, dims.core_layers, dims.coda_layers) == (0, 2, 0)
    assert (dims.max_loops, dims.readout_values) == (4, 2 + HIDDEN)
    assert dims.has_exit_gate
    assert dims.has_halting
    assert not dims.has_injection


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"max_loops": None}, "max_loops"),
        ({"act_epsilon": 0.0}, "act_epsilon"),
        ({"act_epsilon": 1.0}, "act_epsilon"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"rope_theta": -1.0}, "rope_theta"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(UsageError, match=rf"config\.json \(universal_transformer\): `{key}` is "):
        build_model({**UNIVERSAL_CONFIG, **changes})


def test_epsilon_has_the_papers_default() -> None:
    config = {k: v for k, v in UNIVERSAL_CONFIG.items() if k != "act_epsilon"}
    assert UniversalTransformer(config).act_epsilon == 0.01
    assert UniversalTransformer({**config, "act_epsilon": 0.1}).act_epsilon == 0.1


@pytest.mark.parametrize(
    "changes", [{}, {"tie_word_embeddings": True}, {"num_hidden_layers": 3}], ids=str
)
def test_saved_and_loaded_is_the_same(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = universal(torch.float32, **changes)
    save_checkpoint(model, {**UNIVERSAL_CONFIG, **changes}, tmp_path, torch.float32)
    again = load_model(str(tmp_path), dtype="float32", device="cpu").network
    assert dict(again.named_parameters()).keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        assert torch.equal(again.get_parameter(name), parameter), name
    *_, ours = loop_states(model, IDS)
    *_, theirs = loop_states(again, IDS)
    assert torch.equal(ours, theirs)


def test_the_files_names_are_the_documented_ones(tmp_path: Path) -> None:
    save_checkpoint(universal(), UNIVERSAL_CONFIG, tmp_path, torch.float32)
    layer = "model.layers.0"
    assert load_file(tmp_path / "model.safetensors").keys() == {
        "model.embed_tokens.weight",
        *(f"{layer}.self_attn.{kind}_proj.weight" for kind in "qkvo"),
        *(f"{layer}.mlp.{kind}_proj.weight" for kind in ("gate", "up", "down")),
        f"{layer}.input_layernorm.weight",
        f"{layer}.post_attention_layernorm.weight",
        "model.halting.weight",
        "model.halting.bias",
        "model.norm.weight",
        "lm_head.weight",
    }


@pytest.mark.parametrize("tied", [False, True])
def test_flops_count_the_head_tied_or_not(tied: bool) -> None:
    flops = universal(tie_word_embeddings=tied).flops_per_token()
    attention = HIDDEN * HIDDEN * 2 + 2 * HIDDEN * (HIDDEN // 2)
    assert flops.prelude == 0
    assert flops.core == 2 * (attention + 3 * HIDDEN * 32 + HIDDEN)
    assert flops.coda == 2 * 23 * HIDDEN


def test_other_layer_counts_are_core_layers() -> None:
    changed = UniversalTransformer.with_layers(UNIVERSAL_CONFIG, 0, 3, 0)
    assert changed == {**UNIVERSAL_CONFIG, "num_hidden_layers": 3}
    assert build_model(changed).dims.core_layers == 3
    for counts in [(1, 3, 0), (0, 3, 2)]:
        with pytest.raises(UsageError, match="give 0-3-0"):
            UniversalTransformer.with_layers(UNIVERSAL_CONFIG, *counts)
    with pytest.raises(UsageError, match="num_hidden_layers"):
        UniversalTransformer.with_layers(UNIVERSAL_CONFIG, 0, 0, 0)

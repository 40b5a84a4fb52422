"""Training and judging the demo models: what the recipes promise, at toy sizes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from cdbench.grammar import parse_exit
from cdbench.models.base import StagedModel
from cdbench.models.loading import load_model
from cdbench.models.sequence import loop_states
from cdbench.runtime.core import ExitPolicy, Request
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.workloads.demo_problems import build_tokenizer
from scripts import train_demo
from scripts.demo_training import configs, losses
from scripts.demo_training.batches import Batch, BatchStream
from scripts.demo_training.judging import (
    adaptive,
    answer,
    difference,
    full_depth,
    shipped_questions,
    validation_questions,
)
from scripts.demo_training.leaving import Seen, by_rule, once_confident
from scripts.demo_training.loops import loops_with_exits
from scripts.demo_training.losses import (
    Asked,
    Rows,
    batch_loss,
    gain_of_looping,
    settling_loss,
)
from scripts.demo_training.trunk import Stage

ROOT = Path(__file__).resolve().parent.parent
CPU = torch.device("cpu")
LOOPED = ["demo-ouro", "demo-huginn", "demo-ut"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of width 32, so that a batch takes milliseconds."""
    decoder, huginn = configs._decoder(), configs._huginn()
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    sizes = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 16} | heads
    monkeypatch.setattr(configs, "_decoder", lambda: decoder | sizes)
    other = {"n_embd": 32, "n_heads": 2, "intermediate_size": 48, "mean_recurrence": 4} | heads
    monkeypatch.setattr(configs, "_huginn", lambda: huginn | other)


def stream(size: int = 4, workers: int = 0, seed: int = 1) -> BatchStream:
    return BatchStream(seed, ["copy", "sum"], size, workers, CPU)


def model_and_batch(name: str) -> tuple[StagedModel, Batch]:
    torch.manual_seed(0)
    model = configs.new_model(configs.model_config(name, build_tokenizer()))
    return model, next(stream().batches(0, 1))


def same(left: Batch, right: Batch) -> bool:
    return all(torch.equal(getattr(left, x), getattr(right, x)) for x in vars(left))


def test_a_batch_depends_on_seed_and_index_alone() -> None:
    plain = list(stream().batches(0, 9))
    behind = list(stream(workers=2).batches(5, 4))
    assert len(plain) == 9
    assert all(same(a, b) for a, b in zip(plain[5:], behind, strict=True))
    assert not same(plain[0], next(stream(seed=2).batches(0, 1)))


def test_rows_predict_the_completion_and_only_later_ones_may_leave() -> None:
    tokenizer = build_tokenizer()
    batch = next(stream().batches(0, 1))
    words = [str(tokenizer.id_to_token(i)) for i in batch.targets_N.tolist()]
    assert words.count("<eos>") == batch.ids_BT.shape[0]
    assert words.count("answer") == batch.ids_BT.shape[0]
    # All but the first word of every completion.
    assert int((~batch.later_N).sum()) == batch.ids_BT.shape[0]
    given = batch.ids_BT.flatten()[batch.rows_N]
    follows = batch.rows_N[1:] == batch.rows_N[:-1] + 1
    assert torch.equal(given[1:][follows], batch.targets_N[:-1][follows])


@pytest.mark.parametrize("name", LOOPED)
def test_without_exits_the_loops_are_the_plain_ones(name: str) -> None:
    model, batch = model_and_batch(name)
    with torch.no_grad():
        ours = [loop.state for loop in loops_with_exits(model, batch.ids_BT)]
        plain = list(loop_states(model, batch.ids_BT))
    for left, right in zip(ours, plain, strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize(
    ("name", "rule", "threshold"),
    [
        ("demo-ouro", "cdf", 0.9),
        ("demo-huginn", "latent-diff", 0.7),
        ("demo-ut", "act", 0.9),
    ],
)
def test_exits_in_training_are_those_of_the_engine(
    name: str, rule: str, threshold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same depths, and the same next words of what each token left with, as a server's."""
    monkeypatch.setattr(losses, "mixed_precision", lambda device: nullcontext())
    model, batch = model_and_batch(name)
    model = model.requires_grad_(False).eval()
    exit_unit = {n: p for n, p in model.named_parameters() if n.startswith(("gate", "halting"))}
    for parameter in exit_unit.values():
        parameter.copy_(0.3 * torch.randn_like(parameter))
    asked = Asked(halting=model.dims.has_halting, halt_at=threshold)
    told = batch_loss(model, batch, asked, by_rule(model, rule, threshold))
    served = Engine(model, EngineConfig(max_residents=4))
    row_of = batch.rows_N // batch.ids_BT.shape[1]
    for document, ids in enumerate(batch.ids_BT.tolist()):
        mine = row_of == document
        prompt = ids[: int(batch.rows_N[mine][0]) - document * len(ids) + 1]
        request = Request(
            "a", prompt, force=batch.targets_N[mine].tolist(), exit=ExitPolicy(rule, threshold)
        )
        (result,) = served.run([request])
        assert result.executed_depths == told.depths_N[mine].tolist()
        expected = -told.losses_N[mine].double()
        torch.testing.assert_close(
            torch.tensor(result.logprobs).double(), expected, atol=1e-4, rtol=1e-4
        )
    assert len(set(told.depths_N[batch.later_N].tolist())) > 1, "the exits should be spread"


def test_gone_rows_leave_no_trace_of_deeper_loops() -> None:
    """A row that leaves after loop 1 weighs with what it left with, whatever comes after."""
    model, batch = model_and_batch("demo-ouro")
    with torch.no_grad():
        told = batch_loss(model, batch, Asked(loop=0.0), lambda seen: seen.losses_N < 1e9)
        full = batch_loss(model, batch, Asked(loop=0.0), None)
    assert told.depth_shares() == [1.0, 0.0, 0.0, 0.0]
    assert full.depth_shares() == [0.0, 0.0, 0.0, 1.0]


def test_a_row_leaves_once_its_word_is_probable_enough() -> None:
    leave = once_confident(random.Random(1))
    losses_N = torch.tensor([0.0, 2.0])
    seen = Seen(torch.empty(0), torch.empty(0), torch.empty(0), losses_N, None)
    assert leave(seen).tolist() == [True, False]


def test_gain_is_measured_against_the_best_later_loop() -> None:
    gain = gain_of_looping(torch.tensor([[3.0, 0.1], [1.0, 0.3], [2.0, 0.2]]))
    torch.testing.assert_close(gain, torch.tensor([[2.0, 0.0], [0.0, 0.1]]))


def test_settled_rows_are_held_still_and_the_others_moving() -> None:
    losses_RN = torch.tensor([[0.0, 2.0], [0.0, 2.0], [0.0, 0.0]])

    def cost(settled_moves: float, open_moves: float) -> float:
        move = torch.tensor([settled_moves, open_moves]) ** 2
        return settling_loss([Rows(row, move) for row in losses_RN]).item()

    assert cost(0.0, 0.5) < cost(0.3, 0.5)
    assert cost(0.0, 0.5) < cost(0.0, 0.1)


def test_ponder_cost_rewards_early_mass() -> None:
    model, batch = model_and_batch("demo-ut")
    asked = Asked(halting=True, ponder=1.0)
    batch_loss(model, batch, asked, None).loss.backward()
    bias = dict(model.named_parameters())["halting.bias"]
    assert bias.grad is not None
    assert bias.grad.item() < 0, "a step against the gradient should raise the halting mass"


def test_the_rate_falls_to_zero_by_batches_or_by_time() -> None:
    stage = Stage("trunk", 1000, lambda *_: None, 1.0)  # type: ignore[arg-type]
    assert stage.rate(0, 0.0) == pytest.approx(1 / 50)
    assert stage.rate(100, 0.3) == 1.0
    assert stage.rate(500, 1.0) == 0.0
    assert 0 < stage.rate(500, 0.9) < 0.3


@pytest.mark.parametrize("name", [*LOOPED, "demo-dense-small"])
def test_a_model_is_trained_written_and_read_back(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / name
    words = f"--model {name} --batches 6 --exit-batches 2 --gate-batches 2 --batch-size 4 "
    words += f"--tasks sum --threads 1 --log-every 2 --out {out} --checkpoints {tmp_path / 'ck'}"
    train_demo.main(words.split())
    told = json.loads(capsys.readouterr().out)
    model = load_model(str(out), dtype="float32")
    assert model.card.exit == told["card"]["exit"]
    assert model.card.tasks == ("demo_sum",)
    questions = shipped_questions(model.card.tasks, 2)
    full = answer(model, questions, full_depth())
    early = answer(model, questions, adaptive(parse_exit(model.card.exit)))
    assert set(full.depths) == {model.network.dims.max_loops}
    assert difference(early, full)["points"] == 0.0
    assert not {q.document.prompt for q in validation_questions(("demo_sum",), 9)} & {
        q.document.prompt for q in shipped_questions(("demo_sum",), None)
    }


def test_a_run_resumes_where_it_stopped(tmp_path: Path) -> None:
    words = "--model demo-dense-small --batch-size 4 --tasks sum --threads 1 --batches 4 "
    words += f"--save-every 2 --checkpoints {tmp_path}"
    train_demo.main([*words.split(), "--out", str(tmp_path / "whole")])
    saved = torch.load(tmp_path / "demo-dense-small-seed1-trunk.pt", weights_only=True)
    assert saved["batch"] == 4
    with pytest.raises(SystemExit, match="use --fresh"):
        train_demo.main([*words.replace("4 --save", "5 --save").split(), "--out", str(tmp_path)])


def test_training_imports_no_evaluation_or_configuration_library() -> None:
    """It runs where they are not installed."""
    probe = (
        "import sys; import scripts.train_demo; "
        "heavy = {'pydantic', 'lm_eval', 'datasets', 'transformers', 'scipy', 'yaml', 'typer'}; "
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr

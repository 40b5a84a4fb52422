"""Train, judge and write the demo models.

    python scripts/train_demo.py --model demo-ouro          # trunk, gate, files, results
    python scripts/train_demo.py --model demo-dense
    python scripts/train_demo.py --model demo-dense-small

Three models see the same problems (``cdbench/workloads/demo_problems.py``), in the same order, for
the same number of batches: ``demo-ouro``, one layer looped four times; ``demo-dense``, four
distinct layers, which is the same compute per token; ``demo-dense-small``, one layer run once,
which is the same parameters. Training follows from the seed: batch i depends on the seed and i
alone, so a run that is interrupted and resumed from ``checkpoints/`` sees what an uninterrupted one
would have.

The looped model learns a readout after every loop. It is served with early exits: a token that
leaves at loop k keeps its loop-k keys for every deeper loop. So, after a first phase, every other
batch lets tokens leave once they are settled, with their keys frozen as a server would. The exit
gate is then trained, the rest frozen, on whether another loop would still improve the token. The
last batches run with the exits that this gate decides, and the gate is trained anew on the result.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cdbench.models.base import StagedModel
from cdbench.models.checkpoint import WEIGHTS_NAME, save_checkpoint
from cdbench.models.registry import build_model
from cdbench.models.sequence import SequenceContext
from cdbench.workloads.demo_problems import (
    TASKS,
    Problem,
    build_tokenizer,
    final_answer,
    held_out_documents,
    is_held_out,
    token_id,
)

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "cdbench" / "assets"
WIDTH, LOOPS = 384, 4
MAX_POSITIONS = 256
#: A text that has not ended by then is judged as it stands (as in the task files).
MAX_NEW_TOKENS = 80
BATCH = 48
#: Batches whose documents are drawn together and sorted by length, so that little is padding.
POOL = 4
#: The share of the batches over which the learning rate falls to zero; constant before.
DECAY_SHARE = 0.35
#: From this batch on, every other batch has exits in force.
FIRST_EXIT_BATCH = 400
LOOP_WEIGHT, LAST_WEIGHT = 0.3, 1.0
#: A token is settled, for the gate, when no later loop lowers its loss by more than this (nats).
SETTLED_NATS = 0.05
#: How much worse than a needless loop it is to leave with a loss that later loops lower by one nat.
EARLY_EXIT_COST = 4.0
#: Thresholds tried for the card.
THRESHOLDS = [0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998]
IGNORE = -100


MODELS = ("demo-ouro", "demo-dense", "demo-dense-small")


def model_config(name: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """The official-format configuration of one demo model."""
    shared = {
        "hidden_size": WIDTH,
        "intermediate_size": 1024,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "head_dim": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": False,
        "vocab_size": tokenizer.get_vocab_size(),
        "eos_token_id": token_id(tokenizer, "<eos>"),
        "pad_token_id": token_id(tokenizer, "<pad>"),
        "torch_dtype": "bfloat16",
    }
    kinds: dict[str, dict[str, Any]] = {
        "demo-ouro": {
            "model_type": "ouro",
            "architectures": ["OuroForCausalLM"],
            "num_hidden_layers": 1,
            "total_ut_steps": LOOPS,
        },
        "demo-dense": {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": LOOPS,
        },
        "demo-dense-small": {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": 1,
        },
    }
    return kinds[name] | shared


# --- documents to tensors -------------------------------------------------------------------------


@dataclass(frozen=True)
class PackedBatch:
    """B documents padded to T ids: what goes in, what should come out, and which rows may exit."""

    ids_BT: Tensor
    targets_N: Tensor  # [B·T] next id where it belongs to the completion, else IGNORE
    later_N: Tensor  # [B·T] the row processes a generated token: only these may exit early
    prompt_lengths: list[int]


def pack(documents: list[tuple[list[int], list[int]]], pad: int) -> PackedBatch:
    """(prompt ids, completion ids with the eos) pairs to one batch."""
    length = max(len(p) + len(c) for p, c in documents) - 1
    ids = torch.full((len(documents), length + 1), pad)
    targets = torch.full((len(documents), length), IGNORE)
    later = torch.zeros(len(documents), length, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(documents):
        start, end = len(prompt), len(prompt) + len(completion)
        ids[row, :end] = torch.tensor(prompt + completion)
        targets[row, start - 1 : end - 1] = ids[row, start:end]
        later[row, start : end - 1] = True
    starts = [len(prompt) for prompt, _ in documents]
    return PackedBatch(ids[:, :-1].contiguous(), targets.flatten(), later.flatten(), starts)


def encode(problem: Problem, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """A problem's prompt ids, and its completion ids ending in the eos."""
    prompt, completion = (tokenizer.encode(t).ids for t in (problem.prompt, problem.completion))
    return prompt, [*completion, token_id(tokenizer, "<eos>")]


def training_batches(
    tokenizer: Tokenizer, seed: int, first: int, tasks: list[str]
) -> Iterator[PackedBatch]:
    """Batches ``first``, ``first`` + 1, …: each a function of the seed and its index alone."""
    pad = token_id(tokenizer, "<pad>")
    index = first
    while True:
        pool, offset = divmod(index, POOL)
        rng = random.Random(f"train/{seed}/{pool}")
        documents = [
            _training_document(rng, tasks[i % len(tasks)], tokenizer) for i in range(POOL * BATCH)
        ]
        documents.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        order = rng.sample(range(POOL), POOL)
        for part in order[offset:]:  # a resumed run starts within a pool
            yield pack(documents[part * BATCH : (part + 1) * BATCH], pad)
            index += 1


def _training_document(
    rng: random.Random, task: str, tokenizer: Tokenizer
) -> tuple[list[int], list[int]]:
    while True:
        problem = TASKS[task](rng)
        if not is_held_out(problem.prompt):
            return encode(problem, tokenizer)


# --- the model over whole sequences, with exits ---------------------------------------------------


class ExitContext(SequenceContext):
    """Whole sequences in which rows leave: an exited row keeps its last loop's keys and values.

    A row is marked in ``exited`` after the loop it leaves at.
    """

    def __init__(self, batch: int, length: int, device: torch.device) -> None:
        super().__init__(batch, length, device)
        self.exited = torch.zeros(batch * length, dtype=torch.bool, device=device)
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        if layer in self._kept:
            gone = self.exited[:, None, None]
            k_old, v_old = self._kept[layer]
            k_TGE, v_TGE = torch.where(gone, k_old, k_TGE), torch.where(gone, v_old, v_TGE)
        self._kept[layer] = (k_TGE, v_TGE)
        return super().attend(layer, q_THE, k_TGE, v_TGE)


def loops_with_exits(
    model: StagedModel, ids_BT: Tensor, max_loops: int
) -> Iterator[tuple[Tensor, ExitContext]]:
    """The states ``[B·T, D]`` after each loop; mark rows in ``ctx.exited`` between two of them."""
    batch, length = ids_BT.shape
    ctx = ExitContext(batch, length, ids_BT.device)
    state, injection = model.prelude(ids_BT.flatten(), ctx)
    for loop in range(1, max_loops + 1):
        ctx.loops.fill_(loop)
        state = model.core(state, injection, ctx)
        yield state, ctx


# --- training -------------------------------------------------------------------------------------


@dataclass
class Running:
    """Sums since the last log line."""

    loss: float = 0.0
    batches: int = 0
    right: list[float] = field(default_factory=list)


#: Losses ``[N]`` and states ``[N, D]`` of the completion rows after a loop → which would leave.
Leaving = Callable[[Tensor, Tensor], Tensor]


def once_confident(batch: PackedBatch, rng: random.Random) -> Leaving:
    """Leave once the target's probability passes a level between 0.5 and 1 drawn for each row."""
    draw = torch.Generator().manual_seed(rng.randrange(2**31))
    rows = int((batch.targets_N != IGNORE).sum())
    level = torch.rand(rows, generator=draw) * 0.5 + 0.5
    return lambda losses, states: losses < -level.log()


def by_the_gate(model: StagedModel, threshold: float) -> Leaving:
    """Leave as a server would: at the first loop where the gate's ``cdf`` reaches the threshold."""
    survived: list[Tensor] = []

    def leaving(losses: Tensor, states: Tensor) -> Tensor:
        with torch.no_grad():
            still = (1 - model.exit_logit(states).sigmoid()) * (survived[-1] if survived else 1)
        survived.append(still)
        return still <= 1 - threshold

    return leaving


def batch_loss(
    model: StagedModel,
    batch: PackedBatch,
    leave: Leaving | None,
    exit_weight: float = LOOP_WEIGHT,
) -> tuple[Tensor, list[float]]:
    """The weighted loss over loops, and the share of completion tokens right at each of them.

    With ``leave``, later rows exit: their keys freeze and deeper loops no longer count for them.
    The loop a row leaves at weighs ``exit_weight``.
    """
    loops = model.dims.max_loops
    picked = batch.targets_N != IGNORE
    targets = batch.targets_N[picked]
    can_exit = batch.later_N[picked]
    running = torch.ones(len(targets))
    total = torch.zeros(())
    right: list[float] = []
    # Plain matrix products: on short sequences the fused CPU kernel is several times slower.
    with torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        for loop, (state, ctx) in enumerate(loops_with_exits(model, batch.ids_BT, loops), 1):
            states = state[picked]
            logits = model.head(model.coda(states, ctx)).float()
            losses = F.cross_entropy(logits, targets, reduction="none")
            right.append((logits.argmax(-1) == targets).float().mean().item())
            weight = running * (LAST_WEIGHT if loop == loops else LOOP_WEIGHT)
            if leave is not None and loop < loops:
                leaving = can_exit & leave(losses.detach(), states.detach())
                weight = torch.where(leaving, running * exit_weight, weight)
                running = running * ~leaving
                ctx.exited = ctx.exited.clone()
                ctx.exited[picked] = running == 0
            total = total + (losses * weight).mean()
    return total, right


def learning_rate(step: int, steps: int, peak: float) -> float:
    """A short warm-up, constant, then linear to zero: the start is the same for any ``steps``."""
    return peak * min(1.0, (step + 1) / 50, (steps - step) / (DECAY_SHARE * steps))


def trunk_of(model: StagedModel) -> list[torch.nn.Parameter]:
    """Every parameter but the gate's."""
    return [p for n, p in model.named_parameters() if not n.startswith("gate")]


def train_trunk(
    model: StagedModel, tokenizer: Tokenizer, args: argparse.Namespace, batches: int
) -> None:
    """Train everything but the gate, resuming from the last checkpoint of the same run."""
    trunk = trunk_of(model)
    optimiser = torch.optim.AdamW(
        trunk, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.05, fused=True
    )
    store = args.checkpoints / f"{args.model}-seed{args.seed}.pt"
    first = 0 if args.fresh else resume(store, model, optimiser, batches)
    sums, started = Running(), time.monotonic()
    stream = training_batches(tokenizer, args.seed, first, args.tasks)
    for step, batch in zip(range(first, batches), stream, strict=False):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, batches, args.lr)
        with_exits = model.dims.max_loops > 1 and step >= FIRST_EXIT_BATCH and step % 2 == 1
        loss, right = batch_loss(
            model, batch, once_confident(batch, random.Random(step)) if with_exits else None
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trunk, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        sums.loss, sums.batches = sums.loss + loss.item(), sums.batches + 1
        sums.right = right if not with_exits else sums.right
        if (step + 1) % args.log_every == 0:
            rate = (time.monotonic() - started) / (step + 1 - first)
            shares = " ".join(f"{x:.3f}" for x in sums.right)
            loss_now = sums.loss / sums.batches
            log(f"batch {step + 1} loss {loss_now:.4f} right {shares} {rate:.2f} s/batch")
            sums = Running()
        if (step + 1) % args.save_every == 0 or step + 1 == batches:
            args.checkpoints.mkdir(parents=True, exist_ok=True)
            partial = store.with_suffix(".tmp")
            torch.save(
                {
                    "model": model.state_dict(),
                    "optimiser": optimiser.state_dict(),
                    "batch": step + 1,
                    "batches": batches,
                },
                partial,
            )
            partial.replace(store)


def resume(store: Path, model: StagedModel, optimiser: torch.optim.Optimizer, batches: int) -> int:
    """Load the last checkpoint and return the batch to go on with (0 where there is none).

    A run of another length may be gone on with while both are at the constant learning rate.
    """
    if not store.exists():
        return 0
    saved = torch.load(store, weights_only=True)
    first, constant = int(saved["batch"]), 1 - DECAY_SHARE
    if saved["batches"] != batches and first > constant * min(batches, saved["batches"]):
        length = saved["batches"]
        raise SystemExit(
            f"{store}: at batch {first} of {length}; use --fresh or --batches {length}"
        )
    model.load_state_dict(saved["model"])
    optimiser.load_state_dict(saved["optimiser"])
    log(f"resumed {store.name} at batch {first}")
    return first


def log(line: str) -> None:
    """One progress line on stderr, with the time of day."""
    print(time.strftime("%H:%M:%S"), line, file=sys.stderr, flush=True)


def train_under_the_gate(
    model: StagedModel, tokenizer: Tokenizer, args: argparse.Namespace, first: int
) -> None:
    """Go on with the trunk while the gate, frozen, decides who leaves, as it will when serving.

    Every fourth batch stays at full depth, so that prompts and rule ``none`` keep their accuracy.
    """
    trunk = trunk_of(model)
    optimiser = torch.optim.AdamW(trunk, lr=args.exit_lr, betas=(0.9, 0.98), fused=True)
    stream = training_batches(tokenizer, args.seed, first, args.tasks)
    for step, batch in zip(range(args.exit_batches), stream, strict=False):
        # From cdf@0.5 to cdf@0.999, evenly in the odds of staying.
        threshold = 1 - 0.5 * 0.002 ** random.Random(f"exits/{step}").random()
        leave = by_the_gate(model, threshold) if step % 4 else None
        for group in optimiser.param_groups:
            group["lr"] = args.exit_lr * (1 - step / args.exit_batches)
        loss, right = batch_loss(model, batch, leave, exit_weight=LAST_WEIGHT)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trunk, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if (step + 1) % args.log_every == 0:
            log(f"exits {step + 1} loss {loss.item():.4f} right at the last loop {right[-1]:.4f}")


# --- the exit gate --------------------------------------------------------------------------------


def gain_of_looping(losses_KN: Tensor) -> Tensor:
    """``[K−1, N]``: by how many nats the best later loop lowers the loss of row n after loop k."""
    best_later = losses_KN.flip(0).cummin(0).values.flip(0)[1:]
    return (losses_KN[:-1] - best_later).clamp(min=0)


def train_gate(model: StagedModel, tokenizer: Tokenizer, args: argparse.Namespace) -> None:
    """Train the gate alone, on rows that its own exits let reach each loop."""
    gate = {n: p for n, p in model.named_parameters() if n.startswith("gate")}
    optimiser = torch.optim.Adam(gate.values(), lr=args.gate_lr)
    with torch.no_grad():
        gate["gate.weight"].zero_()
        gate["gate.bias"].fill_(-3.0)
    stream = training_batches(tokenizer, args.seed + 1, 0, args.tasks)
    for step, batch in zip(range(args.gate_batches), stream, strict=False):
        states, losses, running = _gate_rows(
            model, batch, 0.5 + 0.49 * random.Random(step).random()
        )
        gain = gain_of_looping(losses)
        labels = (gain <= SETTLED_NATS).float()
        logits = torch.stack([model.exit_logit(state) for state in states[:-1]])
        # One wrong word spoils an answer, one needless loop costs a loop: weigh by what is lost.
        weight = running * (1 + EARLY_EXIT_COST * gain)
        loss = F.binary_cross_entropy_with_logits(logits, labels, weight) * weight.numel()
        loss = loss / running.sum()
        loss.backward()
        for group in optimiser.param_groups:
            group["lr"] = args.gate_lr * (1 - step / args.gate_batches)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if (step + 1) % args.log_every == 0:
            told = ((logits > 0) == labels.bool()).float()
            share = (told * running).sum(1) / running.sum(1).clamp(min=1)
            log(f"gate {step + 1} loss {loss.item():.4f} right by loop {share.tolist()}")


@torch.no_grad()
def _gate_rows(
    model: StagedModel, batch: PackedBatch, threshold: float
) -> tuple[list[Tensor], Tensor, Tensor]:
    """States and losses of the later rows per loop, and which still run at loops 1 … R−1."""
    rows = batch.later_N & (batch.targets_N != IGNORE)
    targets = batch.targets_N[rows]
    survive = torch.ones(len(targets))
    states: list[Tensor] = []
    losses: list[Tensor] = []
    running: list[Tensor] = []
    with torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        for state, ctx in loops_with_exits(model, batch.ids_BT, model.dims.max_loops):
            hidden = state[rows].float()
            states.append(hidden)
            logits = model.head(model.coda(hidden, ctx)).float()
            losses.append(F.cross_entropy(logits, targets, reduction="none"))
            running.append((~ctx.exited[rows]).float())
            survive = survive * (1 - model.exit_logit(hidden).sigmoid())
            ctx.exited[rows] |= survive <= 1 - threshold
    return states, torch.stack(losses), torch.stack(running[:-1])


# --- judging --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """How later tokens exit: the gate's ``cdf`` at a threshold (None: never), of so many loops."""

    name: str
    max_loops: int
    threshold: float | None = None


@dataclass
class Judged:
    """One document under one rule: the ids generated greedily and the loops behind each."""

    problem: Problem
    prompt: list[int]
    ids: list[int]
    fixed: int = 0
    done: bool = False
    depths: list[int] = field(default_factory=list)


@torch.no_grad()
def predict(model: StagedModel, batch: PackedBatch, rule: Rule) -> tuple[Tensor, Tensor]:
    """The greedy next id and the executed depth of every row, with the exits in force."""
    rows = batch.ids_BT.numel()
    survive, depth = torch.ones(rows), torch.full((rows,), rule.max_loops)
    final = torch.zeros(0)
    for loop, (state, ctx) in enumerate(loops_with_exits(model, batch.ids_BT, rule.max_loops), 1):
        frozen = ctx.exited.clone()
        final = state if loop == 1 else torch.where(frozen[:, None], final, state)
        if rule.threshold is not None and loop < rule.max_loops:
            survive = survive * (1 - model.exit_logit(state).sigmoid())
            leaving = batch.later_N & ~frozen & (survive <= 1 - rule.threshold)
            depth[leaving] = loop
            ctx.exited = frozen | leaving
    return model.head(model.coda(final, ctx)).argmax(-1), depth


def decode(
    model: StagedModel, tokenizer: Tokenizer, documents: list[Problem], rule: Rule, chunk: int = 125
) -> list[Judged]:
    """Free-running greedy decoding of every document, with the reference completion as a draft.

    Each pass processes prompt and draft at once and keeps the draft up to the first word the model
    would have chosen otherwise, and that word. As rows see only earlier rows, this is what decoding
    one token at a time gives, in as many passes as there are differences.
    """
    judged = [Judged(p, *encode(p, tokenizer)) for p in documents]
    while active := [j for j in judged if not j.done]:
        active.sort(key=lambda j: len(j.prompt) + len(j.ids))
        for start in range(0, len(active), chunk):
            _one_pass(model, tokenizer, active[start : start + chunk], rule)
    return judged


def _one_pass(model: StagedModel, tokenizer: Tokenizer, active: list[Judged], rule: Rule) -> None:
    eos, pad = token_id(tokenizer, "<eos>"), token_id(tokenizer, "<pad>")
    batch = pack([(j.prompt, j.ids) for j in active], pad)
    chosen, depth = (x.view(len(active), -1).tolist() for x in predict(model, batch, rule))
    for row, j in enumerate(active):
        start = len(j.prompt) - 1
        told = chosen[row][start : start + len(j.ids)]
        j.depths = depth[row][start : start + len(j.ids)]
        other = [i for i in range(j.fixed, len(j.ids)) if told[i] != j.ids[i]]
        if not other:
            j.done = True
            continue
        at = other[0]
        j.ids[at] = told[at]
        j.fixed = at + 1
        if told[at] == eos:
            j.ids, j.depths, j.done = j.ids[: at + 1], j.depths[: at + 1], True
        elif j.fixed == len(j.ids):
            # The draft is used up: one more word, unless the text already runs far too long.
            j.ids.append(eos)
            j.done = len(j.ids) > MAX_NEW_TOKENS


def summarise(judged: list[Judged], tokenizer: Tokenizer, max_loops: int) -> dict[str, Any]:
    """Accuracy per task and overall, and the depths of the later tokens (the stop token aside)."""
    right: dict[str, list[bool]] = {}
    for j in judged:
        told = final_answer(tokenizer.decode(j.ids, skip_special_tokens=True))
        right.setdefault(j.problem.task, []).append(told == j.problem.answer)
    every = [r for rs in right.values() for r in rs]
    depths = [d for j in judged for d in j.depths[1:-1]]
    return {
        "accuracy": sum(every) / len(every),
        "tasks": {task: sum(rs) / len(rs) for task, rs in right.items()},
        "mean_depth": sum(depths) / len(depths),
        "depth_share": [depths.count(d) / len(depths) for d in range(1, max_loops + 1)],
        "mean_output_tokens": sum(len(j.ids) for j in judged) / len(judged),
        "right": every,
    }


def paired(ours: list[bool], theirs: list[bool]) -> dict[str, float]:
    """The paired difference in accuracy, in points, with its standard error."""
    gaps = [100.0 * (a - b) for a, b in zip(ours, theirs, strict=True)]
    mean = sum(gaps) / len(gaps)
    spread = sum((g - mean) ** 2 for g in gaps) / (len(gaps) - 1)
    return {"points": mean, "standard_error": math.sqrt(spread / len(gaps))}


def choose_threshold(
    model: StagedModel, tokenizer: Tokenizer, documents: list[Problem], grid: list[float]
) -> float:
    """The lowest threshold that costs at most a quarter of a point on validation documents."""
    loops = model.dims.max_loops
    full = summarise(decode(model, tokenizer, documents, Rule("none", loops)), tokenizer, loops)
    log(f"validation: full depth {full['accuracy']:.4f}")
    chosen = grid[-1]
    for threshold in reversed(grid):
        rule = Rule("cdf", loops, threshold)
        told = summarise(decode(model, tokenizer, documents, rule), tokenizer, loops)
        cost = paired(told["right"], full["right"])["points"]
        log(
            f"validation: cdf@{threshold} {cost:+.2f} points at mean depth {told['mean_depth']:.3f}"
        )
        if cost < -0.25:
            break
        chosen = threshold
    return chosen


def judge(
    model: StagedModel, tokenizer: Tokenizer, args: argparse.Namespace, threshold: float | None
) -> dict[str, Any]:
    """Held-out results at full depth and, for a looped model, under the card's other rules."""
    documents = [
        d for t in args.tasks for d in held_out_documents(t, args.documents, args.test_seed)
    ]
    loops = model.dims.max_loops
    rules = [Rule("static", loops)]
    if loops > 1:
        rules += [Rule(f"static@{d}", d) for d in range(loops - 1, 0, -1)]
        rules.insert(1, Rule(f"cdf@{threshold}", loops, threshold))
    results: dict[str, Any] = {}
    baseline: list[bool] = []
    for rule in rules:
        told = summarise(decode(model, tokenizer, documents, rule), tokenizer, rule.max_loops)
        right = told.pop("right")
        baseline = baseline or right
        told["versus_full_depth"] = paired(right, baseline)
        if rule.threshold is not None:
            adaptive = right
        if rule.name.startswith("static@"):
            told["versus_adaptive"] = paired(right, adaptive)
        results[rule.name] = told
        log(f"{rule.name}: {json.dumps(told)}")
    return results


# --- files and the command line -------------------------------------------------------------------


def write_assets(
    model: StagedModel,
    config: dict[str, Any],
    tokenizer: Tokenizer,
    out: Path,
    card: dict[str, Any],
) -> None:
    """The checkpoint in its official format, with tokenizer, generation configuration and card."""
    save_checkpoint(model, config, out, torch.bfloat16)
    (out / WEIGHTS_NAME).chmod(0o644)  # it is written for its owner alone
    tokenizer.save(str(out / "tokenizer.json"))
    generation = {key: config[key] for key in ("eos_token_id", "pad_token_id")}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    (out / "card.json").write_text(json.dumps(card, indent=1) + "\n")


def card_of(args: argparse.Namespace, exit_rule: str) -> dict[str, Any]:
    """What the runtime and a reader need to know of the checkpoint beside its configuration."""
    command = (
        f"python scripts/train_demo.py --model {args.model} --batches {args.batches} "
        f"--seed {args.seed} --threads {args.threads}"
    )
    return {
        "name": args.model,
        "exit": exit_rule,
        "kv": "per-loop",
        "trained_with": command,
        "tasks": [f"demo_{task}" for task in args.tasks],
    }


def round_to_bfloat16(model: StagedModel) -> None:
    """Judge what is shipped: the weights as they will be read back."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--model", required=True, choices=["demo-ouro", "demo-dense", "demo-dense-small"]
    )
    parser.add_argument("--batches", type=int, default=1850, help=f"of {BATCH} documents each")
    parser.add_argument(
        "--exit-batches", type=int, default=250, help="of those, under the gate (looped model)"
    )
    parser.add_argument("--exit-lr", type=float, default=5e-4)
    parser.add_argument("--gate-batches", type=int, default=200)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--gate-lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--documents", type=int, default=250, help="held-out documents per task")
    parser.add_argument("--validation", type=int, default=50, help="validation documents per task")
    parser.add_argument("--test-seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="default: cdbench/assets/MODEL")
    parser.add_argument("--checkpoints", type=Path, default=ROOT / "checkpoints")
    parser.add_argument("--log-every", type=int, default=25)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--fresh", action="store_true", help="ignore an earlier checkpoint")
    parser.add_argument("--no-judge", action="store_true", help="write the files only")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Train, round, train and place the gate, write the files, judge; JSON on stdout."""
    args = parse(argv)
    started = time.monotonic()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    tokenizer = build_tokenizer()
    config = model_config(args.model, tokenizer)
    model = build_model(config)
    log(f"{args.model}: {model.parameter_count()} parameters")
    threshold = train(model, tokenizer, args)
    card = card_of(args, "none" if threshold is None else f"cdf@{threshold}")
    write_assets(model, config, tokenizer, args.out or ASSETS / args.model, card)
    trained = time.monotonic() - started
    results = {} if args.no_judge else judge(model, tokenizer, args, threshold)
    print(json.dumps({"card": card, "train_s": round(trained), "results": results}, indent=1))


def train(model: StagedModel, tokenizer: Tokenizer, args: argparse.Namespace) -> float | None:
    """All stages of a model's training; the threshold chosen where there is a gate.

    The looped model spends the last of its batches under its own gate, which is then trained anew.
    """
    if not model.dims.has_exit_gate:
        train_trunk(model, tokenizer, args, args.batches)
        round_to_bfloat16(model)
        return None
    first = args.batches - args.exit_batches
    train_trunk(model, tokenizer, args, first)
    round_to_bfloat16(model)
    stages: list[tuple[str, Callable[[], None]]] = [
        ("gate", lambda: train_gate(model, tokenizer, args)),
        ("exits", lambda: train_under_the_gate(model, tokenizer, args, first)),
        ("gate2", lambda: train_gate(model, tokenizer, args)),
    ]
    for name, stage in stages:
        store = args.checkpoints / f"{args.model}-seed{args.seed}-{name}.pt"
        if store.exists() and not args.fresh:
            model.load_state_dict(torch.load(store, weights_only=True))
            log(f"resumed {store.name}")
            continue
        stage()
        round_to_bfloat16(model)
        torch.save(model.state_dict(), store)
    return choose_threshold(model, tokenizer, validation_documents(args), THRESHOLDS)


def validation_documents(args: argparse.Namespace) -> list[Problem]:
    """Documents outside training and outside the shipped tasks, to choose the threshold on."""
    tested = {d.prompt for d in test_documents(args)}
    seed, count = args.test_seed + 1, args.validation
    drawn = [d for task in args.tasks for d in held_out_documents(task, count, seed)]
    return [d for d in drawn if d.prompt not in tested]


def test_documents(args: argparse.Namespace) -> list[Problem]:
    """The documents that ``scripts/make_demo_tasks.py`` writes."""
    seed, count = args.test_seed, args.documents
    return [d for task in args.tasks for d in held_out_documents(task, count, seed)]


if __name__ == "__main__":
    main()

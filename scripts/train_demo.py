"""Train the demo models and write their files.

    python -m scripts.train_demo --model demo-ouro      # also demo-dense, demo-dense-small
    python -m scripts.train_demo --model demo-huginn --device cuda --max-seconds 300
    python -m scripts.train_demo --model demo-ut --device cuda --max-seconds 300
    python -m scripts.judge_demo --model demo-ouro      # held-out results, by the engine

All see the same generated problems (``cdbench/workloads/demo_problems.py``). ``demo-ouro`` is one
layer looped four times with an exit gate; ``demo-dense`` four distinct layers, the same compute a
token; ``demo-dense-small`` one layer run once, the same parameters; ``demo-huginn`` a prelude, a
core and a coda layer, the core looped eight times; ``demo-ut`` one layer looped six times with a
halting unit. Batch i depends on the seed, the batch size and i alone.

A looped model learns a readout after every loop, and is served with early exits: a token that
leaves at loop k keeps its loop-k keys for every deeper loop. So, after a first phase, part of the
batches let tokens leave, with their keys frozen as a server would: once they are right, then by the
very rules that are served. ``docs/demo-models.md`` has the recipes and their results.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from cdbench.models.base import StagedModel
from cdbench.workloads.demo_problems import TASKS, build_tokenizer
from scripts.demo_training.assets import round_to_bfloat16, write_assets
from scripts.demo_training.batches import BATCH, BatchStream
from scripts.demo_training.configs import MODELS, model_config, new_model
from scripts.demo_training.gate import GateStage, train_gate
from scripts.demo_training.recipes import RECIPES, planner, polishing, under_the_gate
from scripts.demo_training.trunk import Keeping, Stage, log, train_trunk

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "cdbench" / "assets"


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", required=True, choices=MODELS)
    parser.add_argument("--batches", type=int, default=1850, help="the most batches of the trunk")
    parser.add_argument("--batch-size", type=int, default=BATCH, help="documents of a batch")
    parser.add_argument("--max-seconds", type=float, help="end the trunk, annealed, by then")
    parser.add_argument(
        "--exit-batches", type=int, default=250, help="of those, under the gate (demo-ouro)"
    )
    parser.add_argument(
        "--polish", type=Path, help="go on from these weights with the model's second stage"
    )
    parser.add_argument("--exit-lr", type=float, default=5e-4)
    parser.add_argument("--gate-batches", type=int, default=200)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--gate-lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--tasks",
        nargs="+",
        default=list(TASKS),
        choices=list(TASKS),
        help="one named twice is drawn twice as often",
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0, help="processes that draw batches")
    parser.add_argument("--out", type=Path, help="default: cdbench/assets/MODEL")
    parser.add_argument("--checkpoints", type=Path, default=ROOT / "checkpoints")
    parser.add_argument("--log-every", type=int, default=25)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--fresh", action="store_true", help="ignore earlier checkpoints")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Train, round, write the files; what was done goes to stdout as JSON."""
    args = parse(argv)
    started = time.monotonic()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    tokenizer = build_tokenizer()
    config = model_config(args.model, tokenizer)
    model = new_model(config).to(args.device)
    log(f"{args.model}: {model.parameter_count()} parameters on {args.device}")
    batches = train(model, args)
    card = card_of(args, batches)
    write_assets(model, config, tokenizer, args.out or ASSETS / args.model, card)
    trained_s = round(time.monotonic() - started)
    print(json.dumps({"card": card, "trained_s": trained_s, "device": device_name(args)}, indent=1))


def train(model: StagedModel, args: argparse.Namespace) -> int:
    """All stages of a model's training; the batches that its trunk has seen."""
    device = torch.device(args.device)
    stream = BatchStream(args.seed, args.tasks, args.batch_size, args.workers, device)
    name = f"{args.model}-seed{args.seed}"
    keeping = Keeping(args.checkpoints, name, args.save_every, args.log_every, args.fresh)
    if args.polish is not None:
        model.load_state_dict(torch.load(args.polish, weights_only=True, map_location=args.device))
        plan = polishing(args.model, model)
        polish = Stage("polish", args.batches, plan, args.lr, max_seconds=args.max_seconds)
        # Other documents than the first stage saw.
        stream = BatchStream(args.seed + 1, args.tasks, args.batch_size, args.workers, device)
        done = train_trunk(model, polish, stream, keeping)
        return _finish(model, keeping, done)
    has_gate = RECIPES[args.model].has_gate
    first = args.batches - args.exit_batches if has_gate else args.batches
    main_stage = Stage(
        "trunk", first, planner(args.model, model), args.lr, max_seconds=args.max_seconds
    )
    done = train_trunk(model, main_stage, stream, keeping)
    round_to_bfloat16(model)
    if has_gate:
        gate = GateStage(args.gate_batches, args.gate_lr, args.log_every)
        train_gate(model, gate, stream)
        round_to_bfloat16(model)
        exits = Stage(
            "exits",
            args.exit_batches,
            under_the_gate(model),
            args.exit_lr,
            first=done,
            decay_share=1.0,
            warm_up=0,
            weight_decay=0.01,
        )
        done += train_trunk(model, exits, stream, keeping)
        round_to_bfloat16(model)
        train_gate(model, gate, stream)
        round_to_bfloat16(model)
    return _finish(model, keeping, done)


def _finish(model: StagedModel, keeping: Keeping, batches: int) -> int:
    """Round to what is shipped, and keep it."""
    round_to_bfloat16(model)
    final = keeping.path("final")
    final.parent.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), final)
    return batches


def card_of(args: argparse.Namespace, batches: int) -> dict[str, Any]:
    """The card, with the recipe's rule; ``scripts/judge_demo.py`` chooses its threshold."""
    words = [
        f"python -m scripts.train_demo --model {args.model} --batches {args.batches}",
        f"--batch-size {args.batch_size} --lr {args.lr:g} --seed {args.seed}",
    ]
    if args.polish is not None:
        words.append(f"--polish checkpoints/{args.polish.name}")
    if args.tasks != list(TASKS):
        words.append("--tasks " + " ".join(args.tasks))
    if args.max_seconds is not None:
        words.append(f"--max-seconds {args.max_seconds:g} --device {args.device}")
    card = {
        "name": args.model,
        "exit": RECIPES[args.model].exit,
        "kv": "per-loop",
        "trained_with": " ".join(words),
        "tasks": [f"demo_{task}" for task in dict.fromkeys(args.tasks)],
    }
    if args.max_seconds is not None:
        card["notes"] = f"{batches} batches of {args.batch_size} on {device_name(args)}"
    return card


def device_name(args: argparse.Namespace) -> str:
    """The accelerator's name, or how many CPU threads ran."""
    if args.device == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"CPU, {args.threads} thread(s), torch {torch.__version__}"


if __name__ == "__main__":
    main()

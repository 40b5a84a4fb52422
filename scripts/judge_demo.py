"""Judge a demo model on the shipped held-out documents, and choose the threshold of its card.

    python -m scripts.judge_demo --model demo-ouro
    python -m scripts.judge_demo --model demo-huginn --choose --also kl@0.001

``--choose`` takes the card's rule, tries thresholds on validation documents and writes the least
cautious one that costs at most a quarter of a point into the card. Results are printed as JSON:
full depth, the card's rule, other rules, and fixed depths (``static@d``, prompts at d loops too).
"""

from __future__ import annotations

import argparse
import json

import torch

from cdbench.grammar import parse_exit
from cdbench.models.loading import load_model, locate
from scripts.demo_training.assets import read_card_file, write_card
from scripts.demo_training.judging import (
    adaptive,
    choose_threshold,
    judge,
    shipped_questions,
    validation_questions,
)

#: Thresholds tried for a card, the most cautious first.
GRIDS = {
    "cdf": [0.998, 0.995, 0.99, 0.98, 0.97, 0.95, 0.93, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5],
    "latent-diff": [0.02, 0.03, 0.05, 0.07, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3],
    "kl": [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1],
    "act": [0.9999, 0.9995, 0.999, 0.998, 0.996, 0.993, 0.99, 0.98],
}


def main(argv: list[str] | None = None) -> None:
    """Choose where asked to, judge, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", required=True, help="a demo model's name or directory")
    parser.add_argument("--choose", action="store_true", help="choose the card's threshold first")
    parser.add_argument("--also", nargs="*", default=[], help="further rules, as kl@0.001")
    parser.add_argument("--depths", nargs="*", type=int, help="fixed depths (default: all)")
    parser.add_argument("--documents", type=int, help="of each task (default: all)")
    parser.add_argument("--validation", type=int, default=50, help="documents of each task")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    model = load_model(args.model, device="cpu", dtype="float32")
    if args.choose:
        directory = locate(args.model)
        card = read_card_file(directory)
        name = card["exit"].partition("@")[0]
        questions = validation_questions(model.card.tasks, args.validation)
        chosen = choose_threshold(model, questions, name, GRIDS[name])
        card["exit"] = f"{name}@{chosen:g}"
        write_card(directory, card)
        model = load_model(args.model, device="cpu", dtype="float32")
    texts = [model.card.exit, *args.also]
    rules = [adaptive(parse_exit(text)) for text in texts if text != "none"]
    depths = args.depths
    if depths is None:
        depths = list(range(model.network.dims.max_loops - 1, 0, -1))
    results = judge(model, shipped_questions(model.card.tasks, args.documents), rules, depths)
    print(json.dumps({"model": model.name, "exit": model.card.exit, "results": results}, indent=1))


if __name__ == "__main__":
    main()

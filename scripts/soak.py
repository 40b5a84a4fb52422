"""Thousands of random engines short of memory, each against its requests alone.

    python scripts/soak.py --examples 2000 --seed 1 --out results/reference/soak/result.json

An example is a small random model (Ouro, Huginn, a Universal Transformer, one with layers in every
stage), two to nine requests with short prompts that have much in common and continuations of up to
a dozen tokens, any exit rule, floor and lag, and an engine of any mode, layout, width and chunk
size whose KV budget is near what its longest request needs alone; a prefix cache or none, a host
budget from one byte up or none. In half of the examples requests are cancelled between ticks.

What must hold: every request yields the tokens, depths and logprobs (within 1e-6, in float64) that
an independent engine computes for it alone, a cancelled one a beginning of them; between any two
ticks every KV row has one owner and every limit is kept; every loop that ran is counted once; at
the end nothing is left. An example that breaks this is named by its number, and ``--only N`` runs
it again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cdbench import manifest  # noqa: E402  (the checkout is the package)
from tests.pressure import (  # noqa: E402
    MODELS,
    Oracle,
    Palette,
    Served,
    draw_batch,
    draw_config,
    model_of,
    serve,
)

SHARED_PALETTE = 50
"""Consecutive examples of a model that draw from the same prompts and policies."""
CANCEL_RATE = 0.05
REPORT_EVERY_S = 20.0
FAILURES_KEPT = 20


@dataclass
class Soak:
    """Examples run so far, and what they met."""

    seed: int
    counts: dict[str, Counter[str]] = field(default_factory=lambda: {n: Counter() for n in MODELS})
    failures: list[dict[str, Any]] = field(default_factory=list)
    failed: int = 0
    largest_difference: float = 0.0
    _oracles: dict[str, tuple[int, Palette, Oracle]] = field(default_factory=dict)

    def example(self, number: int) -> None:
        """Run one example; it depends on the seed and its number alone."""
        name = list(MODELS)[number % len(MODELS)]
        palette, oracle = self._palette(name, number // len(MODELS) // SHARED_PALETTE)
        rng = random.Random(f"{self.seed} example {number}")
        batch = draw_batch(rng, palette)
        config = draw_config(rng, model_of(name), batch)
        rate = rng.choice([0.0, CANCEL_RATE])
        self.counts[name]["examples"] += 1
        try:
            served = serve(model_of(name), config, batch, rng, rate, check_every=2)
            oracle.check(served, batch)
        except Exception as error:
            self.failed += 1
            if len(self.failures) < FAILURES_KEPT:
                where = traceback.extract_tb(error.__traceback__)[-1]
                self.failures.append(
                    {
                        "example": number,
                        "model": name,
                        "config": repr(config),
                        "error": f"{type(error).__name__}: {str(error).splitlines()[:1]}",
                        "where": f"{Path(where.filename).name}:{where.lineno}",
                    }
                )
            return
        self.largest_difference = max(self.largest_difference, oracle.largest_difference)
        self._count(self.counts[name], served)

    def _palette(self, name: str, block: int) -> tuple[Palette, Oracle]:
        known = self._oracles.get(name)
        if known is None or known[0] != block:
            rng = random.Random(f"{self.seed} palette {name} {block}")
            palette = Palette.draw(rng, model_of(name), policies=6)
            known = block, palette, Oracle(model_of(name))
            self._oracles[name] = known
        return known[1:]

    def _count(self, count: Counter[str], served: Served) -> None:
        engine, memory = served.engine, served.engine.memory.counters
        count["requests"] += len(served.results)
        count["tokens"] += sum(len(result.tokens) for result in served.results.values())
        count["launches"] += len(served.log.records)
        count["cancellations"] += len(served.cancelled)
        count["preemptions"] += memory.preemptions
        count["preemptions_mid_token"] += memory.mid_token
        count["swapped_bytes"] += memory.swapped_bytes
        count["prompt_tokens"] += engine.cache.prompt_tokens
        count["prefix_hit_tokens"] += engine.cache.prefix_tokens
        count["examples_with_preemption"] += memory.preemptions > 0
        count["examples_with_prefix_hits"] += engine.cache.prefix_tokens > 0
        count["examples_with_host_budget"] += engine.config.kv_host_bytes is not None

    def figures(self) -> dict[str, Any]:
        """All counts, in total and by model."""
        total: Counter[str] = sum(self.counts.values(), Counter())
        return {"total": dict(total), "by_model": {n: dict(c) for n, c in self.counts.items()}}


def main(argv: list[str] | None = None) -> int:
    """Run the examples, writing the document as they go; 1 where one of them failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="stop after so long, at the latest")
    parser.add_argument("--only", type=int, metavar="N", help="run example N alone")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    soak, start_s = Soak(args.seed), time.perf_counter()
    about = manifest.collect(argv=["scripts/soak.py", *(sys.argv[1:] if argv is None else argv)])
    numbers = range(args.examples) if args.only is None else [args.only]
    reported_s = start_s
    for ran, number in enumerate(numbers, start=1):
        soak.example(number)
        now_s = time.perf_counter()
        late = args.minutes is not None and now_s - start_s > 60 * args.minutes
        if late or number == numbers[-1] or now_s - reported_s > REPORT_EVERY_S:
            reported_s = now_s
            _report(soak, about.model_dump(mode="json"), ran, len(numbers), start_s, args.out)
        if late:
            break
    print(json.dumps(soak.figures()["total"]))
    return 1 if soak.failed else 0


def _report(
    soak: Soak, about: dict[str, Any], ran: int, planned: int, start_s: float, out: Path | None
) -> None:
    document = {
        "what": "random engines under memory pressure against each request alone, in float64",
        "verdict": "every example exact" if not soak.failed else f"{soak.failed} examples failed",
        "seed": soak.seed,
        "examples_run": ran,
        "examples_planned": planned,
        "examples_failed": soak.failed,
        "largest_logprob_difference": soak.largest_difference,
        "duration_s": round(time.perf_counter() - start_s, 1),
        **soak.figures(),
        "failures": soak.failures,
        "manifest": about,
    }
    print(f"{ran} of {planned} examples, {soak.failed} failed", file=sys.stderr, flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

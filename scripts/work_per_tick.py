"""How much work is one tick of the engine? Counted, so that it is exact on any machine.

A scheduler whose work grows with the queue is slowest when it is needed most, and one that handles
tokens one by one cannot keep up with a wide batch. Two questions, each by counts of a stretch of
ticks in the middle of serving, when finished requests are replaced by waiting ones:

- Do 10,000 waiting requests make a tick dearer than 10? The same launches are made, so every count
  has to be equal.
- How does a tick grow with the width? Operations and lines of code should hardly grow, and the
  elements that operations touch, from the narrowest width to the widest, in proportion at most.

    python scripts/work_per_tick.py --out results/reference/performance/work-per-tick.json

The model is small and random, depths are synthetic and replayed: counts, no times, and nothing of a
model. What is counted, and what is not seen: ``scripts/counting.py``.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cdbench import manifest  # noqa: E402  (the checkout is the package)
from cdbench.models.base import StagedModel  # noqa: E402
from cdbench.models.loading import build_network, randomise  # noqa: E402
from cdbench.render.terminal import make_console, print_table  # noqa: E402
from cdbench.runtime.core import ExitPolicy, Request  # noqa: E402
from cdbench.runtime.engine import Engine  # noqa: E402
from cdbench.runtime.engine_config import EngineConfig  # noqa: E402
from cdbench.schema.files import write_whole  # noqa: E402
from scripts.counting import Work, counted  # noqa: E402
from scripts.performance_tables import work_tables  # noqa: E402

SMALL: dict[str, Any] = {
    "model_type": "ouro",
    "hidden_act": "silu",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "total_ut_steps": 4,
    "rms_norm_eps": 1e-6,
}
"""An Ouro so small that the rows of a launch weigh more than its weights do."""
RULE = ExitPolicy("cdf", 0.5)
MODES = ("static", "lockstep", "cdb")
WAITING = (10, 100, 1000, 10_000)
WIDTHS = (8, 16, 32, 64, 128, 256)
WIDTH = 32
"""Where the number of waiting requests varies."""
TICKS = 40
WAITING_MEANWHILE = 600
"""Where the width varies."""


@dataclass(frozen=True)
class Stretch:
    """So many ticks of one mode, what they did in all, and how many requests they admitted."""

    mode: str
    width: int
    waiting: int
    ticks: int
    admitted: int
    work: Work

    def record(self) -> dict[str, Any]:
        """As the document has it: counts of all ticks, and of one on average."""
        return asdict(self) | {"per_tick": self.work.per(self.ticks)}


def small_model() -> StagedModel:
    """A random model that costs next to nothing to run."""
    network = build_network(SMALL, torch.float32, torch.device("cpu"))
    randomise(network, 0)
    return network


def request(number: int, max_loops: int) -> Request:
    """A request that depends on its number alone, with everything about it given beforehand.

    Lengths are spread, so that requests end one by one.
    """
    draw = np.random.RandomState(number)
    prompt, tokens = draw.randint(2, 8), draw.randint(24, 97)
    return Request(
        id=str(number),
        prompt=draw.randint(0, SMALL["vocab_size"], prompt).tolist(),
        exit=RULE,
        force=draw.randint(0, SMALL["vocab_size"], tokens).tolist(),
        replay_depths=[max_loops, *draw.randint(1, max_loops + 1, tokens - 1).tolist()],
    )


def stretch(network: StagedModel, mode: str, width: int, waiting: int, ticks: int) -> Stretch:
    """Count so many ticks from when the first finished request has been replaced.

    Raises:
        ValueError: the queue is empty before they are over.
    """
    # With one place free a waiting request is admitted: replacing is spread over most ticks.
    config = EngineConfig(mode=mode, max_residents=width, min_free_residents=1)
    engine, total = Engine(network, config), width + waiting
    for number in range(total):
        engine.submit(request(number, network.dims.max_loops))
    while queued(engine, total) >= waiting:
        engine.tick()
    before = queued(engine, total)
    gc.collect()
    gc.disable()  # a collection may call code, whenever it comes
    try:
        with counted() as work:
            for _ in range(ticks):
                engine.tick()
    finally:
        gc.enable()
    left = queued(engine, total)
    if not left:
        raise ValueError(f"{waiting} waiting requests do not last for {ticks} ticks of {mode}")
    return Stretch(mode, width, waiting, ticks, before - left, work)


def queued(engine: Engine, submitted: int) -> int:
    """How many of the requests submitted are neither resident nor done."""
    return submitted - engine.residents.occupied_count - engine.ended_count


def grows_with_queue(stretches: Sequence[Stretch]) -> bool:
    """Whether any count of a mode depends on how many requests wait."""
    alike: dict[str, set[tuple[int, ...]]] = {}
    for one in stretches:
        alike.setdefault(one.mode, set()).add((one.admitted, *vars(one.work).values()))
    return any(len(counts) > 1 for counts in alike.values())


def growth(stretches: Sequence[Stretch]) -> dict[str, dict[str, float]]:
    """By mode and count: the widest's over the narrowest's, a tick, over the ratio of widths.

    1 is in proportion to the width; 1 / (ratio of widths) is not at all.
    """
    found = {}
    for mode in dict.fromkeys(one.mode for one in stretches):
        of_mode = sorted((s for s in stretches if s.mode == mode), key=lambda s: s.width)
        least, most = of_mode[0], of_mode[-1]
        wider = most.width / least.width
        first, last = least.work.per(least.ticks), most.work.per(most.ticks)
        found[mode] = {name: round(last[name] / first[name] / wider, 4) for name in first}
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Count, print two tables, write the document; 1 where a count grows as it must not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, help="where the JSON document goes")
    parser.add_argument("--tiny", action="store_true", help="few cells, to see that it works")
    args = parser.parse_args(argv)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    modes, waiting, widths = (("cdb",), WAITING[:2], WIDTHS[:2]) if args.tiny else _everything()
    network = small_model()
    by_queue = [stretch(network, m, WIDTH, n, TICKS) for m in modes for n in waiting]
    by_width = [stretch(network, m, w, WAITING_MEANWHILE, TICKS) for m in modes for w in widths]
    flat, grown = not grows_with_queue(by_queue), growth(by_width)
    linear = all(counts["elements"] <= 1 for counts in grown.values())
    document = {
        "what": "counted work of the engine's ticks; no times",
        "note": "a small random model, synthetic depths replayed",
        "flat_in_waiting": flat,
        "at_most_linear_in_width": linear,
        "growth_over_width": grown,
        "by_waiting": [one.record() for one in by_queue],
        "by_width": [one.record() for one in by_width],
        "manifest": manifest.collect(argv=_typed(argv)).model_dump(mode="json"),
    }
    for table in work_tables(document):
        print_table(table, make_console())
        print()
    if args.out is not None:
        write_whole(args.out, json.dumps(document, indent=1) + "\n")
    return 0 if flat and linear else 1


def _everything() -> tuple[Sequence[str], Sequence[int], Sequence[int]]:
    return MODES, WAITING, WIDTHS


def _typed(argv: Sequence[str] | None) -> list[str]:
    return ["scripts/work_per_tick.py", *(sys.argv[1:] if argv is None else argv)]


if __name__ == "__main__":
    sys.exit(main())

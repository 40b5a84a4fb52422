"""Does the engine's memory stay flat over tens of thousands of requests?

Short requests of varied lengths are served one after another, the longest first, a few hundred of
them waiting at any time; what they produce is dropped. Every so many finished requests four things
are read: KV rows that the pools hold, bytes of the tables that say whose they are, objects that
Python's collector has come to know, and the resident memory of the process.

Pools and tables grow to what the residents need at worst and must then stay as they are, to the
byte. Memory of the process moves by itself, since an allocator keeps and splits what it has, so its
growth is given with an interval: the growth of each of eight equal parts of the run after the first
quarter, per 1,000 requests.

    python scripts/long_run_memory.py --out results/reference/performance/memory.json

Three engines: ``static``; ``cdb``; and ``cdb`` short of memory, with a KV budget for a third of its
residents, a prefix cache and prompts that have beginnings in common, so that residents move to host
memory and prefixes are given up all the time. The model is small and random, depths are its own:
nothing here is a time, and nothing is of a model.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cdbench import manifest  # noqa: E402  (the checkout is the package)
from cdbench.models.base import StagedModel  # noqa: E402
from cdbench.render.terminal import make_console, print_table  # noqa: E402
from cdbench.runtime.core import ExitPolicy, Request  # noqa: E402
from cdbench.runtime.engine import Engine  # noqa: E402
from cdbench.runtime.engine_config import EngineConfig  # noqa: E402
from cdbench.schema.files import write_whole  # noqa: E402
from cdbench.stats import blocks  # noqa: E402
from cdbench.stats.interval import Interval  # noqa: E402
from scripts.performance_tables import memory_table  # noqa: E402
from scripts.work_per_tick import SMALL, small_model  # noqa: E402

RESIDENTS = 32
MOST_PROMPT, MOST_TOKENS = 12, 12
RULE = ExitPolicy("cdf", 0.5)
WAITING = 256
WARM_UP = 0.25
"""Share of the run in which pools and tables may grow."""
PARTS = 8
SAMPLES = 80
TINY_REQUESTS = 240
TRUNKS = 40
"""Beginnings that prompts have in common."""


@dataclass(frozen=True)
class Sample:
    """What is held after so many finished requests. ``objects``: those of Python's collector."""

    finished: int
    pool_rows: int
    rows_in_use: int
    table_bytes: int
    objects: int
    rss_bytes: int


@dataclass(frozen=True)
class LongRun:
    """One engine's run: what was sampled, and what it went through."""

    name: str
    samples: tuple[Sample, ...]
    tokens: int
    preemptions: int
    prefix_hit_rate: float | None
    rows_left: int

    @property
    def settled(self) -> tuple[Sample, ...]:
        """The samples after the warm-up."""
        first = WARM_UP * self.samples[-1].finished
        return tuple(one for one in self.samples if one.finished >= first)

    @property
    def tables_are_flat(self) -> bool:
        """Whether pools and tables stayed as they were, and no row was lost."""
        held = {(one.pool_rows, one.table_bytes) for one in self.settled}
        return len(held) == 1 and not self.rows_left

    def record(self) -> dict[str, Any]:
        """As the document has it."""
        rss = growth(self.settled, "rss_bytes")
        return asdict(self) | {
            "first": asdict(self.settled[0]),
            "last": asdict(self.settled[-1]),
            "tables_are_flat": self.tables_are_flat,
            "rss_growth_bytes_per_1000": None if rss is None else asdict(rss),
            "rss_growth_share": _share(self.settled),
        }


def growth(samples: Sequence[Sample], what: str, parts: int = PARTS) -> Interval | None:
    """Growth per 1,000 requests: mean over equal parts of the samples, 95 % t interval.

    None with fewer samples than parts have ends.
    """
    if len(samples) < parts + 1:
        return None
    ends = [samples[round(i * (len(samples) - 1) / parts)] for i in range(parts + 1)]
    each = [
        1000 * (getattr(after, what) - getattr(before, what)) / (after.finished - before.finished)
        for before, after in pairwise(ends)
    ]
    return blocks.mean(each)


def _share(samples: Sequence[Sample]) -> float:
    """What memory of the process grew by from the first to the last sample, over the first."""
    return samples[-1].rss_bytes / samples[0].rss_bytes - 1


def requests(seed: int, max_loops: int) -> Iterator[Request]:
    """Short requests without end; three in four begin as others do.

    The first ones are as long as any, so that pools come to what they need at worst at once.
    """
    draw = np.random.RandomState(seed)
    vocabulary = SMALL["vocab_size"]
    trunks = [draw.randint(0, vocabulary, MOST_PROMPT // 2).tolist() for _ in range(TRUNKS)]
    number = 0
    while True:
        shared = trunks[draw.randint(TRUNKS)] if draw.random_sample() < 0.75 else []
        length, tokens = draw.randint(1, MOST_PROMPT // 2 + 1), draw.randint(1, MOST_TOKENS + 1)
        if number < RESIDENTS:
            shared, length, tokens = trunks[0], MOST_PROMPT // 2, MOST_TOKENS
        own = draw.randint(0, vocabulary, length).tolist()
        yield Request(
            id=str(number),
            prompt=[*shared, *own],
            max_new_tokens=int(tokens),
            exit=replace(RULE, min_loops=int(draw.randint(1, max_loops + 1))),
        )
        number += 1


def engines(network: StagedModel) -> dict[str, Engine]:
    """The three engines by the name that the table gives them."""
    free = EngineConfig(mode="cdb", max_residents=RESIDENTS)
    shape = Engine(network, free).cache.shape
    short = replace(
        free,
        kv_budget_bytes=shape.budget_for((MOST_PROMPT + MOST_TOKENS) * RESIDENTS // 3),
        prefix_cache=True,
    )
    configs = {
        "static": replace(free, mode="static"),
        "cdb": free,
        "cdb, short of memory, prefixes cached": short,
    }
    return {name: Engine(network, config) for name, config in configs.items()}


def long_run(name: str, engine: Engine, count: int, every: int) -> LongRun:
    """Serve ``count`` requests and sample after every ``every`` of them.

    Raises:
        RuntimeError: a request failed.
    """
    source = requests(0, engine.max_loops)
    submitted = min(WAITING, count)
    for _ in range(submitted):
        engine.submit(next(source))
    samples, tokens = [], 0
    # What was there before is not looked through again and again, nor counted.
    gc.collect()
    gc.freeze()
    for finished, result in enumerate(engine.run(), start=1):
        if result.error is not None:
            raise RuntimeError(f"request {result.id} of {name}: {result.error}")
        tokens += len(result.tokens)
        if submitted < count:
            engine.submit(next(source))
            submitted += 1
        if finished % every == 0:
            samples.append(sample(engine, finished))
    gc.unfreeze()
    preemptions, hits = engine.memory.counters.preemptions, engine.cache.prefix_hit_rate
    engine.cache.clear_prefixes()
    return LongRun(name, tuple(samples), tokens, preemptions, hits, engine.cache.rows_in_use)


def sample(engine: Engine, finished: int) -> Sample:
    """What the engine and its process hold now."""
    gc.collect()
    stages = engine.cache.stages.values()
    tables = [table for s in stages for table in (s.table, s.by_loop) if table is not None]
    return Sample(
        finished=finished,
        pool_rows=sum(stage.pool.rows for stage in stages),
        rows_in_use=engine.cache.rows_in_use,
        table_bytes=sum(table.host.nbytes for table in tables),
        objects=len(gc.get_objects()),
        rss_bytes=psutil.Process().memory_info().rss,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the engines, print the table, write the document; 1 where pools or tables grew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, help="where the JSON document goes")
    parser.add_argument("--requests", type=int, default=20_000, help="of each engine")
    parser.add_argument("--tiny", action="store_true", help="few requests, to see that it works")
    args = parser.parse_args(argv)
    if args.requests < 1:
        parser.error("--requests must be at least 1")
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    count, wanted = (TINY_REQUESTS, 2 * PARTS) if args.tiny else (args.requests, SAMPLES)
    every, network = max(1, count // wanted), small_model()
    runs = [long_run(name, engine, count, every) for name, engine in engines(network).items()]
    typed = ["scripts/long_run_memory.py", *(sys.argv[1:] if argv is None else argv)]
    document = {
        "what": "memory of engines that serve many short requests",
        "note": "a small random model; nothing is timed",
        "tables_are_flat": all(run.tables_are_flat for run in runs),
        "runs": [run.record() for run in runs],
        "manifest": manifest.collect(argv=typed).model_dump(mode="json"),
    }
    print_table(memory_table(document), make_console())
    if args.out is not None:
        write_whole(args.out, json.dumps(document, indent=1) + "\n")
    return 0 if document["tables_are_flat"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""Is mode ``dense`` at least as fast as ``transformers`` on the same weights?

A baseline that is slower than what anybody would use makes every speed-up over it look good. So
mode ``dense`` stands beside ``generate`` (a padded batch, greedy, with a KV cache and ``sdpa``) and
``transformers``' continuous batching: the same Llama checkpoint, dtype, threads, prompts and output
lengths, tokens in and tokens out, prompts included in the time.

    python scripts/dense_beside_transformers.py --out results/reference/performance/dense.json

Lengths are either all equal, which is the best that can happen to a padded batch, or spread evenly
from a quarter to seven quarters of that. Each contestant serves everything once untimed; then they
take turns in palindromic blocks, A B C C B A, and each block gives one ratio of walls. The document
has every wall, medians, ratios with 95 % t intervals on logs, and how far the tokens agree: equal
in float32 but for near-ties, and whatever rounding makes of them in bfloat16.

Weights are random, so the tokens mean nothing; the times are those of a model of this size.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
# As the command line of cdbench sets it, before torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import numpy as np  # noqa: E402
import torch  # noqa: E402

from cdbench import manifest  # noqa: E402  (the checkout is the package)
from cdbench.render.terminal import make_console, print_table  # noqa: E402
from cdbench.schema.files import write_whole  # noqa: E402
from cdbench.stats.agreement import Agreement, compare_texts  # noqa: E402
from cdbench.stats.blocks import BlockRun, palindrome, speedup  # noqa: E402
from cdbench.stats.interval import Interval  # noqa: E402
from scripts.dense_contestants import (  # noqa: E402
    Cdbench,
    Contestant,
    DoesNotRunError,
    Sizes,
    Work,
    contestants,
    save_random_llama,
)
from scripts.performance_tables import dense_table  # noqa: E402

DTYPES = ("float32", "bfloat16")
LENGTHS = ("equal", "mixed")
TINY = Sizes(hidden=32, layers=2, heads=4, intermediate=64, vocabulary=64, positions=64)


@dataclass
class Setting:
    """One comparison: a dtype and a kind of lengths, and what came out."""

    dtype: str
    lengths: str
    work: Work
    runs: list[BlockRun] = field(default_factory=list)
    tokens: dict[str, list[list[int]]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Who served, in the order of the table."""
        return list(self.tokens)

    def walls(self, name: str) -> list[float]:
        """Seconds of each of its timed runs."""
        return [run.wall_s for run in self.runs if run.mode == name]

    def tokens_per_s(self, name: str) -> float:
        """Output tokens over its median wall."""
        return self.work.output_tokens / median(self.walls(name))

    def over(self, name: str) -> Interval | None:
        """wall of ``name`` / wall of cdbench: above 1, cdbench is faster."""
        return speedup(self.runs, Cdbench.name, name)

    def agreement(self, name: str) -> Agreement | None:
        """How far cdbench's tokens are its tokens."""
        return compare_texts(list(zip(self.tokens[name], self.tokens[Cdbench.name], strict=True)))

    def record(self) -> dict[str, Any]:
        """As the document has it."""
        return {
            "dtype": self.dtype,
            "lengths": self.lengths,
            "requests": len(self.work.prompts),
            "prompt_tokens": self.work.prompt_tokens,
            "output_tokens": self.work.output_tokens,
            "contestants": {name: self._contestant(name) for name in self.names},
            "not_run": self.not_run,
            "order": [run.mode for run in self.runs],
        }

    def _contestant(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "wall_s": self.walls(name),
            "median_wall_s": median(self.walls(name)),
            "tokens_per_s": self.tokens_per_s(name),
        }
        if name != Cdbench.name:
            over, agreement = self.over(name), self.agreement(name)
            found["cdbench_over_it"] = None if over is None else asdict(over)
            found["tokens"] = None if agreement is None else asdict(agreement)
        return found


def draw_work(
    lengths: str, requests: int, prompt: int, output: int, vocabulary: int, seed: int = 0
) -> Work:
    """Random ids; lengths all equal, or from a quarter to seven quarters of what is given."""
    draw = np.random.RandomState(seed)
    sizes = []
    for centre in (prompt, output):
        least, most = max(1, centre // 4), 2 * centre - max(1, centre // 4)
        drawn = draw.randint(least, most + 1, requests)
        sizes.append([centre] * requests if lengths == "equal" else drawn.tolist())
    prompts = tuple(tuple(draw.randint(0, vocabulary, n).tolist()) for n in sizes[0])
    return Work(prompts, tuple(sizes[1]))


def measure(setting: Setting, everyone: Sequence[Contestant], blocks: int) -> None:
    """Serve once untimed, then time in blocks; who cannot serve is left out, with the reason."""
    by_name = {}
    for one in everyone:
        try:
            with one.ready() as serve:
                tokens = serve(setting.work)
            check(tokens, setting.work)
        except Exception as error:
            if isinstance(one, Cdbench):
                raise
            why = str(error) if isinstance(error, DoesNotRunError) else repr(error)
            setting.not_run[one.name] = f"does not run on a CPU: {why}"
            continue
        setting.tokens[one.name], by_name[one.name] = tokens, one
    for block in range(blocks):
        for name in palindrome(setting.names, rotate=block):
            with by_name[name].ready() as serve:
                began_s = time.perf_counter()
                serve(setting.work)
                took_s = time.perf_counter() - began_s
            setting.runs.append(BlockRun(block, name, took_s))


def check(tokens: Sequence[Sequence[int]], work: Work) -> None:
    """Raise DoesNotRunError where there are more or fewer tokens than asked for."""
    if [len(line) for line in tokens] != list(work.outputs):
        raise DoesNotRunError("it did not make as many tokens as it was asked for")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the document."""
    args = _arguments(argv)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    typed = ["scripts/dense_beside_transformers.py", *(sys.argv[1:] if argv is None else argv)]
    about = manifest.collect(argv=typed).model_dump(mode="json")
    sizes = TINY if args.tiny else Sizes()
    settings = []
    with tempfile.TemporaryDirectory() as directory:
        save_random_llama(Path(directory), sizes)
        for dtype in args.dtypes:
            works = {
                kind: draw_work(kind, args.requests, args.prompt, args.output, sizes.vocabulary)
                for kind in args.lengths
            }
            longest = max(work.longest for work in works.values())
            everyone = contestants(Path(directory), dtype, args.width, longest)
            for kind, work in works.items():
                print(f"{dtype}, {kind} lengths", file=sys.stderr)
                settings.append(Setting(dtype, kind, work))
                measure(settings[-1], everyone, args.blocks)
    document = {
        "what": "mode dense beside transformers on one Llama checkpoint, greedy",
        "note": "random weights: times only",
        "model": asdict(sizes),
        "width": args.width,
        "blocks": args.blocks,
        "settings": [setting.record() for setting in settings],
        "manifest": about,
    }
    print_table(dense_table(document), make_console())
    if args.out is not None:
        write_whole(args.out, json.dumps(document, indent=1) + "\n")
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, help="where the JSON document goes")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--width", type=int, default=32, help="requests at a time")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=32, help="tokens of an output")
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--threads", type=int, help="of torch; default: its own choice")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to see that it works")
    args = parser.parse_args(argv)
    for name in ("requests", "width", "prompt", "output", "blocks"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1")
    room = (TINY if args.tiny else Sizes()).positions
    if 2 * (args.prompt + args.output) > room:
        parser.error(f"--prompt and --output: the model has {room} positions; lower them")
    return args


if __name__ == "__main__":
    sys.exit(main())

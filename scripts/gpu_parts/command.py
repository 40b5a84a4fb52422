"""The command line of the check."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.gpu_parts.catalogue import PARTS, listing
from scripts.gpu_parts.packages import MissingPackagesError, provide

ROOT = Path(__file__).resolve().parent.parent.parent
BUDGET_S = 330.0
USAGE = 2


@dataclass(frozen=True)
class Options:
    """What to run, where, and within how many seconds in all.

    ``out`` is an absolute path; ``typed`` are the words of the command line that asked for it.
    """

    out: Path
    device: str
    tiny: bool
    parts: tuple[str, ...]
    budget_s: float
    typed: tuple[str, ...] = ()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check: 0, or 1 where a part failed or found a fault, 2 where it cannot start."""
    parser = _parser()
    words = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(words)
    if args.list:
        print(listing())
        return 0
    if args.out is None:
        parser.error("--out is missing; name the file for the document")
    out = args.out.resolve()
    chosen = tuple(name for name in PARTS if name in args.parts)  # by worth, however named
    typed = tuple(json.loads(args.typed)) if args.typed else tuple(words)
    options = Options(out, args.device, args.tiny, chosen, args.budget_s, typed)
    try:
        provide(ROOT / "wheels")
    except MissingPackagesError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return USAGE
    if args.worker is not None:
        from scripts.gpu_parts.worker import work

        return work(options, args.worker, args.resume)
    from scripts.gpu_parts.supervisor import supervise

    return supervise(options)


def worker_arguments(
    options: Options, waiting: Sequence[str], left_s: float, folder: Path, resume: bool
) -> list[str]:
    """The arguments of a process that runs the waiting parts."""
    return [
        *("--out", str(options.out)),
        *("--device", options.device),
        *(["--tiny"] if options.tiny else []),
        *("--budget-s", f"{left_s:.3f}"),
        *("--worker", str(folder)),
        *("--typed", json.dumps(options.typed)),
        *(["--resume"] if resume else []),
        *("--parts", *waiting),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu_check.py",
        description="What a CUDA machine can tell that a CPU cannot, in one JSON document.",
    )
    parser.add_argument("--out", type=Path, help="file for the document; an old one is replaced")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a CPU test")
    parser.add_argument(
        "--parts", nargs="+", default=list(PARTS), choices=list(PARTS), metavar="PART"
    )
    parser.add_argument(
        "--budget-s", type=float, default=BUDGET_S, help="for all parts, in seconds (%(default)g)"
    )
    parser.add_argument("--list", action="store_true", help="name the parts and their times")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--typed", help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    return parser

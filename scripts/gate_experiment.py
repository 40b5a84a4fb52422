"""How often a paired gate errs: on simulated noise, and on a real checkout that was slowed.

    python scripts/gate_experiment.py simulate --out results/reference/gate/simulated.json
    python scripts/gate_experiment.py real --folder build/gate-experiment \\
        --out results/reference/gate/real.json

*simulate* draws the walls of whole gates (24 pairs, A B B A) under several kinds of noise and lets
the gate's own functions decide them, look by look. The scatter is that of one pair's log ratio. The
claims: unchanged code FAILs in at most 1 % of gates, and a slowdown of 8 % in at least 98 %.

*real* makes copies of this checkout, one of them with every tick of the engine followed by a busy
wait of 8 % of its length, and runs the gate between them: as often slowed as unchanged, in turns.
"""

from __future__ import annotations

import argparse
import json
import shutil
import stat
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cdbench import manifest  # noqa: E402  (the checkout is the package)
from cdbench.compare.gate_file import parse_gate  # noqa: E402
from cdbench.compare.pair import run_pair  # noqa: E402
from cdbench.compare.pair.seen import Seen, log_gains  # noqa: E402
from cdbench.schema.files import write_whole  # noqa: E402
from cdbench.schema.pairing import PairOutcome  # noqa: E402
from cdbench.stats.gate import DEFAULT_MARGIN, LOOKS  # noqa: E402
from scripts.gate_simulation import cells, claims, named, simulate  # noqa: E402

PARTS = ("cdbench", "tasks", "configs")

SLOWED = """

# Appended by an experiment: every tick takes a given share longer.
def _slow_down(tick, share):
    import functools
    from time import perf_counter

    @functools.wraps(tick)
    def slowed(self):
        began = perf_counter()
        done = tick(self)
        until = perf_counter() + share * (perf_counter() - began)
        while perf_counter() < until:
            pass
        return done

    return slowed


Engine.tick = _slow_down(Engine.tick, {share})
"""


def _simulated(args: argparse.Namespace) -> dict[str, Any]:
    found = []
    for number, cell in enumerate(cells()):
        draw = np.random.default_rng([args.seed, number])
        found.append(simulate(cell, args.gates, draw))
        print(json.dumps(named(found[-1]) | {"change": cell.change}), file=sys.stderr)
    return {
        "what": "paired gates on simulated noise, decided by the gate's own functions",
        "margin": DEFAULT_MARGIN,
        "looks": list(LOOKS),
        "seed": args.seed,
        "gates_per_cell": args.gates,
        "claims": claims(found),
        "cells": found,
    }


# A real checkout.


def checkout(folder: Path, name: str, slowdown: float = 0.0) -> str:
    """A copy of this checkout, slowed or not; the interpreter that uses it."""
    place = folder / name
    for part in PARTS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, place / part, ignore=ignored)
    if slowdown:
        engine = place / "cdbench" / "runtime" / "engine.py"
        engine.write_text(engine.read_text() + SLOWED.format(share=slowdown))
    python = place / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={place} exec {sys.executable} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return str(python)


def _real(args: argparse.Namespace) -> dict[str, Any]:
    folder = Path(args.folder)
    pythons = {
        "old": checkout(folder, "old"),
        "unchanged": checkout(folder, "unchanged"),
        "slowed": checkout(folder, "slowed", args.slowdown),
    }
    gate = parse_gate(
        {
            "name": "experiment",
            "modes": args.modes.split(","),
            "timed": {"metrics": ["output_throughput"]},
        },
        "gate",
    )
    gates = []
    for number in range(args.times):
        for kind in ("slowed", "unchanged"):
            began = time.monotonic()
            outcome = run_pair(
                pythons["old"],
                pythons[kind],
                args.config,
                gate,
                "",
                overrides=args.set,
                progress=lambda line: print(f"gate_experiment: {line}", file=sys.stderr),
            )
            gates.append(_gate(kind, number, outcome, time.monotonic() - began))
            print(json.dumps(gates[-1]), file=sys.stderr)
    said = {kind: Counter(g["verdict"] for g in gates if g["kind"] == kind) for kind in pythons}
    return {
        "what": "the paired gate between real checkouts, one of them slowed",
        "slowdown": args.slowdown,
        "config": args.config,
        "set": args.set,
        "modes": args.modes,
        "slowed_passed": said["slowed"]["PASS"],
        "unchanged_failed": said["unchanged"]["FAIL"],
        "inconclusive": {kind: said[kind]["INCONCLUSIVE"] for kind in ("slowed", "unchanged")},
        "gates": gates,
    }


def _gate(kind: str, number: int, outcome: PairOutcome, took_s: float) -> dict[str, Any]:
    receipt = outcome.receipt
    seen, timed = Seen(outcome.runs), [c for c in receipt.checks if c.kind == "timed"]
    section = parse_gate(
        {"name": "x", "timed": {"metrics": ["output_throughput"], "modes": ["cdb"]}}, "gate"
    ).timed
    return {
        "kind": kind,
        "number": number,
        "verdict": receipt.verdict,
        "pairs": receipt.run.blocks,
        "took_s": round(took_s, 1),
        "checks": [check.model_dump(mode="json", exclude_none=True) for check in timed],
        "log_ratios": {
            check.mode: log_gains(seen, (check.mode or "", check.metric or ""), section)
            for check in timed
        },
        "looks": [look.model_dump(mode="json") for look in receipt.looks],
        "notes": receipt.notes,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("simulate")
    one.add_argument("--gates", type=int, default=4000, help="of each kind")
    one.add_argument("--seed", type=int, default=0)
    two = kinds.add_parser("real")
    two.add_argument("--folder", required=True, help="where the copies go: new, or empty")
    two.add_argument("--config", default="ci")
    two.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    two.add_argument("--modes", default="cdb", help="modes whose throughput is compared")
    two.add_argument("--times", type=int, default=3, help="gates slowed, and as many unchanged")
    two.add_argument("--slowdown", type=float, default=0.08)
    for each in (one, two):
        each.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    """Run one of the experiments and write its record."""
    args = _arguments()
    found = _simulated(args) if args.kind == "simulate" else _real(args)
    started = manifest.collect([], argv=["gate_experiment.py", *sys.argv[1:]])
    facts = started.model_dump(mode="json", include={"command", "git", "source_sha256", "cpu"})
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(args.out, json.dumps({**found, "manifest": facts}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What the engine itself costs a tick: microseconds of host time, on a model that costs none.

Decode is served by ``NullModel``, whose stages do nothing, so what remains is queues, tables,
contexts, exit tests, tokens and the launches' bookkeeping. Two parts are told apart: time *inside*
launches, which every figure counts as a stage's, and the *gaps* between launches, which
``host_share`` counts. Three cells a width: ``static`` and ``cdb`` with no exits, and ``cdb`` with
depths that go on from token to token (``serial:0.5``), which change the batch at every loop.

    python scripts/hot_path.py --out results/reference/performance/hot-path.json
    python scripts/hot_path.py --code before=/path/to/old/checkout --code after=. --out FILE

With several ``--code`` checkouts their processes take turns (A B B A), and every figure is a median
over blocks; the last is compared with the first by ratios within blocks. The document also has the
most expensive functions of a ``cdb`` pass, by the profiler: its times are inflated, their order is
what counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cdbench import manifest  # noqa: E402  (the checkout is the package)
from cdbench.render.formats import Kind  # noqa: E402
from cdbench.render.table import Cell, Column, Row, Table, text  # noqa: E402
from cdbench.render.terminal import make_console, print_table  # noqa: E402
from cdbench.schema.files import write_whole  # noqa: E402
from cdbench.stats.blocks import geometric_mean  # noqa: E402

WIDTHS = (1, 8, 32, 128)
TICKS = 600
"""Choices of the schedule in the timed part of a cell: a core launch each, or a coda launch and the
prelude launch after it."""
CELLS = ROOT / "scripts" / "hot_path_cells.py"


@dataclass(frozen=True)
class Code:
    """A checkout whose engine is measured."""

    name: str
    folder: Path


@dataclass(frozen=True)
class Plan:
    """What one process measures."""

    widths: tuple[int, ...] = WIDTHS
    ticks: int = TICKS


def run_block(code: Code, plan: Plan, profiles: bool) -> dict[str, Any]:
    """Measure one checkout in a process of its own."""
    command = [sys.executable, str(CELLS), str(code.folder), "--ticks", str(plan.ticks)]
    command += ["--widths", *map(str, plan.widths), *["--profile"] * profiles]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def cell_key(cell: dict[str, Any]) -> tuple[str, str, int]:
    return cell["mode"], cell["depths"], cell["width"]


def medians(blocks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each cell's figures, as medians over the blocks of one checkout."""
    by_key: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for block in blocks:
        for cell in block["cells"]:
            by_key.setdefault(cell_key(cell), []).append(cell)
    return [_median_of(cells) for cells in by_key.values()]


def _median_of(values: Sequence[Any]) -> Any:
    """The median, number by number, of documents of one form; texts and counts are alike."""
    first = values[0]
    if isinstance(first, dict):
        return {key: _median_of([value[key] for value in values]) for key in first}
    return median(values) if isinstance(first, float) else first


def ratios(
    before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], figure: str
) -> list[dict[str, Any]]:
    """By cell, after over before within blocks: the geometric mean with its 95 % interval."""
    found = []
    for place, cell in enumerate(before[0]["cells"]):
        logs = [
            log(new["cells"][place][figure] / old["cells"][place][figure])
            for old, new in zip(before, after, strict=True)
        ]
        interval = geometric_mean(logs)
        assert interval is not None
        mode, depths, width = cell_key(cell)
        found.append({"mode": mode, "depths": depths, "width": width, **asdict(interval)})
    return found


def over_static(blocks: Sequence[dict[str, Any]]) -> dict[int, float]:
    """By width, ``cdb`` over ``static`` with no exits, in time a tick: the median over blocks."""
    found: dict[int, list[float]] = {}
    for block in blocks:
        ticks = {cell_key(cell): cell["us_per_tick"] for cell in block["cells"]}
        for _, _, width in ticks:
            ratio = ticks["cdb", "none", width] / ticks["static", "none", width]
            found.setdefault(width, []).append(ratio)
    return {width: median(values) for width, values in found.items()}


def show(name: str, cells: Sequence[dict[str, Any]]) -> None:
    """Print one checkout's table."""
    stages = ("core", "coda", "prelude")
    columns = [Column("mode", align="left"), Column("depths", align="left"), Column("width")]
    columns += [Column(part, "µs", group=stage) for stage in stages for part in ("inside", "gap")]
    columns += [Column("cycle", "µs"), Column("a token", "µs")]
    rows = []
    for cell in cells:
        parts = [cell["stages"][stage][key] for stage in stages for key in ("inside_us", "gap_us")]
        numbers = [*parts, cell["cycle_us"], cell["us_per_token"]]
        head = (text(cell["mode"]), text(cell["depths"]), Cell(cell["width"], Kind.COUNT))
        rows.append(Row((*head, *(Cell(round(number, 1)) for number in numbers))))
    title = f"Host time of the engine: {name}"
    print_table(Table(tuple(columns), tuple(rows), title=title), make_console())


def compare(codes: Sequence[Code], plan: Plan, blocks: int) -> dict[str, Any]:
    """Let the checkouts take turns; their medians, and the last against the first."""
    names = [code.name for code in codes]
    by_name = {code.name: code for code in codes}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for block in range(blocks):
        order = names if block % 2 == 0 else names[::-1]
        for name in order:
            print(f"block {block + 1} of {blocks}: {name}", file=sys.stderr, flush=True)
            found[name].append(run_block(by_name[name], plan, profiles=block == blocks - 1))
    document: dict[str, Any] = {"blocks": blocks, "ticks": plan.ticks, "codes": {}}
    for name in names:
        state = manifest.git_state(by_name[name].folder / "cdbench")
        document["codes"][name] = {
            "git": None if state is None else state.model_dump(mode="json"),
            "cells": medians(found[name]),
            "cdb_over_static_no_exits": over_static(found[name]),
            "profile": found[name][-1]["profile"],
        }
    if len(names) > 1:
        first, last_name = found[names[0]], found[names[-1]]
        document["ratios"] = {
            "of": names[-1],
            "over": names[0],
            **{
                figure: ratios(first, last_name, figure)
                for figure in ("us_per_tick", "us_per_token")
            },
        }
    return document


def _code(value: str) -> Code:
    name, _, folder = value.partition("=")
    if not folder or not (Path(folder) / "cdbench").is_dir():
        raise argparse.ArgumentTypeError(f"{value!r}: give NAME=FOLDER of a checkout")
    return Code(name, Path(folder).resolve())


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the tables, write the document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--code", type=_code, action="append", metavar="NAME=FOLDER")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--ticks", type=int, default=TICKS)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--out", type=Path, help="where the JSON document goes")
    args = parser.parse_args(argv)
    plan = Plan(tuple(args.widths), args.ticks)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    codes = args.code or [Code("this checkout", ROOT)]
    document = {
        "what": "host time of the engine on a model whose stages do nothing, microseconds",
        "note": "synthetic depths replayed, forced tokens; nothing of a model",
        **compare(codes, plan, args.blocks),
    }
    for name, found in document["codes"].items():
        show(name, found["cells"])
    document["manifest"] = manifest.collect(
        argv=["scripts/hot_path.py", *(sys.argv[1:] if argv is None else argv)]
    ).model_dump(mode="json")
    if args.out is not None:
        write_whole(args.out, json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

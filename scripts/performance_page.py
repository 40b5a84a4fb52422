"""Fill the tables of ``docs/performance.md`` from the records of ``results/reference/performance``.

    python scripts/performance_page.py --take results/runs/sweep-bench.cpu    # keep its record
    python scripts/performance_page.py                                        # write the page

Between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->`` nothing is written by hand. A
test holds the page against the records, so no figure stands there that no record has.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cdbench.render.formats import ratio  # noqa: E402  (the checkout is the package)
from cdbench.render.markdown import to_markdown  # noqa: E402
from cdbench.render.table import Table  # noqa: E402
from cdbench.schema import to_json  # noqa: E402
from cdbench.schema.files import RESULT_FILE, read_document, read_result, write_whole  # noqa: E402
from cdbench.schema.sweep import SWEEP_FILE, SweepDocument  # noqa: E402
from cdbench.stats.interval import Interval  # noqa: E402
from scripts.performance_tables import (  # noqa: E402
    bench_tables,
    best_over_auto,
    dense_table,
    gains,
    host_table,
    memory_table,
    over_all_cells,
    sweep_table,
    work_tables,
)

PAGE = ROOT / "docs" / "performance.md"
RECORDS = ROOT / "results" / "reference" / "performance"
BENCH = "bench"
"""The directory with the results of the bench set's cells."""
BENCH_SET = "bench.cpu"
"""The sweep whose cells are kept whole; of others, the summary is."""
MANIFESTS = "manifests"
"""The directory with a manifest for every sweep: its summary has none."""
REGION = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end of figures -->)", re.S)
NO_RECORD = "There is no record of this yet.\n"
DECODE = "cdb/static.decode"
MINIMUM = "engine.coda_min_rows"


def bench(records: Path) -> str:
    """The bench set, from the results of its cells."""
    results = [read_result(file) for file in sorted((records / BENCH).glob("*.json"))]
    return _markdown(bench_tables(results)) if results else NO_RECORD


def coda_minimum(document: dict) -> str:
    """The sweep over minimums, and how far ``auto`` is from the best fixed one."""
    lines = []
    for name, best in best_over_auto(document, MINIMUM, DECODE).items():
        said = "not every cell has a figure"
        if best is not None:
            said = f"the best fixed minimum over `auto`: {_ratio(best)}"
        lines.append(f"- {name}: {said}")
    return _sweep_and(document, lines)


def no_exits(document: dict) -> str:
    """The sweep without exits, and its speed-ups over all cells."""
    lines = []
    for figure in ("cdb/static", DECODE):
        found = over_all_cells(document, figure)
        if found is not None:
            mean = f"geometric mean over the {found.n} cells: {_ratio(found)}"
            lines.append(f"- {figure}, {mean}")
    return _sweep_and(document, lines)


def compiled(document: dict) -> str:
    """The sweep over ``engine.compile``, and the throughput of compiled cells over the others."""
    modes = {
        mode: gains(document, "engine.compile", f"{mode}.output_throughput")
        for mode in ("static", "cdb")
    }
    lines = []
    for cell in modes["static"]:
        said = [
            f"{mode} {_ratio(found)}"
            for mode, by_cell in modes.items()
            if (found := by_cell[cell]) is not None
        ]
        lines.append(f"- {cell}, compiled over not: {', '.join(said) or 'no figure'}")
    return _sweep_and(document, lines)


def _sweep(document: dict) -> str:
    return _markdown([sweep_table(document)])


def _sweep_and(document: dict, lines: Sequence[str]) -> str:
    return _sweep(document) + "\n" + "\n".join(lines) + "\n"


def _ratio(found: Interval) -> str:
    return ratio(found.estimate, found.low, found.high)


FROM_FILE: dict[str, tuple[str, Callable[[dict], str]]] = {
    "dense": ("dense.json", lambda found: _markdown([dense_table(found)])),
    "host": ("hot-path.json", lambda found: _markdown([host_table(found)])),
    "work-per-tick": ("work-per-tick.json", lambda found: _markdown(work_tables(found))),
    "memory": ("memory.json", lambda found: _markdown([memory_table(found)])),
    "coda-minimum": ("coda-minimum.json", coda_minimum),
    "no-exits": ("no-exits.json", no_exits),
    "lag": ("lag.json", _sweep),
    "compile": ("compile.json", compiled),
}
"""Section → its record, and what is made of it."""
SECTIONS = (BENCH, *FROM_FILE)
"""What may stand between marks."""


def section(name: str, records: Path) -> str:
    """What stands between the marks of a name. KeyError: there is no such section."""
    if name == BENCH:
        return bench(records)
    file, made_of = FROM_FILE[name]
    document = _read(records / file)
    return NO_RECORD if document is None else made_of(document)


def filled(page: str, records: Path) -> str:
    """The page with every region made anew. KeyError: a region of no known name."""
    return REGION.sub(lambda m: f"{m[1]}\n{section(m[2], records)}\n{m[4]}", page)


def take(sweep: Path, records: Path) -> list[Path]:
    """Keep what a sweep measured: the files written.

    Of the bench set that is the ``result.json`` of every finished cell, of another sweep its
    summary, and beside it the manifest of one of its runs.

    Raises:
        UsageError: it is no sweep, or a result cannot be read.
    """
    document = read_document(SweepDocument, sweep / SWEEP_FILE)
    finished = {
        cell.number: sweep / done[-1].directory / RESULT_FILE
        for cell in document.cells
        if (done := [one for one in cell.rounds if one.state == "finished"])
    }
    if document.name == BENCH_SET:
        return [_take_cell(number, file, records / BENCH) for number, file in finished.items()]
    if not finished:
        return []
    name = f"{document.name.removeprefix('bench.')}.json"
    manifest = read_result(next(iter(finished.values()))).manifest
    return [
        _keep(records / name, (sweep / SWEEP_FILE).read_bytes()),
        _keep(records / MANIFESTS / name, to_json(manifest) + "\n"),
    ]


def _take_cell(number: int, file: Path, directory: Path) -> Path:
    model = read_result(file).model
    assert model is not None, "a timed run has a model"
    name = f"{number}-{Path(model.name).name}-{model.dtype}.json"
    return _keep(directory / name, file.read_bytes())


def _keep(file: Path, content: str | bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, content)
    return file


def _markdown(tables: Sequence[Table]) -> str:
    return "\n".join(to_markdown(table) for table in tables)


def _read(file: Path) -> dict | None:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page; with ``--check`` only say whether it is as the records have it (1: not)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--take", type=Path, metavar="SWEEP", help="keep the record of a sweep")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--records", type=Path, default=RECORDS)
    args = parser.parse_args(argv)
    if args.take is not None:
        for file in take(args.take, args.records):
            print(file)
        return 0
    page = args.page.read_text(encoding="utf-8")
    made = filled(page, args.records)
    if args.check:
        return 0 if made == page else 1
    write_whole(args.page, made)
    return 0


if __name__ == "__main__":
    sys.exit(main())

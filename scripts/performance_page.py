"""Fill the tables of ``docs/performance.md`` from the records of ``results/reference/performance``.

    python scripts/performance_page.py --take results/runs/sweep-bench.cpu    # keep its cells
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
from cdbench.schema.files import RESULT_FILE, read_document, read_result, write_whole  # noqa: E402
from cdbench.schema.sweep import SWEEP_FILE, SweepDocument  # noqa: E402
from scripts.performance_tables import (  # noqa: E402
    bench_tables,
    best_over_auto,
    dense_table,
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
REGION = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end of figures -->)", re.S)
NO_RECORD = "There is no record of this yet.\n"
DECODE = "cdb/static.decode"
MINIMUM = "engine.coda_min_rows"


def bench(records: Path) -> str:
    """The bench set, from the results of its cells."""
    results = [read_result(file) for file in sorted((records / BENCH).glob("*.json"))]
    return _markdown(bench_tables(results)) if results else NO_RECORD


def from_file(name: str, tables: Callable[[dict], Sequence[Table]]) -> Callable[[Path], str]:
    """The tables of one JSON document."""

    def section(records: Path) -> str:
        document = _read(records / name)
        return NO_RECORD if document is None else _markdown(tables(document))

    return section


def coda_minimum(records: Path) -> str:
    """The sweep over minimums, and how far ``auto`` is from the best fixed one."""
    document = _read(records / "coda-minimum.json")
    if document is None:
        return NO_RECORD
    lines = []
    for name, best in best_over_auto(document, MINIMUM, DECODE).items():
        said = "not every cell has a figure"
        if best is not None:
            said = (
                f"the best fixed minimum over `auto`: {ratio(best.estimate, best.low, best.high)}"
            )
        lines.append(f"- {name}: {said}")
    return _markdown([sweep_table(document)]) + "\n" + "\n".join(lines) + "\n"


def no_exits(records: Path) -> str:
    """The sweep without exits, and its speed-ups over all cells."""
    document = _read(records / "no-exits.json")
    if document is None:
        return NO_RECORD
    lines = []
    for figure in ("cdb/static", DECODE):
        found = over_all_cells(document, figure)
        if found is not None:
            said = ratio(found.estimate, found.low, found.high)
            lines.append(f"- {figure}, geometric mean over the {found.n} cells: {said}")
    return _markdown([sweep_table(document)]) + "\n" + "\n".join(lines) + "\n"


SECTIONS: dict[str, Callable[[Path], str]] = {
    "bench": bench,
    "dense": from_file("dense.json", lambda found: [dense_table(found)]),
    "host": from_file("hot-path.json", lambda found: [host_table(found)]),
    "work-per-tick": from_file("work-per-tick.json", work_tables),
    "memory": from_file("memory.json", lambda found: [memory_table(found)]),
    "coda-minimum": coda_minimum,
    "no-exits": no_exits,
    "lag": from_file("lag.json", lambda found: [sweep_table(found)]),
    "compile": from_file("compile.json", lambda found: [sweep_table(found)]),
}
"""What stands between the marks of each name."""


def filled(page: str, records: Path) -> str:
    """The page with every region made anew. KeyError: a region of no known name."""
    return REGION.sub(lambda m: f"{m[1]}\n{SECTIONS[m[2]](records)}\n{m[4]}", page)


def take(sweep: Path, records: Path) -> list[Path]:
    """Keep the ``result.json`` of every finished cell of a sweep of the bench set.

    Raises:
        UsageError: it is no sweep, or a result cannot be read.
    """
    kept = []
    for cell in read_document(SweepDocument, sweep / SWEEP_FILE).cells:
        finished = [one for one in cell.rounds if one.state == "finished"]
        if not finished:
            continue
        file = sweep / finished[-1].directory / RESULT_FILE
        model = read_result(file).model
        assert model is not None, "a timed run has a model"
        name = f"{cell.number}-{Path(model.name).name}-{model.dtype}.json"
        (records / BENCH).mkdir(parents=True, exist_ok=True)
        kept.append(records / BENCH / name)
        write_whole(kept[-1], file.read_bytes())
    return kept


def _markdown(tables: Sequence[Table]) -> str:
    return "\n".join(to_markdown(table) for table in tables)


def _read(file: Path) -> dict | None:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page; with ``--check`` only say whether it is as the records have it (1: not)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--take", type=Path, metavar="SWEEP", help="keep the cells of a sweep")
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
